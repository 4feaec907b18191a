"""Lining runs up, phases and owners, on hand-made markers."""

from __future__ import annotations

from paddle_memcallbacks.planner.markers import (
    BACKWARD_BEGIN,
    END,
    FORWARD_BEGIN,
    FORWARD_END,
    STEP_BEGIN,
    STEP_END,
    Call,
    Marker,
)
from paddle_memcallbacks.planner.timeline import line_up, owners_of, phases_of


def marker(kind: str, unit: str = "", peak: int = 0, inside: tuple[str, ...] | None = None, call: int = 0) -> Marker:
    return Marker(kind, unit, call, (unit,) if inside is None else inside, 0, peak, 0.0)


STEP = [
    marker(FORWARD_BEGIN, "a"),
    marker(FORWARD_END, "a"),
    marker(FORWARD_BEGIN, "b"),
    marker(FORWARD_BEGIN, "b.in", inside=("b", "b.in")),
    marker(FORWARD_END, "b.in", inside=("b", "b.in")),
    marker(FORWARD_END, "b"),
    marker(BACKWARD_BEGIN, "b"),
    marker(BACKWARD_BEGIN, "b.in", inside=("b", "b.in")),
    marker(BACKWARD_BEGIN, "a"),
    marker(STEP_BEGIN),
    marker(STEP_END),
    marker(END),
]


def test_phases() -> None:
    short = {"forward": "f", "backward": "b", "step": "s"}
    assert "".join(short[phase] for phase in phases_of(STEP)) == "ffffffbbbbsf"
    twice = [*STEP[:9], *(marker(m.kind, m.unit, inside=m.inside, call=1) for m in STEP)]
    assert "".join(short[phase] for phase in phases_of(twice)) == "ffffffbbbfffffffbbbbsf"[:9] + "ffffffbbbbsf"


def test_owners_run_around_and_after_units_and_follow_second_passes() -> None:
    passes = [(7, Call("b", 0)), (8, Call("b.in", 0)), (9, Call("a", 0))]
    owners = owners_of(STEP, passes)
    assert owners[:7] == [(), ("a",), ("a",), ("b",), ("b", "b.in"), ("b", "b.in"), ("b",)]
    assert owners[7:10] == [("b",), ("b", "b.in"), ("a",)]
    # both come to their second pass in one segment: the later one counts
    assert owners_of(STEP, [(7, Call("b", 0)), (7, Call("b.in", 0))])[7] == ("b", "b.in")


def test_runs_that_agree_are_left_as_they_are() -> None:
    first, second = line_up([STEP, STEP])
    assert list(first.markers) == STEP and first.index == tuple(range(len(STEP))) == second.index


def test_markers_that_one_run_lacks_are_joined_to_the_next() -> None:
    other = [m for m in STEP if m.kind != BACKWARD_BEGIN or m.unit != "b"]
    peaks = [marker(m.kind, m.unit, 10 * i, m.inside) for i, m in enumerate(STEP)]
    full, cut = line_up([peaks, other])
    assert [m.key for m in full.markers] == [m.key for m in cut.markers] == [m.key for m in other]
    assert full.markers[6].peak_bytes == 70 and full.markers[7].peak_bytes == 80
    assert full.index == (0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10)
    shrunk = [marker(m.kind, m.unit, 100 - i, m.inside) for i, m in enumerate(STEP)]
    assert line_up([shrunk, other])[0].markers[6].peak_bytes == 94
