"""From the markers of a step's runs to its profile: pure, over markers and what one run saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paddle_memcallbacks.planner.claims import StepClaims
from paddle_memcallbacks.planner.holdings import held_bytes, holdings_of
from paddle_memcallbacks.planner.markers import (
    BACKWARD_BEGIN,
    FORWARD_BEGIN,
    FORWARD_END,
    STEP_BEGIN,
    STEP_END,
    Call,
    Marker,
)
from paddle_memcallbacks.planner.measured import Segment, SizeProfile, UnitProfile
from paddle_memcallbacks.planner.saved import Watched
from paddle_memcallbacks.planner.timeline import line_up, owners_of, phases_of

# what recomputing costs beside the forward itself (random states, hooks) stays within these multiples of it
_LEAST_EXTRA, _MOST_EXTRA = 0.7, 2.0


@dataclass(frozen=True)
class Run:
    """One measured run: the choices that were on in it, and its markers."""

    chosen: tuple[str, ...]
    markers: Sequence[Marker]


@dataclass(frozen=True)
class StepRuns:
    """The runs of one step at one size.

    Attributes:
        watched: what the watched run saved; nothing chosen in it.
        watched_markers: that run's markers.
        plain: runs with nothing chosen; the first one's peaks count.
        levels: runs with choices on; together they hold every choice once, nested ones in different runs.
        choice_of: layer name -> choice name.
        micro_batches: micro-batches in each run.
    """

    watched: Watched
    watched_markers: Sequence[Marker]
    plain: Sequence[Run]
    levels: Sequence[Run]
    choice_of: Mapping[str, str]
    micro_batches: int = 1


def build_size(runs: StepRuns, micro_batch_size: int | None, excludes: Mapping[str, frozenset[str]]) -> SizeProfile:
    """The profile of a step.

    Args:
        runs: its measured runs.
        micro_batch_size: rows of a micro-batch, where known.
        excludes: choice -> choices that are nested with it.
    """
    watched_line, plain, *levels = line_up(
        [runs.watched_markers, runs.plain[0].markers, *(run.markers for run in runs.levels)]
    )
    watched = _moved(runs.watched, watched_line.index)
    reader = StepClaims(watched, plain.markers, runs.choice_of)
    count = len(plain.markers)
    kept = _kept_bytes(reader, plain.markers, [line.markers for line in levels], runs)
    holdings = holdings_of(reader.claims(kept))
    held = held_bytes(holdings, count, ())
    held_in = [held_bytes(holdings, count, run.chosen) for run in runs.levels]
    owners = owners_of(plain.markers, reader.second_passes())
    segments = []
    for i, (marker, phase) in enumerate(zip(plain.markers, phases_of(plain.markers), strict=True)):
        own = {runs.choice_of.get(name, name) for name in owners[i]}
        transients = {
            name: levels[k].markers[i].peak_bytes - held_in[k][i]
            for k, run in enumerate(runs.levels)
            for name in run.chosen
            if name in own
        }
        segments.append(Segment(marker.key, phase, marker.peak_bytes - held[i], transients))
    return SizeProfile(
        micro_batch_size=micro_batch_size,
        segments=tuple(segments),
        holdings=holdings,
        units=tuple(_units(runs, plain.markers, [line.markers for line in levels], owners, excludes)),
        # the watched run does the same work and more
        micro_seconds=min(_micro_seconds(markers) for markers in _timed(runs)) / runs.micro_batches,
        step_seconds=min(_optimizer_seconds(run.markers) for run in runs.plain),
        static_bytes=_static_bytes(plain.markers),
        micro_batches=runs.micro_batches,
    )


def unexplained_bytes(size_runs: StepRuns) -> int:
    """The largest difference, over all markers, between what was held in a run and what the holdings say.

    Zero where the profile explains every byte; a check of the profiler, in tests and benchmarks.
    """
    lines = line_up([size_runs.watched_markers, size_runs.plain[0].markers, *(run.markers for run in size_runs.levels)])
    watched = _moved(size_runs.watched, lines[0].index)
    reader = StepClaims(watched, lines[1].markers, size_runs.choice_of)
    levels = [line.markers for line in lines[2:]]
    kept = _kept_bytes(reader, lines[1].markers, levels, size_runs)
    differences = _differences(reader, lines[1].markers, levels, size_runs, kept)
    return max((abs(value) for row in differences for value in row), default=0)


def _kept_bytes(
    reader: StepClaims, plain: Sequence[Marker], levels: Sequence[Sequence[Marker]], runs: StepRuns
) -> dict[Call, int]:
    """What every call keeps beside its inputs when its unit is recomputed: measured, less what the claims explain."""
    differences = _differences(reader, plain, levels, runs, {})
    kept: dict[Call, int] = {}
    for begin, end, call in _calls(plain):
        name = runs.choice_of.get(call.unit, call.unit)
        for row, run in zip(differences, runs.levels, strict=True):
            if name in run.chosen and row[begin] != row[end]:
                kept[call] = row[begin] - row[end]
    return kept


def _differences(
    reader: StepClaims,
    plain: Sequence[Marker],
    levels: Sequence[Sequence[Marker]],
    runs: StepRuns,
    kept: dict[Call, int],
) -> list[list[int]]:
    """For each level and marker: held plainly less held in the level's run, less what the claims say it should be."""
    count = len(plain)
    holdings = holdings_of(reader.claims(kept, instant=True))
    # what is alive at a marker is alive where the next segment begins
    base = [*held_bytes(holdings, count, ())[1:], 0]
    rows = []
    for markers, run in zip(levels, runs.levels, strict=True):
        chosen = [*held_bytes(holdings, count, run.chosen)[1:], 0]
        rows.append([plain[i].held_bytes - markers[i].held_bytes - (base[i] - chosen[i]) for i in range(count - 1)])
    return rows


