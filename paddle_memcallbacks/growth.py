"""The test for memory that grows from step to step. Pure: bytes in, an alert out."""

from __future__ import annotations

from collections.abc import Sequence

from paddle_memcallbacks.alerts import Alert

MIB = 2**20
_PARTS = 4
_STEADY = 0.6


def growth_bytes_per_step(samples: Sequence[tuple[int, int]]) -> float | None:
    """How fast memory grows: the least-squares slope of (step, allocated bytes), in bytes a step.

    None where it does not grow steadily: fewer than eight samples; one of four consecutive parts does not lie wholly
    above the part before (noise, a jump with flat ends); or the last part rises by less than 0.6 of what the slope
    says (a cache that fills up). The order of the parts is a rank test, so whatever the noise looks like, n samples
    without a trend pass it with the chance ((n/4)!)**4 / n!, which is 1e-17 for 32.
    """
    count = len(samples)
    if count < 2 * _PARTS:
        return None
    bounds = [part * count // _PARTS for part in range(_PARTS + 1)]
    parts = [samples[low:high] for low, high in zip(bounds, bounds[1:], strict=False)]
    for earlier, later in zip(parts, parts[1:], strict=False):
        if min(size for _, size in later) <= max(size for _, size in earlier):
            return None
    mean_step, mean_bytes = _mean(samples)
    spread = sum((step - mean_step) ** 2 for step, _ in samples)
    if spread == 0:
        return None
    slope = sum((step - mean_step) * (size - mean_bytes) for step, size in samples) / spread
    (step_before, bytes_before), (step_last, bytes_last) = _mean(parts[-2]), _mean(parts[-1])
    if bytes_last - bytes_before < _STEADY * slope * (step_last - step_before):
        return None
    return slope


class GrowthWatch:
    """Tells, once, that allocated memory grows step by step.

    Samples are looked at in windows of single steps, and of the minima of 2, 4, 8, ... steps: a leak of once in many
    steps, or one that is smaller than the noise, shows up in a coarser window. Growth by more than the noise's range
    within 2**k steps is told within about ``1.5 * window * 2**k`` steps. A sawtooth (batches sorted by length, lists
    that are emptied now and then) is none where its period is at most a window.

    Args:
        window: samples of one window.
        warm_up: first steps that are left out (moments, caches, autotuning).
        least_bytes: a slower growth than this a step is not told.
    """

    def __init__(self, window: int = 32, warm_up: int = 3, least_bytes: int = 4096) -> None:
        self._window, self._warm_up, self._least_bytes = window, warm_up, least_bytes
        # by coarseness: the newest samples, and the one that waits for its partner
        self._levels: list[list[tuple[int, int]]] = []
        self._single: list[tuple[int, int] | None] = []
        self._seen = 0
        self._told = False

    def observe(self, step: int, allocated: int) -> Alert | None:
        """One sample of a step, taken after clear_grad."""
        self._seen += 1
        if self._told or self._seen <= self._warm_up:
            return None
        slope = self._add(0, (step, allocated))
        if slope is None:
            return None
        self._told = True
        return Alert(
            kind="memory_growth",
            severity="warning",
            step=step,
            message=f"allocated memory grows by {slope / MIB:.3f} MiB a step, after gradients are cleared",
            remedy="keep float(loss), not the tensor; evaluate under paddle.no_grad(); do not append outputs to a list",
            data={"bytes_per_step": slope},
        )

    def _add(self, level: int, sample: tuple[int, int]) -> float | None:
        if level == len(self._levels):
            self._levels.append([])
            self._single.append(None)
        samples, slope = self._levels[level], None
        samples.append(sample)
        if len(samples) == self._window:
            slope = growth_bytes_per_step(samples)
            del samples[: self._window // 2]
        if slope is not None and slope >= self._least_bytes:
            return slope
        partner, self._single[level] = self._single[level], None
        if partner is None:
            self._single[level] = sample
            return None
        return self._add(level + 1, min(partner, sample, key=lambda each: each[1]))


def _mean(samples: Sequence[tuple[int, int]]) -> tuple[float, float]:
    count = len(samples)
    return sum(step for step, _ in samples) / count, sum(size for _, size in samples) / count
