"""What a table and a page say of a run, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paddle_memcallbacks.report.record import Run

GIB = 2**30
PHASES = ("forward", "backward", "step")


@dataclass(frozen=True)
class Figures:
    """One run's row. NaN where the record does not say.

    Attributes:
        name: the run's.
        steps: optimizer steps recorded.
        micro_batch_size, micro_batches: of the last step.
        held_bytes: the most that a forward left allocated.
        peak_bytes: the highest step peak; where steps have none (paddle 2.6) the highest since the process started.
        base_bytes: the least that stood where a step began (weights, moments).
        phase_bytes: the highest peak of forward, backward and the optimizer's step.
        step_seconds: the median step.
        saved_bytes: the baseline's peak less this one's.
        saved_share: the same as a share of the baseline's peak.
        skipped: steps that GradScaler left out.
        loss: the last finite one.
        alerts: how many.
        state: ``finished``, the reason of an early end, or ``no end recorded``.
    """

    name: str
    steps: int
    micro_batch_size: float
    micro_batches: float
    held_bytes: float
    peak_bytes: float
    base_bytes: float
    phase_bytes: tuple[float, float, float]
    step_seconds: float
    saved_bytes: float
    saved_share: float
    skipped: float
    loss: float
    alerts: int
    state: str


def baseline_of(runs: Sequence[Run]) -> Run | None:
    """The run that others are compared with: the one named ``baseline``, else the first."""
    named = [run for run in runs if run.name.rsplit("/", 1)[-1] == "baseline"]
    return next(iter(named or runs), None)


def figures_of(runs: Sequence[Run]) -> list[Figures]:
    """One row a run, in the order given."""
    base = baseline_of(runs)
    base_peak = math.nan if base is None else peak_bytes(base)
    return [_figures(run, base_peak, run is base) for run in runs]


def peak_bytes(run: Run) -> float:
    """The highest step peak; where steps have none (paddle 2.6) the highest since the process started."""
    return _highest(run, "memory/step_peak_gib" if run.finite("memory/step_peak_gib") else "memory/peak_allocated_gib")


def size_text(size_bytes: float) -> str:
    """``1.21 GiB``, ``69.3 MiB``, ``12.0 KiB``; ``-`` for NaN."""
    if not math.isfinite(size_bytes):
        return "-"
    for unit, factor in (("GiB", GIB), ("MiB", 2**20)):
        if abs(size_bytes) >= 0.9995 * factor:
            return f"{size_bytes / factor:.2f} {unit}" if unit == "GiB" else f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} KiB"


def seconds_text(seconds: float) -> str:
    """``1.24 s``, ``38.5 ms``; ``-`` for NaN."""
    if not math.isfinite(seconds):
        return "-"
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{seconds * 1000:.1f} ms"


def count_text(count: float) -> str:
    """A whole number; ``-`` for NaN."""
    return f"{count:.0f}" if math.isfinite(count) else "-"


def share_text(row: Figures) -> str:
    """``38.2 %``; negative where the run needs more than the baseline."""
    return f"{100 * row.saved_share:.1f} %" if math.isfinite(row.saved_share) else "-"


def saved_text(row: Figures) -> str:
    """``38.2 % (87.0 MiB)``."""
    return f"{share_text(row)} ({size_text(row.saved_bytes)})" if math.isfinite(row.saved_share) else "-"


def slices_text(row: Figures) -> str:
    """``8 x 4``: micro-batch size x micro-batches a step."""
    if not math.isfinite(row.micro_batch_size):
        return "-"
    return f"{count_text(row.micro_batch_size)} x {count_text(row.micro_batches)}"


def _figures(run: Run, base_peak: float, is_base: bool) -> Figures:
    peak = peak_bytes(run)
    seconds = run.step_seconds()
    losses = run.finite("train/loss")
    forward, backward, step = (_highest(run, f"memory/peak_{phase}_gib") for phase in PHASES)
    return Figures(
        name=run.name,
        steps=len(run.steps),
        micro_batch_size=run.last("accumulation/micro_batch_size"),
        micro_batches=run.last("accumulation/micro_batches"),
        held_bytes=_highest(run, "memory/held_after_forward_gib"),
        peak_bytes=peak,
        base_bytes=min(run.finite("memory/base_gib"), default=math.nan) * GIB,
        phase_bytes=(forward, backward, step),
        step_seconds=median(seconds) if seconds else math.nan,
        saved_bytes=math.nan if is_base else base_peak - peak,
        saved_share=math.nan if is_base or not base_peak else (base_peak - peak) / base_peak,
        skipped=run.last("amp/skipped_steps_total"),
        loss=losses[-1] if losses else math.nan,
        alerts=len(run.alerts),
        state=_state(run),
    )


def _highest(run: Run, tag: str) -> float:
    return max(run.finite(tag), default=math.nan) * GIB


def _state(run: Run) -> str:
    if run.end is None:
        return "no end recorded"
    return str(run.end.get("reason") or "finished")