def _calls(markers: Sequence[Marker]) -> Iterator[tuple[int, int, Call]]:
    """(index of its begin, index of its end, call) for every call that ended."""
    begun: dict[Call, int] = {}
    for i, marker in enumerate(markers):
        call = Call(marker.unit, marker.call)
        if marker.kind == FORWARD_BEGIN:
            begun[call] = i
        elif marker.kind == FORWARD_END and call in begun:
            yield begun[call], i, call


def _units(
    runs: StepRuns,
    plain: Sequence[Marker],
    levels: Sequence[Sequence[Marker]],
    owners: Sequence[tuple[str, ...]],
    excludes: Mapping[str, frozenset[str]],
) -> Iterator[UnitProfile]:
    name_of = lambda unit: runs.choice_of.get(unit, unit)
    level_of = {name: k for k, run in enumerate(runs.levels) for name in run.chosen}
    calls: dict[str, list[tuple[int, int]]] = {}
    for begin, end, call in sorted(_calls(plain)):
        calls.setdefault(name_of(call.unit), []).append((begin, end))
    order = [name for name in calls if name in level_of] + [name for name in level_of if name not in calls]
    scales = [_extra_scale(run, calls, runs) for run in runs.levels]
    n = runs.micro_batches
    for name in order:
        spans = calls.get(name, [])
        markers = levels[level_of[name]]
        forward_seconds = _forward_seconds(runs, name)
        yield UnitProfile(
            name=name,
            activation_bytes=sum(plain[e].held_bytes - plain[b].held_bytes for b, e in spans) // n,
            kept_bytes=sum(markers[e].held_bytes - markers[b].held_bytes for b, e in spans) // n,
            forward_seconds=forward_seconds / n,
            backward_seconds=_backward_seconds(plain, owners, name, name_of) / n,
            recompute_seconds=forward_seconds * scales[level_of[name]] / n,
            calls=len(spans) // n,
            excludes=excludes.get(name, frozenset()),
            kind="replace" if name in runs.choice_of.values() else "recompute",
        )


def _timed(runs: StepRuns) -> list[Sequence[Marker]]:
    return [*(run.markers for run in runs.plain), runs.watched_markers]


def _forward_seconds(runs: StepRuns, name: str) -> float:
    """The unit's forward passes in the fastest of the runs."""
    return min(
        sum(
            run.markers[end].seconds - run.markers[begin].seconds
            for begin, end, call in _calls(run.markers)
            if runs.choice_of.get(call.unit, call.unit) == name
        )
        for run in (*runs.plain, *(level for level in runs.levels if name not in runs.choice_of.values()))
    )


def _extra_scale(run: Run, calls: Mapping[str, object], runs: StepRuns) -> float:
    """What a recomputed second costs: what the level's run took longer, by the forward seconds of its units."""
    forward = sum(_forward_seconds(runs, name) for name in run.chosen if name in calls)
    if forward <= 0:
        return 1.0
    extra = _micro_seconds(run.markers) - min(_micro_seconds(markers) for markers in _timed(runs))
    return min(max(extra / forward, _LEAST_EXTRA), _MOST_EXTRA)


def _backward_seconds(
    markers: Sequence[Marker], owners: Sequence[tuple[str, ...]], name: str, name_of: object
) -> float:
    assert callable(name_of)
    total = 0.0
    phases = phases_of(markers)
    for i in range(1, len(markers)):
        if markers[i - 1].kind == BACKWARD_BEGIN and phases[i] == "backward" and name in map(name_of, owners[i]):
            total += markers[i].seconds - markers[i - 1].seconds
    return total


def _optimizer_seconds(markers: Sequence[Marker]) -> float:
    begins = [marker.seconds for marker in markers if marker.kind == STEP_BEGIN]
    ends = [marker.seconds for marker in markers if marker.kind == STEP_END]
    return sum(end - begin for begin, end in zip(begins, ends, strict=False))


def _micro_seconds(markers: Sequence[Marker]) -> float:
    """All of the step but the optimizer."""
    return markers[-1].seconds - markers[0].seconds - _optimizer_seconds(markers)


def _static_bytes(markers: Sequence[Marker]) -> int:
    """Allocated where the optimizer steps: every gradient stands, no activation does."""
    steps = [marker.held_bytes for marker in markers if marker.kind == STEP_BEGIN]
    return max(steps) if steps else max(markers[0].held_bytes, markers[-1].held_bytes)


def _moved(watched: Watched, index: Sequence[int]) -> Watched:
    """The watched run's times in the segments of the common line."""
    last = len(index) - 1
    place = lambda time: index[min(time, last)]
    return Watched(
        slots=[
            replace(
                s,
                packed=place(s.packed),
                unpacked=None if s.unpacked is None else place(s.unpacked),
                died=place(s.died),
            )
            for s in watched.slots
        ],
        seen=[replace(s, born=place(s.born), died=place(s.died)) for s in watched.seen],
        arguments=watched.arguments,
        fixed=watched.fixed,
    )
