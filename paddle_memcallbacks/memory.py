"""Memory readings, the peaks of a step's phases, and the test for memory that grows. Nothing here waits for the device.

| tag | meaning |
|---|---|
| ``memory/allocated_gib`` | allocated now, after clear_grad |
| ``memory/reserved_gib`` | held by the allocator now |
| ``memory/peak_allocated_gib`` | the largest allocated since the process started |
| ``memory/peak_reserved_gib`` | the largest reserved since the process started |
| ``memory/step_peak_gib`` | the largest allocated within this step |
| ``memory/base_gib`` | allocated where this step began |
| ``memory/held_after_forward_gib`` | what a forward leaves allocated: its end above its beginning; the largest slice |
| ``memory/peak_forward_gib`` | the largest allocated during a forward of this step |
| ``memory/peak_backward_gib`` | the largest allocated during a backward of this step |
| ``memory/peak_step_gib`` | the largest allocated during the optimizer's step |
| ``memory/fragmentation_pct`` | of the peak reserved since the start, what the peak allocated never filled; percent |
| ``memory/host_rss_gib`` | resident memory of this process on the host |

The peaks of a step and its phases need counters that can be reset: paddle 3.0 and later. On 2.6 they are left out.
A device without counters has none of these but the host's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import paddle
import psutil
from paddle.base import core

from paddle_memcallbacks.alerts import warn_once
from paddle_memcallbacks.growth import GrowthWatch, growth_bytes_per_step
from paddle_memcallbacks.metrics import GIB, memory_metrics

__all__ = [
    "GIB",
    "GrowthWatch",
    "MemoryReading",
    "Phase",
    "PhaseMeter",
    "StepMemory",
    "allocated_bytes",
    "can_reset_peak",
    "device_total_bytes",
    "growth_bytes_per_step",
    "host_rss_bytes",
    "memory_metrics",
    "memory_reading",
    "peak_since_reset_bytes",
    "reset_peak",
]

Phase = Literal["forward", "backward", "step"]


@dataclass(frozen=True)
class MemoryReading:
    """Paddle's allocator counters on the current device, in bytes.

    Peaks count since the process started, also where this library has reset Paddle's own counter in between.
    """

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True)
class StepMemory:
    """One step's memory, in allocated bytes; peaks are absolute.

    Attributes:
        peak_bytes: the largest within the step; since the process started where ``peaks_measured`` is False.
        base_bytes: where the step began.
        peak_forward_bytes: the largest during a forward; None where it was not measured.
        peak_backward_bytes: the same for backward.
        peak_step_bytes: the same for the optimizer's step.
        held_after_forward_bytes: the end of a forward above its beginning, the largest of the slices.
        peaks_measured: False on paddle 2.6, whose peaks cannot be reset.
    """

    peak_bytes: int
    base_bytes: int
    peak_forward_bytes: int | None = None
    peak_backward_bytes: int | None = None
    peak_step_bytes: int | None = None
    held_after_forward_bytes: int | None = None
    peaks_measured: bool = True


class _Counters:
    """Paddle's counters of one device, looked up once: they are read several times in every phase."""

    def __init__(self, family: Literal["host", "device"], index: int) -> None:
        self.index = index
        self.current = _counter(family, "current_value")
        self.peak = _counter(family, "peak_value")
        self.reset: Callable[[str, int], None] | None = getattr(core, f"{family}_memory_stat_reset_peak_value", None)
        # the largest allocated that was wiped out by a reset of Paddle's peak
        self.peak_before_reset = 0


def _counter(family: str, which: str) -> Callable[[str, int], int]:
    """``which`` is current_value or peak_value; the function takes ``Allocated`` or ``Reserved`` and an index."""
    return getattr(core, f"{family}_memory_stat_{which}", lambda kind, index: 0)


@lru_cache(maxsize=32)
def _counters_of(device: str) -> _Counters:
    """Counters of ``cpu``, ``gpu:0``, ``xpu:1``, ``npu:0``, ...; a device without any reads zeros, and says so."""
    kind, _, index = device.partition(":")
    family: Literal["host", "device"] = "host" if kind == "cpu" else "device"
    if not hasattr(core, f"{family}_memory_stat_current_value"):
        warn_once(f"no_counters_{kind}", f"this paddle has no memory counters for {device}: memory/* is left out")
    return _Counters(family, 0 if kind == "cpu" else int(index or 0))


def _counters() -> _Counters:
    return _counters_of(paddle.get_device())


def can_reset_peak() -> bool:
    """Whether this paddle can reset a peak (3.0 and later), so that peaks by phase exist."""
    return _counters().reset is not None


def memory_reading() -> MemoryReading:
    """The counters of the current device, now."""
    counters = _counters()
    index = counters.index
    return MemoryReading(
        allocated_bytes=counters.current("Allocated", index),
        reserved_bytes=counters.current("Reserved", index),
        peak_allocated_bytes=max(counters.peak_before_reset, counters.peak("Allocated", index)),
        peak_reserved_bytes=counters.peak("Reserved", index),
    )


