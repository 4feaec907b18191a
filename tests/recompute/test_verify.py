"""One step with and without, unit by unit."""

from __future__ import annotations

import random

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from paddle_memcallbacks.recompute import RecomputeError, find_units, recompute_units, verify_units
from paddle_memcallbacks.recompute.verify import compare_steps
from tests.recompute.steps import assert_same, data, gradients, random_draws, seed_all, state

WIDTH = 8


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1D(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.drop(F.tanh(self.norm(self.a(x))))


class Outside:
    """State that no layer holds."""

    def __init__(self):
        self.count = 0


class Leaky(Block):
    def __init__(self, outside):
        super().__init__()
        self.outside = outside

    def forward(self, x):
        self.outside.count += 1
        return super().forward(x) * (1.0 + 0.5 * (self.outside.count % 2)) * x


class InPlace(Block):
    def forward(self, x):
        return super().forward(F.relu_(x))


def make(*kinds):
    seed_all()
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(kind() for kind in kinds), nn.Linear(WIDTH, 2))


def step_of(model, before=None):
    def run():
        if before is not None:
            before()
        loss = (model(data(4, WIDTH)) ** 2).mean()
        loss.backward()
        return loss

    return run


def test_exact_units():
    model = make(Block, Block)
    result = verify_units(model, step_of(model), ["1", "2"])
    assert result.exact and result.deterministic
    assert result.units == ("1", "2")
    assert result.differing == ()
    assert "2 units, gradients and buffers equal bit for bit" in result.text()


def test_nothing_is_left_of_it():
    model = make(Block, Block)
    step_of(model)()
    random.random()
    before = [state(model), gradients(model)]
    paddle_state, python_state, numpy_state = paddle.get_rng_state(), random.getstate(), np.random.get_state()
    verify_units(model, step_of(model), ["1", "2"])
    assert_same(before, [state(model), gradients(model)])
    assert [model[1].calls, model[2].calls] == [1, 1]
    after = random_draws()
    paddle.set_rng_state(paddle_state)
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    assert_same([after], [random_draws()])
    assert type(model[1]) is Block


def test_gradients_that_were_none_are_none():
    model = make(Block)
    verify_units(model, step_of(model), ["1"])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_unit_with_state_outside_is_named():
    outside = Outside()
    model = make(Block, lambda: Leaky(outside), Block)

    def reset():
        outside.count = 0

    result = verify_units(model, step_of(model, reset), ["1", "2", "3"])
    assert result.deterministic
    assert result.differing == ("2",)
    assert not result.exact
    assert result.differences["2"].relative > 1e-3
    assert "unit '2' differs" in result.text()


def test_a_unit_that_is_refused_is_named():
    model = make(Block, InPlace)
    result = verify_units(model, step_of(model), ["1", "2"])
    assert result.differing == ()
    assert set(result.refused) == {"2"}
    assert "(InPlace)" in result.refused["2"]
    assert not result.exact
    assert "refused" in result.text()


def test_a_step_that_differs_from_itself_is_said():
    model = make(Block, Block)
    noise = iter(range(1, 100))

    def run():
        loss = (model(data(4, WIDTH)) ** 2).mean() * (1.0 + 1e-4 * next(noise))
        loss.backward()
        return loss

    result = verify_units(model, run, ["1", "2"])
    assert not result.deterministic
    assert result.differing == ()
    assert "the plain step differs from itself" in result.text()
    assert "within the step's own noise" in result.text()


def test_units_that_differ_only_together():
    outside = Outside()

    class Paired(Block):
        def forward(self, x):
            outside.count += 1
            # 2 calls in a plain step; one unit alone makes 3, both 4
            return super().forward(x) * (2.0 if outside.count == 4 else 1.0) * x

    model = make(Paired, Paired)

    def reset():
        outside.count = 0

    result = verify_units(model, step_of(model, reset), ["1", "2"])
    assert result.only_together
    assert result.differing == ("1", "2")
    assert "all of them together" in result.text()


def test_an_error_of_the_step_puts_everything_back():
    model = make(Block)
    step_of(model)()
    before = [state(model), gradients(model)]

    def run():
        model(data(4, WIDTH)).mean().backward()
        raise KeyError("no labels")

    with pytest.raises(KeyError, match="no labels"):
        verify_units(model, run, ["1"])
    assert_same(before, [state(model), gradients(model)])
    assert type(model[1]) is Block


def test_names_are_checked():
    with pytest.raises(RecomputeError, match="is no layer"):
        verify_units(make(Block), lambda: None, ["7"])


def test_it_must_be_off():
    model = make(Block)
    with recompute_units(model, ["1"]):
        result = verify_units(model, step_of(model), ["1"])
    assert "another switch" in result.refused["1"]


def test_main_gradients():
    model = make(Block)
    weight = model[1].a.weight
    weight.main_grad = paddle.full([WIDTH, WIDTH], 3.0)
    result = verify_units(model, step_of(model), find_units(model) or ["1"])
    assert result.exact
    assert float(weight.main_grad.mean()) == 3.0


def test_compare_steps():
    one = {"a": np.array([3.0, 4.0]), "b": np.array([1.0])}
    assert compare_steps(one, {key: value.copy() for key, value in one.items()}) is None
    found = compare_steps(one, {"a": np.array([3.0, 4.5]), "b": np.array([1.0])})
    assert (found.tensor, found.relative) == ("a", 0.1)
    assert compare_steps(one, {"a": one["a"]}).relative == float("inf")
    assert compare_steps({"a": np.array([np.nan])}, {"a": np.array([1.0])}).relative == float("inf")
    assert compare_steps({"a": np.array([0.0])}, {"a": np.array([-0.0])}) is not None
