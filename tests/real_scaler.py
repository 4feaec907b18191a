"""Paddle's real GradScaler on a CPU: its kernels and its rules, without a GPU.

On a CPU a GradScaler turns itself off in its constructor (it asks the tracer for its place) and again in ``scale()``
(it asks for the dtype of the last auto_cast). Both questions are answered here as on a GPU; nothing else is touched:
``check_finite_and_unscale`` has a CPU kernel and the scale's update is plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock


class _GpuPlace:
    def is_gpu_place(self) -> bool:
        return True

    def is_xpu_place(self) -> bool:
        return False

    def is_custom_place(self) -> bool:
        return False


@contextmanager
def scalers_enabled() -> Iterator[None]:
    """GradScalers that are constructed inside stay enabled. Wrap only the construction (of a scaler, a Trainer)."""
    import paddle.amp.grad_scaler as grad_scaler

    tracer = SimpleNamespace(_expected_place=_GpuPlace())
    with mock.patch.object(grad_scaler, "_dygraph_tracer", lambda: tracer):
        yield


@contextmanager
def float16_pinned() -> Iterator[None]:
    """``scale()`` sees float16 as the last auto_cast's dtype and does not switch the scaler off. Wrap the run."""
    import paddle.amp.grad_scaler as grad_scaler

    shared = grad_scaler.amp_global_state()
    before = shared.amp_dtype
    pinned = SimpleNamespace(amp_dtype="float16")
    try:
        with mock.patch.object(grad_scaler, "amp_global_state", lambda: pinned):
            yield
    finally:
        shared.amp_dtype = before


@contextmanager
def real_scalers() -> Iterator[Callable[..., Any]]:
    """Yields a factory of enabled GradScalers with GradScaler's own keyword arguments, for use inside the block."""
    import paddle

    def make(**arguments: Any) -> Any:
        with scalers_enabled():
            return paddle.amp.GradScaler(**arguments)

    with float16_pinned():
        yield make
