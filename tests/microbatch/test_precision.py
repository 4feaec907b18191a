"""fp16 and bf16 gradients of slices are added up in fp32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_memcallbacks.config import AccumulationConfig
from paddle_memcallbacks.microbatch import MicroBatchLoop, detached, weighted_backward
from paddle_memcallbacks.microbatch.precision import Fp32Accumulator, low_precision

# 1 + 2^-9 is lost in bf16 (8 bits) and 1 + 2^-12 in fp16 (11 bits): added one by one they vanish
SMALL = {"bfloat16": 2.0**-9, "float16": 2.0**-12}


class Half(paddle.nn.Layer):
    """A weight in half precision whose gradient is the sum of its inputs; most CPU kernels lack half precision."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.weight = self.create_parameter([1])
        self.to(dtype=dtype)
        self.dtype = dtype

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return (self.weight * x.astype(self.dtype)).astype("float32").sum()


def loop_of(model: Half) -> tuple[MicroBatchLoop, Callable[[Any, float], Any]]:
    def forward_backward(micro_batch: Any, weight: float) -> Any:
        loss = model(micro_batch)
        weighted_backward(loss, weight)
        return detached(loss)

    return MicroBatchLoop(model, AccumulationConfig(micro_batch_size=1)), forward_backward


def test_small_gradients_are_not_lost_between_slices() -> None:
    small = SMALL["bfloat16"]
    x = paddle.to_tensor([[1.0]] + [[small]] * 16)
    native = Half("bfloat16")
    for row in range(17):
        native(x[row]).backward()
    assert float(native.weight.grad.astype("float32")) == 1.0
    model = Half("bfloat16")
    loop, forward_backward = loop_of(model)
    loop.run(x, forward_backward, model)
    assert loop.weight_choice is not None
    assert loop.weight_choice.kind == "sum"
    assert model.weight.grad.dtype == paddle.bfloat16
    assert float(model.weight.grad.astype("float32")) == 1.0 + 16 * small


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_sum_is_rounded_once(dtype: str) -> None:
    """No CPU kernel multiplies in fp16, so the gradients are put in by hand."""
    model = Half(dtype)
    accumulator = Fp32Accumulator([model.weight])
    for value in [1.0] + [SMALL[dtype]] * 16:
        model.weight.grad = paddle.full([1], value).astype(dtype)
        accumulator.after_slice()
        assert model.weight.grad is None
    accumulator.finish()
    assert model.weight.grad.dtype == getattr(paddle, dtype)
    assert float(model.weight.grad.astype("float32")) == 1.0 + 16 * SMALL[dtype]


def test_fp32_gradients_and_main_grads_are_left_where_they_are() -> None:
    fp32 = paddle.nn.Linear(2, 2)
    assert low_precision(list(fp32.parameters())) == []
    half = Half("bfloat16")
    assert low_precision([half.weight]) == [half.weight]
    half.weight.main_grad = None
    assert low_precision([half.weight]) == []
    frozen = Half("float16")
    frozen.weight.stop_gradient = True
    assert low_precision([frozen.weight]) == []


def test_gradients_that_paddles_master_grad_made_fp32_are_not_touched() -> None:
    model = Half("bfloat16")
    accumulator = Fp32Accumulator([model.weight])
    model.weight.grad = paddle.full([1], 1.0 + 2.0**-20)
    accumulator.after_slice()
    accumulator.finish()
    assert model.weight.grad.dtype == paddle.float32
    assert float(model.weight.grad) == 1.0 + 2.0**-20


def test_a_parameter_without_a_gradient_gets_none() -> None:
    model = Half("bfloat16")
    accumulator = Fp32Accumulator([model.weight])
    accumulator.after_slice()
    accumulator.finish()
    assert model.weight.grad is None


def test_an_overflow_stays_visible_to_the_scaler() -> None:
    model = Half("float16")
    accumulator = Fp32Accumulator([model.weight])
    for _ in range(2):
        model.weight.grad = paddle.full([1], 40000.0).astype("float16")
        accumulator.after_slice()
    accumulator.finish()
    assert np.isinf(float(model.weight.grad.astype("float32")))
