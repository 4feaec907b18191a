"""The numbers of a step as metric tags. Pure; memory.py's docstring is the table of the tags of a reading and a step.

| tag | meaning |
|---|---|
| ``memory/budget_gib`` | the peak that a step may reach |
| ``memory/predicted_peak_gib`` | what the plan predicts |
| ``memory/oom_count`` | out-of-memory errors that were replayed |
| ``accumulation/micro_batches`` | slices that the batch went through in |
| ``accumulation/micro_batch_size`` | rows of the largest slice |
| ``recompute/units`` | units that are recomputed |
| ``recompute/saved_gib`` | by how much recompute lowered a micro-batch's peak |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle_memcallbacks.memory import MemoryReading, StepMemory

GIB = 2**30

# tag -> field of MemoryReading
_READING_TAGS = {
    "memory/allocated_gib": "allocated_bytes",
    "memory/reserved_gib": "reserved_bytes",
    "memory/peak_allocated_gib": "peak_allocated_bytes",
    "memory/peak_reserved_gib": "peak_reserved_bytes",
}
# tag -> field of StepMemory
_STEP_TAGS = {
    "memory/step_peak_gib": "peak_bytes",
    "memory/base_gib": "base_bytes",
    "memory/held_after_forward_gib": "held_after_forward_bytes",
    "memory/peak_forward_gib": "peak_forward_bytes",
    "memory/peak_backward_gib": "peak_backward_bytes",
    "memory/peak_step_gib": "peak_step_bytes",
}


def memory_metrics(
    reading: MemoryReading, step: StepMemory | None = None, host_bytes: int | None = None
) -> dict[str, float]:
    """The metric tags of a reading and a step (the table in memory.py); what was not measured is left out."""
    metrics: dict[str, float] = {}
    if reading.peak_allocated_bytes > 0:
        metrics.update({tag: getattr(reading, field) / GIB for tag, field in _READING_TAGS.items()})
        if step is not None:
            values = {tag: getattr(step, field) for tag, field in _STEP_TAGS.items()}
            if not step.peaks_measured:
                del values["memory/step_peak_gib"]
            metrics.update({tag: value / GIB for tag, value in values.items() if value is not None})
    if reading.peak_reserved_bytes > 0:
        # after a step most of what is reserved is idle by design: only at the peaks does the difference cost anything
        idle = max(reading.peak_reserved_bytes - reading.peak_allocated_bytes, 0)
        metrics["memory/fragmentation_pct"] = 100.0 * idle / reading.peak_reserved_bytes
    if host_bytes is not None:
        metrics["memory/host_rss_gib"] = host_bytes / GIB
    return metrics


@dataclass(frozen=True)
class RunFacts:
    """What a run knows of its step besides the counters; None where there is no such thing."""

    micro_batches: int
    micro_batch_size: int
    units: int
    oom_count: int
    budget_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    saved_bytes: int | None = None


# tag -> field of RunFacts, and what it is divided by
_RUN_TAGS = {
    "memory/budget_gib": ("budget_bytes", GIB),
    "memory/predicted_peak_gib": ("predicted_peak_bytes", GIB),
    "memory/oom_count": ("oom_count", 1),
    "accumulation/micro_batches": ("micro_batches", 1),
    "accumulation/micro_batch_size": ("micro_batch_size", 1),
    "recompute/units": ("units", 1),
    "recompute/saved_gib": ("saved_bytes", GIB),
}


def run_metrics(facts: RunFacts) -> Mapping[str, float]:
    """The metric tags of a run's facts (the table above); what is None is left out."""
    values = {tag: (getattr(facts, field), unit) for tag, (field, unit) in _RUN_TAGS.items()}
    return {tag: value / unit for tag, (value, unit) in values.items() if value is not None}
