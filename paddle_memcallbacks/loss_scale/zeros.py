"""Samples how many gradient elements are exactly zero: counted on the device at one step, read at the next."""

from __future__ import annotations

import paddle

from paddle_memcallbacks.alerts import Alert
from paddle_memcallbacks.loss_scale.nonfinite import GradientCounts, count_zeros
from paddle_memcallbacks.loss_scale.underflow import UnderflowState, ZeroCount, observe_zeros


class ZeroSampler:
    """Holds one sample until the next step: by then the device has done it, and reading it waits for nothing."""

    def __init__(self, model: paddle.nn.Layer) -> None:
        self.state = UnderflowState()
        self._model = model
        self._sample: GradientCounts | None = None

    def take(self) -> None:
        """Count now; call it before the gradients are cleared."""
        self._sample = count_zeros(self._model)

    def read(self, step: int, scale: float | None) -> list[Alert]:
        """What the sample of an earlier step says; nothing where none was taken."""
        if self._sample is None:
            return []
        sample, self._sample = self._sample, None
        rows = zip(sample.names, sample.read(), sample.totals, strict=True)
        counts = [ZeroCount(name, zeros, total) for name, zeros, total in rows]
        self.state, alerts = observe_zeros(self.state, step, counts, scale)
        return alerts

    def forget(self) -> None:
        """Drop a sample unread."""
        self._sample = None
