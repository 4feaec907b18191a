"""Case 20: what Paddle raises when memory runs out; a smaller micro-batch works once the error is let go."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base import core
from paddle.distributed.fleet.utils import recompute

from paddle_memcallbacks.config import AccumulationConfig
from paddle_memcallbacks.microbatch import MicroBatchLoop, detached, weighted_backward
from paddle_memcallbacks.oom import classify, drop_traceback

HUGE = 1 << 44


def allocated_mib() -> float:
    gc.collect()
    return float(core.host_memory_stat_current_value("Allocated", 0)) / 2**20


class Block(paddle.nn.Layer):
    """Runs out of memory in its second pass, inside backward()."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        self.calls += 1
        if self.calls == 2:
            paddle.zeros([HUGE])
        return self.linear(x)


def second_pass(reentrant: bool) -> None:
    x = paddle.ones([2, 4])
    x.stop_gradient = False
    try:
        recompute(Block(), x, use_reentrant=reentrant, preserve_rng_state=False).sum().backward()
    finally:
        # the hook variant leaves Paddle's tracer without gradients
        from paddle.base.framework import _dygraph_tracer

        _dygraph_tracer()._has_grad = True


@pytest.mark.parametrize(
    ("run_out", "kind", "memory"),
    [
        (lambda: paddle.zeros([HUGE]), MemoryError, "device"),
        (lambda: paddle.matmul(paddle.ones([1 << 21, 1]), paddle.ones([1, 1 << 22])), MemoryError, "device"),
        (lambda: second_pass(True), OSError, "device"),
        (lambda: second_pass(False), OSError, "device"),
        (lambda: np.zeros(HUGE), MemoryError, "host"),
    ],
)
def test_the_real_errors_are_recognised(run_out: Any, kind: type[Exception], memory: str) -> None:
    with pytest.raises(kind) as raised:
        run_out()
    assert isinstance(raised.value, kind)
    assert classify(raised.value) == memory


def network() -> paddle.nn.Layer:
    return paddle.nn.Sequential(*[paddle.nn.Linear(512, 512) for _ in range(8)])


def loss_of(model: paddle.nn.Layer, x: paddle.Tensor) -> paddle.Tensor:
    h = model(x)
    if x.shape[0] > 512:
        paddle.zeros([HUGE])
    # squares: a mean that cancels to nearly zero is rounding alone
    return (h * h).mean()


def test_natively_a_live_error_pins_the_activations() -> None:
    model = network()
    x = paddle.ones([1024, 512])
    base = allocated_mib()
    try:
        loss_of(model, x)
    except MemoryError as error:
        assert allocated_mib() - base > 5
        drop_traceback(error)
        assert allocated_mib() - base < 1


def test_with_the_slice_loop_the_batch_is_replayed_smaller_and_nothing_stays() -> None:
    model = network()
    loop = MicroBatchLoop(model, AccumulationConfig(enable=False))

    def forward_backward(x: paddle.Tensor, weight: float) -> Any:
        loss = loss_of(model, x)
        weighted_backward(loss, weight)
        return detached(loss)

    x = paddle.rand([1024, 512])
    for parameter in model.parameters():
        parameter.grad = paddle.zeros_like(parameter)
    base = allocated_mib()
    outcome = loop.run(x, forward_backward, lambda part: loss_of(model, part))
    assert (outcome.micro_batch_size, outcome.replays) == (512, 1)
    assert allocated_mib() - base < 1
    found = model[0].weight.grad.numpy().copy()
    model.clear_gradients()
    hidden = model(x)
    (hidden * hidden).mean().backward()
    assert np.allclose(found, model[0].weight.grad.numpy(), rtol=1e-4, atol=1e-8)