def allocated_bytes() -> int:
    """Allocated on the current device, now."""
    counters = _counters()
    return counters.current("Allocated", counters.index)


def peak_since_reset_bytes() -> int:
    """The largest allocated since `reset_peak`."""
    counters = _counters()
    return counters.peak("Allocated", counters.index)


def reset_peak() -> None:
    """Set Paddle's peak of allocated bytes to what is allocated now; `memory_reading` still knows the former one.

    Raises:
        RuntimeError: paddle 2.6 cannot reset a peak; ask `can_reset_peak`.
    """
    _take_peak()


def _take_peak() -> int:
    """Reset the peak, and return what it was."""
    counters = _counters()
    if counters.reset is None:
        raise RuntimeError("this paddle cannot reset a peak; paddle 3.0 and later can")
    peak = counters.peak("Allocated", counters.index)
    if peak > counters.peak_before_reset:
        counters.peak_before_reset = peak
    counters.reset("Allocated", counters.index)
    return peak


def host_rss_bytes() -> int:
    """Resident memory of this process on the host."""
    return int(psutil.Process().memory_info().rss)


def device_total_bytes() -> int | None:
    """The memory of the current GPU; None on a CPU and on devices that do not tell."""
    kind, _, index = paddle.get_device().partition(":")
    if kind != "gpu" or paddle.device.cuda.device_count() == 0:
        return None
    return int(paddle.device.cuda.get_device_properties(int(index or 0)).total_memory)


class PhaseMeter:
    """The peaks of a step's phases. A phase may come several times in a step (micro-batches): the largest counts.

    Phases may nest: what is allocated inside counts for every one that is open. Where peaks cannot be reset
    (paddle 2.6), only the step's beginning and what is held after forward are measured.
    """

    def __init__(self) -> None:
        self._can_reset = can_reset_peak()
        self._paused = False
        self._open: list[_PhaseOf] = []
        self._base = self._peak = 0
        self._phases: dict[str, int] = {}
        self._held: int | None = None

    def begin_step(self) -> None:
        """A step begins: what is allocated now is its base. Phases that a failed step has left open are over."""
        if self._can_reset:
            reset_peak()
        self._open = []
        self._base = self._peak = allocated_bytes()
        self._phases, self._held = {}, None

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Around a forward, a backward or the optimizer's step. The peak of one that fails counts as well."""
        return _PhaseOf(self, name)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Callable[[], StepMemory]]:
        """Measure what runs inside as a step of its own; the function it gives returns that step's memory."""
        self._close_segment()
        outer = self._base, self._peak, self._phases, self._held, self._open, self._paused
        self._paused = False
        self.begin_step()
        inner: list[StepMemory] = []
        try:
            yield lambda: inner[0]
        finally:
            inner.append(self.end_step())
            self._base, self._peak, self._phases, self._held, self._open, self._paused = outer

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside counts for no phase and no step."""
        self._close_segment()
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused
            if self._can_reset:
                reset_peak()

    def end_step(self) -> StepMemory:
        """The step's memory."""
        self._close_segment()
        return StepMemory(
            peak_bytes=self._peak if self._can_reset else peak_since_reset_bytes(),
            base_bytes=self._base,
            peak_forward_bytes=self._phases.get("forward"),
            peak_backward_bytes=self._phases.get("backward"),
            peak_step_bytes=self._phases.get("step"),
            held_after_forward_bytes=self._held,
            peaks_measured=self._can_reset,
        )

    def _close_segment(self) -> None:
        """What was allocated since the last call counts for the step and for every open phase."""
        if not self._can_reset or self._paused:
            return
        peak = _take_peak()
        self._peak = max(self._peak, peak)
        for phase in self._open:
            self._phases[phase.name] = max(self._phases.get(phase.name, 0), peak)

    def _enter(self, phase: _PhaseOf) -> None:
        self._close_segment()
        self._open.append(phase)

    def _leave(self, phase: _PhaseOf, held: int | None) -> None:
        self._close_segment()
        if phase not in self._open:
            # a failed step left it open, and another step has begun
            return
        self._open.remove(phase)
        if held is not None and not self._paused:
            self._held = max(self._held or 0, held)


class _PhaseOf(AbstractContextManager[None]):
    """One phase; a class, since a generator's overhead would double what a phase costs."""

    __slots__ = ("_begin_bytes", "_meter", "name")

    def __init__(self, meter: PhaseMeter, name: Phase) -> None:
        self._meter, self.name = meter, name

    def __enter__(self) -> None:
        self._meter._enter(self)
        self._begin_bytes = allocated_bytes()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        is_forward = kind is None and self.name == "forward"
        self._meter._leave(self, allocated_bytes() - self._begin_bytes if is_forward else None)
