"""The vocabulary head in chunks: the same losses and gradients, without the logits; and as a choice of the planner."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from paddle_memcallbacks import memory
from paddle_memcallbacks.planner import ProfileError, predict_peak, profile_step, solve
from paddle_memcallbacks.planner.head import chunked_cross_entropy, chunked_head
from paddle_memcallbacks.planner.measure import measured_peak
from paddle_memcallbacks.recompute import find_units
from tests.planner.models import Block, seed_all

TOKENS, HIDDEN, VOCABULARY = 33, 16, 50


def inputs(transpose: bool, biased: bool) -> tuple[Any, Any, Any, Any]:
    paddle.seed(3)
    hidden, labels = paddle.randn([4, TOKENS, HIDDEN]), paddle.randint(0, VOCABULARY, [4, TOKENS])
    weight = 0.2 * paddle.randn([VOCABULARY, HIDDEN] if transpose else [HIDDEN, VOCABULARY])
    bias = paddle.randn([VOCABULARY]) if biased else None
    for tensor in (hidden, weight, bias):
        if tensor is not None:
            tensor.stop_gradient = False
    return hidden, weight, bias, labels


def gradients(loss: Any, *tensors: Any) -> list[np.ndarray]:
    (loss * loss).sum().backward()
    found = [np.array(loss.numpy()), *(np.array(t.grad.numpy()) for t in tensors if t is not None)]
    for tensor in tensors:
        if tensor is not None:
            tensor.clear_gradient(False)
    return found


@pytest.mark.parametrize(
    ("reduction", "ignore_index", "transpose", "biased"),
    list(itertools.product(("none", "sum", "mean"), (-100, 0), (False, True), (False, True))),
)
@pytest.mark.parametrize("chunk", [1000, 20, 7])
def test_equal_to_the_whole(reduction: str, ignore_index: int, transpose: bool, biased: bool, chunk: int) -> None:
    hidden, weight, bias, labels = inputs(transpose, biased)
    labels[0, :5] = ignore_index
    logits = paddle.matmul(hidden, weight, transpose_y=transpose)
    logits = logits if bias is None else logits + bias
    whole = F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction=reduction)
    whole = whole.reshape(labels.shape) if reduction == "none" else whole
    expected = gradients(whole, hidden, weight, bias)
    chunked = chunked_cross_entropy(
        hidden,
        weight,
        labels,
        chunk,
        bias=bias,
        ignore_index=ignore_index,
        reduction=reduction,
        transpose_weight=transpose,
    )
    assert chunked.shape == whole.shape
    for one, other in zip(expected, gradients(chunked, hidden, weight, bias), strict=True):
        assert abs(one - other).max() <= 1e-6 * abs(one).max()


def test_all_labels_ignored_is_zero() -> None:
    hidden, weight, _, labels = inputs(False, False)
    loss = chunked_cross_entropy(hidden, weight, paddle.zeros_like(labels), 8, ignore_index=0)
    assert float(loss) == 0.0


def test_frozen_inputs_get_no_gradient() -> None:
    hidden, weight, bias, labels = inputs(False, True)
    hidden.stop_gradient = True
    chunked_cross_entropy(hidden, weight, labels, 8, bias=bias).backward()
    assert hidden.grad is None and weight.grad is not None and bias.grad is not None
    hidden.stop_gradient, weight.stop_gradient = False, True
    chunked_cross_entropy(hidden, weight, labels, 8).backward()
    assert hidden.grad is not None


def test_the_logits_never_stand_whole() -> None:
    paddle.seed(0)
    hidden, weight = paddle.randn([1024, 32]), paddle.randn([32, 4000])
    labels = paddle.randint(0, 4000, [1024])
    weight.stop_gradient = False

    def peak(loss: Any) -> int:
        memory.reset_peak()
        base = memory.allocated_bytes()
        loss().backward()
        return memory.peak_since_reset_bytes() - base

    logits_bytes = 4 * 1024 * 4000
    assert peak(lambda: F.cross_entropy(F.linear(hidden, weight), labels)) >= 2 * logits_bytes
    assert peak(lambda: chunked_cross_entropy(hidden, weight, labels, 64)) < 0.5 * logits_bytes


def test_arguments_are_checked() -> None:
    hidden, weight, _, labels = inputs(False, False)
    with pytest.raises(ValueError, match="chunk_tokens is at least 1"):
        chunked_cross_entropy(hidden, weight, labels, 0)
    with pytest.raises(ValueError, match="reduction is none, sum or mean"):
        chunked_cross_entropy(hidden, weight, labels, reduction="average")


class Language(nn.Layer):
    def __init__(self, vocabulary: int = 1500) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 64)
        self.blocks = nn.LayerList([Block() for _ in range(3)])
        self.lm_head, self.criterion = nn.Linear(64, vocabulary), nn.CrossEntropyLoss()

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.criterion(self.lm_head(x).astype("float32"), ids)


def test_a_head_in_chunks_is_a_choice_that_the_solver_takes() -> None:
    gc.collect()
    seed_all()
    model, ids = Language(), paddle.randint(0, 1500, [4, 48])
    optimizer = paddle.optimizer.SGD(0.0, parameters=model.parameters())

    def step() -> None:
        model(ids).backward()
        optimizer.step()
        optimizer.clear_grad()

    head = chunked_head(model, chunk_tokens=16)
    assert head.layers == ("lm_head", "criterion")
    units = find_units(model)
    profile = profile_step(model, step, units, optimizer, replacements=[head])
    step()
    for chosen in ([], units, units[:1]):
        for replaced in ([], [head]):
            measured = measured_peak(model, step, chosen, replaced)
            predicted = predict_peak(profile, [*chosen, *(r.name for r in replaced)])
            assert -0.002 * measured <= predicted - measured <= 0.005 * measured, (chosen, bool(replaced))
    assert predict_peak(profile, [*units, head.name]) < 0.85 * predict_peak(profile, units)
    plan = solve(profile, round(0.9 * predict_peak(profile, units)), margin=0.0)
    assert plan.replace == (head.name,)
    assert measured_peak(model, step, plan.recompute, [head]) <= 0.9 * predict_peak(profile, units) * 1.002
    assert "forward" not in model.lm_head.__dict__ and "forward" not in model.criterion.__dict__


def test_models_without_such_a_head_are_refused() -> None:
    with pytest.raises(ProfileError, match="needs a Linear layer"):
        chunked_head(nn.Sequential(nn.Linear(8, 9)))
    with pytest.raises(ProfileError, match="needs a CrossEntropyLoss layer"):
        chunked_head(nn.Sequential(nn.Linear(8, 90)))
    model = Language(300)
    model.criterion = nn.CrossEntropyLoss(soft_label=True)
    with pytest.raises(ProfileError, match="hard labels"), chunked_head(model).switch():
        pass
