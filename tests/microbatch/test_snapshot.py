"""A step's start, and going back to it."""

from __future__ import annotations

import random

import numpy as np
import paddle

from paddle_memcallbacks.microbatch import GradMode, StepSnapshot
from paddle_memcallbacks.microbatch.snapshot import RandomState, StateKeeper, state_slots
from tests.microbatch.conftest import random_states


class Stateful(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = paddle.nn.BatchNorm1D(4)
        self.spectral = paddle.nn.SpectralNorm([4, 4])
        self.linear = paddle.nn.Linear(4, 4)
        self.frozen = paddle.nn.Linear(4, 4)
        self.frozen.weight.stop_gradient = True
        self.frozen.bias.stop_gradient = True
        self.register_buffer("queue", paddle.zeros([2, 3]))
        self.register_buffer("mask", paddle.ones([3, 3], dtype="bool"))
        self.register_buffer("absent", None)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        with paddle.no_grad():
            self.queue.add_(paddle.ones([2, 3]))
        return (self.norm(self.linear(x)) @ self.spectral(self.frozen.weight)).sum()


def test_random_states_come_back_any_number_of_times() -> None:
    state = RandomState()
    before = random_states()
    for _ in range(2):
        paddle.rand([3])
        np.random.rand()
        random.random()
        assert random_states() != before
        state.restore()
        assert random_states() == before


def test_the_models_state_is_buffers_and_small_parameters_without_gradient() -> None:
    names = {slot.name for slot in state_slots(Stateful())}
    assert names == {
        "queue",
        "mask",
        "norm._mean",
        "norm._variance",
        "spectral.weight_u",
        "spectral.weight_v",
        "frozen.bias",
    }


def test_a_snapshot_puts_everything_back_but_keeps_the_tensors() -> None:
    model = Stateful()
    x = paddle.randn([5, 4])
    tensors = {**dict(model.named_buffers()), "mean": model.norm._mean}
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    snapshot = StepSnapshot(model)
    for _ in range(2):
        model(x).backward()
        assert not np.array_equal(model.norm._mean.numpy(), before["norm._mean"])
        snapshot.restore()
        after = model.state_dict()
        assert all(np.array_equal(after[name].numpy(), before[name]) for name in before)
        assert all(parameter.grad is None for parameter in model.parameters())
    assert dict(model.named_buffers())["queue"] is tensors["queue"]
    assert model.norm._mean is tensors["mean"]


def test_a_buffer_that_forward_replaced_comes_back_as_the_one_it_was() -> None:
    model = Stateful()
    snapshot = StepSnapshot(model)
    queue = model.queue
    model.queue = paddle.full([2, 3], 9.0)
    snapshot.restore()
    assert model.queue is queue
    assert float(model.queue.sum()) == 0.0


def test_zero_gradients_come_back_as_zeros_and_none_as_none() -> None:
    model = paddle.nn.Linear(4, 2)
    model.bias.stop_gradient = False
    model(paddle.ones([1, 4])).sum().backward()
    model.weight.clear_gradient(True)
    model.bias.clear_gradient(False)
    snapshot = StepSnapshot(model)
    model(paddle.ones([1, 4])).sum().backward()
    assert snapshot.gradients_were_empty()
    snapshot.restore()
    assert model.weight.grad is not None
    assert float(model.weight.grad.abs().sum()) == 0.0
    assert model.bias.grad is None
    model(paddle.ones([1, 4])).sum().backward()
    assert float(model.weight.grad.sum()) == 8.0


def test_held_gradients_are_noticed() -> None:
    model = paddle.nn.Linear(4, 2)
    model(paddle.ones([1, 4])).sum().backward()
    assert not StepSnapshot(model).gradients_were_empty()


def test_main_gradients_are_emptied_too() -> None:
    model = paddle.nn.Linear(4, 2)
    model.weight.main_grad = paddle.zeros([4, 2])
    model.bias.main_grad = None
    snapshot = StepSnapshot(model)
    model.weight.main_grad.add_(paddle.ones([4, 2]))
    model.bias.main_grad = paddle.ones([2])
    snapshot.restore()
    assert float(model.weight.main_grad.sum()) == 0.0
    assert model.bias.main_grad is None


def test_large_state_that_never_moves_is_copied_once() -> None:
    model = Stateful()
    model.register_buffer("table", paddle.ones([300, 300]))
    model.register_buffer("memory", paddle.ones([300, 300]))
    keeper = StateKeeper(model)
    kept = keeper.keep()
    names = lambda: {slot.name for slot, _, _ in keeper.keep()._kept}
    assert {"table", "memory", "mask", "queue", "norm._mean"} <= names()
    model.memory.add_(paddle.ones([300, 300]))
    keeper.learn(kept)
    assert "table" not in names()
    assert {"memory", "mask", "queue", "norm._mean"} <= names()
    model.table.scale_(2.0)
    assert "table" in names()


def test_the_grad_mode_comes_back() -> None:
    mode = GradMode()
    from paddle.base.framework import _dygraph_tracer

    _dygraph_tracer()._has_grad = False
    mode.restore()
    assert paddle.is_grad_enabled()
    with paddle.no_grad():
        inner = GradMode()
        inner.restore()
        assert not paddle.is_grad_enabled()
