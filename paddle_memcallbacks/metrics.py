"""The numbers of a step as metric tags. Pure; memory.py's docstring is the table of the tags."""

from __future__ import annotations

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
