"""Lining up the markers of several runs of one step: pure, over markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from paddle_memcallbacks.planner.markers import (
    BACKWARD_BEGIN,
    FORWARD_BEGIN,
    FORWARD_END,
    STEP_BEGIN,
    STEP_END,
    Call,
    Marker,
)


@dataclass(frozen=True)
class Line:
    """A run's markers cut down to those that every run has.

    Attributes:
        markers: one a segment; a segment that was joined from several has the largest of their peaks.
        index: for each marker of the run the segment that it fell into.
    """

    markers: tuple[Marker, ...]
    index: tuple[int, ...]


def line_up(runs: Sequence[Sequence[Marker]]) -> list[Line]:
    """The runs with the same markers in the same order. Runs of one step differ only where a unit was replaced."""
    common = [marker.key for marker in runs[0]]
    for run in runs[1:]:
        keys = [marker.key for marker in run]
        if keys != common:
            blocks = SequenceMatcher(None, common, keys, autojunk=False).get_matching_blocks()
            common = [key for block in blocks for key in common[block.a : block.a + block.size]]
    return [_cut(run, common) for run in runs]


def _cut(run: Sequence[Marker], common: Sequence[str]) -> Line:
    markers: list[Marker] = []
    index: list[int] = []
    peak_bytes = 0
    for marker in run:
        index.append(min(len(markers), len(common) - 1))
        peak_bytes = max(peak_bytes, marker.peak_bytes)
        if len(markers) < len(common) and marker.key == common[len(markers)]:
            markers.append(replace(marker, peak_bytes=peak_bytes))
            peak_bytes = 0
    return Line(tuple(markers), tuple(index))


def owners_of(markers: Sequence[Marker], second_passes: Sequence[tuple[int, Call]]) -> list[tuple[str, ...]]:
    """For each segment the units that it runs in, or right after: where their choice changes more than what is held.

    In backward that is the unit that came to its second pass last, and those around it.

    Args:
        markers: one a segment.
        second_passes: (segment, call) in the order in which backward comes to them.
    """
    inside = {Call(m.unit, m.call): m.inside for m in markers if m.kind == FORWARD_BEGIN}
    begun: dict[int, Call] = dict(second_passes)
    owners: list[tuple[str, ...]] = []
    current: tuple[str, ...] = ()
    for i, marker in enumerate(markers):
        if i in begun:
            current = inside[begun[i]]
        owners.append(current)
        if marker.kind in (FORWARD_BEGIN, FORWARD_END):
            current = marker.inside
    return owners


def phases_of(markers: Sequence[Marker]) -> list[str]:
    """For each segment ``forward``, ``backward`` or ``step``.

    What lies between the last unit's forward and the first gradient counts as backward: the loss is at its end.
    """
    phases: list[str] = []
    phase = "forward"
    for i, marker in enumerate(markers):
        if phase == "forward" and marker.kind in (BACKWARD_BEGIN, STEP_BEGIN):
            phase = "backward"
        elif phase == "backward" and marker.kind == FORWARD_BEGIN:
            phase = "forward"
        phases.append("step" if marker.kind == STEP_END else phase)
        if marker.kind == STEP_END and i + 1 < len(markers):
            phase = "forward"
    return phases
