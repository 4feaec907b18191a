"""A report's pictures as PNG bytes. All text in them is ASCII; runs are told apart by the page's own legend."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from paddle_memcallbacks.report.figures import PHASES, Figures
from paddle_memcallbacks.report.record import Run

# Okabe and Ito's palette, which readers with any colour vision can tell apart
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f")
_DASHES = ("solid", "dashed", "dotted", "dashdot")
_INK, _GRID = "#3a4149", "#e3e6ea"
_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 6.2, 3.1, 170


@dataclass(frozen=True)
class Picture:
    """A picture for the page.

    Attributes:
        title: what it shows, with the unit.
        note: how to read it; may be empty.
        png: the picture.
    """

    title: str
    note: str
    png: bytes


def colour_of(index: int) -> str:
    """The colour of the run at this place of the list."""
    return COLOURS[index % len(COLOURS)]


def dash_of(index: int) -> str:
    """The line style of the run at this place; it changes where colours come round again."""
    return _DASHES[index // len(COLOURS) % len(_DASHES)]


def pictures_of(runs: Sequence[Run], rows: Sequence[Figures]) -> list[Picture]:
    """Every picture that the runs have data for."""
    drawn = [
        _memory(runs),
        _phases(rows),
        _curve(runs, "train/loss", "Loss", "The batch's mean loss, at the steps that recorded it."),
        _curve(runs, "amp/loss_scale", "Loss scale", "It falls at each skipped step.", powers_of_two=True),
    ]
    return [picture for picture in drawn if picture is not None]


def _memory(runs: Sequence[Run]) -> Picture | None:
    tag = "memory/step_peak_gib"
    if not any(run.finite(tag) for run in runs):
        tag = "memory/allocated_gib"
    highest = max((max(run.finite(tag), default=0.0) for run in runs), default=0.0)
    unit, factor = _unit(highest)
    note = "The largest allocated within each step. " if tag.endswith("step_peak_gib") else "Allocated between steps. "
    figure, axes = _axes()
    drawn = _lines(axes, runs, tag, factor)
    budgets = [(index, run.last("memory/budget_gib")) for index, run in enumerate(runs)]
    for index, budget in budgets:
        if math.isfinite(budget) and budget <= 3 * highest:
            axes.axhline(budget * factor, color=colour_of(index), linewidth=1, linestyle=(0, (1, 3)))
            note += "Fine dots: a run's budget. " if "Fine dots" not in note else ""
    if not drawn:
        return None
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    return Picture(f"Memory of each step, {unit}", note.strip(), _png(figure))


def _phases(rows: Sequence[Figures]) -> Picture | None:
    known = [size for row in rows for size in (*row.phase_bytes, row.base_bytes) if math.isfinite(size)]
    if not any(math.isfinite(size) for row in rows for size in row.phase_bytes):
        return None
    unit, factor = _unit(max(known) / 2**30)
    figure, axes = _axes()
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        heights = [size / 2**30 * factor if math.isfinite(size) else 0.0 for size in row.phase_bytes]
        places = [phase - 0.4 + width * (index + 0.5) for phase in range(len(PHASES))]
        bars = axes.bar(places, heights, width * 0.86, color=colour_of(index), hatch=None if index < 8 else "///")
        if len(rows) <= 6:
            axes.bar_label(bars, fmt="%.3g", fontsize=7, color=_INK, padding=2)
        if math.isfinite(row.base_bytes):
            base = row.base_bytes / 2**30 * factor
            edges = [place - width * 0.43 for place in places], [place + width * 0.43 for place in places]
            axes.hlines([base] * len(PHASES), *edges, color="white", linewidth=1.4)
    axes.set_xticks(range(len(PHASES)), ["forward", "backward", "optimizer step"])
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)
    note = "The highest of the run. White line: what stands between steps (weights, moments)."
    return Picture(f"Peaks by phase, {unit}", note, _png(figure))


def _curve(runs: Sequence[Run], tag: str, title: str, note: str, powers_of_two: bool = False) -> Picture | None:
    figure, axes = _axes()
    if not _lines(axes, runs, tag, 1.0, stepped=powers_of_two):
        return None
    values = [value for run in runs for value in run.finite(tag)]
    if powers_of_two and min(values) > 0:
        axes.set_yscale("log", base=2)
    axes.set_xlabel("step")
    return Picture(title, note, _png(figure))


def _lines(axes: Axes, runs: Sequence[Run], tag: str, factor: float, stepped: bool = False) -> bool:
    """One line a run; False where no run has the tag. Earlier runs are drawn wider, so that equal curves all show."""
    drawn = False
    for index, run in enumerate(runs):
        finite = [(step, value * factor) for step, value in run.points(tag) if math.isfinite(value)]
        if not finite:
            continue
        drawn = True
        steps, values = zip(*finite, strict=True)
        axes.plot(
            steps,
            values,
            color=colour_of(index),
            linestyle=dash_of(index),
            linewidth=1.4 + 3.0 * (len(runs) - 1 - index) / max(len(runs), 3),
            drawstyle="steps-post" if stepped else "default",
            marker="o" if len(finite) <= 2 else None,
            markersize=4,
        )
    return drawn


def _unit(highest_gib: float) -> tuple[str, float]:
    return ("GiB", 1.0) if highest_gib >= 1 else ("MiB", 1024.0)


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b9c0c7")
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=8.5)
    axes.xaxis.label.set_color(_INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
