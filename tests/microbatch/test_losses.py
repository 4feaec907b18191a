"""Losses: weighted backward, detaching, the dummy leaf, the batch's mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest
from paddle.amp.auto_cast import amp_global_state

from paddle_memcallbacks.microbatch import MicroBatchError, detached, dummy_leaf, weighted_backward
from paddle_memcallbacks.microbatch.losses import LossMean, autocast_off, primary


def leaf(value: float = 3.0) -> paddle.Tensor:
    made = paddle.to_tensor(value)
    made.stop_gradient = False
    return made


def test_backward_is_weighted() -> None:
    x = leaf()
    weighted_backward({"loss": x * 2, "other": x}, 0.25)
    assert float(x.grad) == 0.5


def test_backward_runs_on_the_scaled_loss(real_scaler: Callable[..., Any]) -> None:
    x = leaf()
    amp_global_state().amp_dtype = "float16"
    weighted_backward(x * 2, 0.25, real_scaler(init_loss_scaling=1024.0))
    assert float(x.grad) == 512.0


def test_autocast_off_leaves_the_dtype_that_gradscaler_looks_at() -> None:
    amp_global_state().amp_dtype = "bfloat16"
    with autocast_off():
        assert amp_global_state().amp_dtype == "bfloat16"
    assert amp_global_state().amp_dtype == "bfloat16"


def test_backward_leaves_an_open_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Any] = []
    real = paddle.amp.auto_cast
    monkeypatch.setattr(paddle.amp, "auto_cast", lambda *a, **k: entered.append(k) or real(*a, **k))
    weighted_backward(leaf() * 2, 1.0)
    assert entered == [{"enable": False}]


def test_a_loss_is_one_number() -> None:
    with pytest.raises(MicroBatchError, match=r"one number in a paddle tensor, not \[2\]"):
        primary(paddle.ones([2]))
    with pytest.raises(MicroBatchError, match="hold no entry 'loss'"):
        primary({"loss_cls": paddle.ones([1])})
    with pytest.raises(MicroBatchError, match="not float"):
        primary(1.0)
    assert primary({"loss": paddle.ones([1])}).shape == [1]


def test_detached_keeps_the_entries_without_their_graph() -> None:
    x = leaf()
    found = detached({"loss": x * 2, "n": 3})
    assert found["loss"].stop_gradient
    assert found["n"] == 3


def test_the_dummy_leaf_has_the_value_and_a_harmless_backward() -> None:
    x = leaf()
    loss = x * 2
    stand_in = dummy_leaf(loss)
    assert float(stand_in) == 6.0
    (stand_in * 65536).backward()
    assert x.grad is None
    assert float(dummy_leaf(paddle.to_tensor([2.5]))) == 2.5


def test_the_mean_takes_every_entry_in_and_returns_plain_0d_tensors() -> None:
    mean = LossMean()
    mean.add({"loss": paddle.to_tensor([2.0]), "loss_box": leaf(4.0), "count": 3, "logits": paddle.ones([2, 2])}, 0.25)
    mean.add({"loss": paddle.to_tensor([6.0]), "loss_box": leaf(8.0), "count": 5, "logits": paddle.ones([1, 2])}, 0.75)
    found = mean.value()
    assert {key: float(value) for key, value in found.items()} == {"loss": 5.0, "loss_box": 7.0, "count": 4.5}
    assert found["loss"].shape == []
    assert found["loss_box"].stop_gradient


def test_a_single_slice_keeps_its_bits() -> None:
    mean = LossMean()
    value = paddle.to_tensor(0.1) / 3
    mean.add(value, 1.0)
    assert float(mean.value()) == float(value)
