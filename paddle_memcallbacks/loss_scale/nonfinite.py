"""Which gradients are not finite, and how many are exactly zero. Counted on the device, read once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import paddle


@dataclass(frozen=True)
class NonFinite:
    """A parameter whose gradient is not finite.

    Attributes:
        name: as in ``model.named_parameters()``.
        nonfinite: elements of its gradient that are inf or NaN.
        total: elements of its gradient.
    """

    name: str
    nonfinite: int
    total: int

    def text(self) -> str:
        return f"{self.name} ({self.nonfinite} of {self.total})"


class GradientCounts:
    """Counts over every parameter's gradient as one device tensor. `read` is the one synchronisation.

    Attributes:
        names: the parameters that have a gradient, in the model's order.
        totals: the elements of each gradient.
    """

    def __init__(self, names: list[str], totals: list[int], counts: paddle.Tensor | None) -> None:
        self.names = names
        self.totals = totals
        self._counts = counts

    def read(self) -> list[int]:
        """The count of each parameter."""
        return [] if self._counts is None else [int(count) for count in self._counts.numpy()]

    def nonfinite(self) -> list[NonFinite]:
        """The parameters whose count is not zero, for counts of `count_nonfinite`."""
        rows = zip(self.names, self.read(), self.totals, strict=True)
        return [NonFinite(name, count, total) for name, count, total in rows if count]


def bare(model: paddle.nn.Layer) -> paddle.nn.Layer:
    """The user's own model: DataParallel would put ``_layers.`` before every name."""
    return model._layers if isinstance(model, paddle.DataParallel) else model


def nonfinite_parameters(model: paddle.nn.Layer) -> list[NonFinite]:
    """The parameters with inf or NaN in their gradients, in the model's order. Call it before clear_grad.

    After gradient clipping by a NaN norm every gradient is NaN: count before it (`count_nonfinite`).
    """
    return count_nonfinite(model).nonfinite()


def count_nonfinite(model: paddle.nn.Layer) -> GradientCounts:
    """Non-finite elements of every gradient, left on the device."""
    return _count(model, lambda gradient: paddle.logical_not(paddle.isfinite(gradient)))


def count_zeros(model: paddle.nn.Layer) -> GradientCounts:
    """Exactly zero elements of every gradient, left on the device."""
    return _count(model, lambda gradient: gradient == 0)


def _count(model: paddle.nn.Layer, marks: Callable[[paddle.Tensor], paddle.Tensor]) -> GradientCounts:
    names: list[str] = []
    totals: list[int] = []
    counts: list[paddle.Tensor] = []
    with paddle.no_grad(), without_autocast():
        for name, parameter in bare(model).named_parameters():
            gradient = gradient_of(parameter)
            if gradient is None:
                continue
            names.append(name)
            totals.append(int(gradient.size))
            counts.append(marks(gradient).sum(dtype="int64"))
        return GradientCounts(names, totals, paddle.stack(counts) if counts else None)


def gradient_of(parameter: Any) -> paddle.Tensor | None:
    """The dense gradient of a parameter, its ``main_grad`` where it has one; None where there is none."""
    main = getattr(parameter, "main_grad", None)
    gradient = main if main is not None else parameter.grad
    if gradient is None or not gradient._is_initialized() or gradient.is_selected_rows():
        return None
    return gradient


@contextmanager
def without_autocast() -> Iterator[None]:
    """Ops run in the dtype of their inputs. Lighter than auto_cast(enable=False), and leaves GradScaler's memory of the
    last auto_cast's dtype alone."""
    tracer = paddle.base.framework._dygraph_tracer()
    level = tracer._amp_level
    tracer._amp_level = paddle.base.core.AmpLevel.O0
    try:
        yield
    finally:
        tracer._amp_level = level
