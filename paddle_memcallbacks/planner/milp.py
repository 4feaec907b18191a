"""The exact choice of units at one micro-batch size: a small mixed-integer program, solved by HiGHS.

After torch.distributed._tools.sac_ilp, whose formulation is one 0/1 variable a unit and a linear row for each point of
the step. Here a storage that several units need is one variable more: at least as large as each of its conditions.
Rows are added only when a solution breaks them, and every solution is checked in exact integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from paddle_memcallbacks.planner.measured import Condition, SizeProfile
from paddle_memcallbacks.planner.peak import segment_peaks

# bytes to KiB: half a byte, the least that decides in integers, is then far above the solver's tolerance
_UNIT = 1024.0
_ROUNDS = 1000
# rows added to the program at a time: few, since most of a step's segments never decide
_ROWS_A_ROUND = 6
# near-identical units can make the last proof of optimality endless: after the first time a solution that is proven to
# lie within the gap is taken, after the second any
_PROOF_SECONDS, _MOST_SECONDS = 2.0, 10.0
_GAP = 1e-3
# the search for fewer units among equally fast plans gives up after this
_TIE_SECONDS = 0.5


@dataclass
class _Row:
    """One linear row: constant + coefficients of choices + coefficients of shared storages, in bytes."""

    constant: int = 0
    choices: dict[str, int] = field(default_factory=dict)
    shared: dict[frozenset[Condition], int] = field(default_factory=dict)


class Choices:
    """The choices of one size: least seconds under a limit, or the least peak.

    Args:
        size: the profile at a micro-batch size.
    """

    def __init__(self, size: SizeProfile) -> None:
        self.size = size
        self.names = [unit.name for unit in size.units if unit.calls]
        self._seconds = {unit.name: unit.recompute_seconds for unit in size.units}
        known = set(self.names)
        nested = {tuple(sorted((unit.name, other))) for unit in size.units for other in unit.excludes}
        self._exclusive = sorted(pair for pair in nested if known.issuperset(pair))
        self._rows: dict[int, _Row] = {}

    def least_seconds(self, limit_bytes: int) -> tuple[str, ...] | None:
        """The units whose recompute keeps every peak within ``limit_bytes`` at the least cost, fewest of equals.

        Exact; where the proof takes over 2 seconds, proven to be within 0.1 % of the least. None if no choice fits.
        """
        chosen = self._within(limit_bytes, [self._seconds[name] for name in self.names], None)
        if not chosen:
            return chosen
        cost = sum(self._seconds[name] for name in chosen)
        fewer = self._within(limit_bytes, [1.0] * len(self.names), cost)
        return fewer if fewer is not None and len(fewer) < len(chosen) else chosen

    def least_peak(self) -> tuple[str, ...]:
        """The units whose recompute gives the lowest peak."""
        active = {_highest(segment_peaks(self.size))}
        best: tuple[str, ...] = ()
        best_peak = max(segment_peaks(self.size))
        for _ in range(_ROUNDS):
            chosen = self._solve(sorted(active), None, [0.0] * len(self.names))
            if chosen is None:
                break
            peaks = segment_peaks(self.size, chosen)
            if max(peaks) < best_peak:
                best, best_peak = chosen, max(peaks)
            found = {_highest(peaks)} - active
            if not found:
                break
            active |= found
        return best

    def _within(self, limit_bytes: int, costs: Sequence[float], most_seconds: float | None) -> tuple[str, ...] | None:
        """Minimise the costs under the limit, adding rows as they are broken."""
        limits: dict[int, int] = {}
        chosen: tuple[str, ...] | None = ()
        for _ in range(_ROUNDS):
            peaks = segment_peaks(self.size, chosen or ())
            broken = [i for i, peak in enumerate(peaks) if peak > limit_bytes]
            if not broken and (chosen or most_seconds is None):
                return chosen
            for i in sorted(broken, key=lambda i: -peaks[i])[:_ROWS_A_ROUND]:
                # a row that is in the program already was met within the solver's tolerance only
                limits[i] = limits[i] - (peaks[i] - limit_bytes) if i in limits else limit_bytes
            chosen = self._solve(sorted(limits), limits, costs, most_seconds)
            if chosen is None:
                return None
        return None

    def _solve(
        self,
        segments: Sequence[int],
        limits: dict[int, int] | None,
        costs: Sequence[float],
        most_seconds: float | None = None,
    ) -> tuple[str, ...] | None:
        """One program over these segments' rows; without limits their largest peak is what is minimised."""
        rows = [self._row(i) for i in segments]
        shared = sorted({key for row in rows for key in row.shared}, key=_order)
        columns = {name: i for i, name in enumerate(self.names)}
        columns_shared = {key: len(self.names) + i for i, key in enumerate(shared)}
        width = len(self.names) + len(shared) + 1
        program = _Program(width)
        for row, i in zip(rows, segments, strict=True):
            entries = {columns[name]: value / _UNIT for name, value in row.choices.items()}
            entries.update({columns_shared[key]: value / _UNIT for key, value in row.shared.items()})
            if limits is None:
                program.at_most({**entries, width - 1: -1.0}, -row.constant / _UNIT)
            else:
                program.at_most(entries, (limits[i] + 0.5 - row.constant) / _UNIT)
        for key in shared:
            for condition in key:
                program.at_least(*_condition_row(condition, columns, columns_shared[key]))
        for pair in self._exclusive:
            program.at_most({columns[name]: 1.0 for name in pair}, 1.0)
        scale = max((abs(seconds) for seconds in self._seconds.values()), default=0.0) or 1.0
        if most_seconds is not None:
            seconds = {columns[name]: self._seconds[name] / scale for name in self.names}
            program.at_most(seconds, most_seconds / scale + 1e-9)
        top = max(map(abs, costs), default=0.0) or 1.0
        objective = np.zeros(width)
        objective[: len(self.names)] = np.array(costs) / top
        if limits is None:
            objective[-1] = 1.0
        integer = len(self.names)
        values = program.minimise(objective, integer, _TIE_SECONDS if most_seconds is not None else _PROOF_SECONDS)
        return None if values is None else tuple(n for n, v in zip(self.names, values, strict=False) if v > 0.5)

    def _row(self, index: int) -> _Row:
        """The peak of a segment as a linear row."""
        if index in self._rows:
            return self._rows[index]
        segment = self.size.segments[index]
        row = _Row(segment.transient_bytes)
        known = set(self.names)
        for owner, transient_bytes in segment.owner_transient_bytes.items():
            if owner in known:
                row.choices[owner] = row.choices.get(owner, 0) + transient_bytes - segment.transient_bytes
        for holding in self.size.holdings:
            if holding.first <= index <= holding.last:
                _add(row, holding.held_bytes, holding.any_of, known)
        self._rows[index] = row
        return row


class _Program:
    """Rows of a mixed-integer program."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[dict[int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def at_most(self, entries: dict[int, float], bound: float) -> None:
        self._rows.append(entries)
        self._low.append(-np.inf)
        self._high.append(bound)

    def at_least(self, entries: dict[int, float], bound: float) -> None:
        self._rows.append(entries)
        self._low.append(bound)
        self._high.append(np.inf)

    def minimise(self, objective: np.ndarray, integers: int, seconds: float) -> np.ndarray | None:
        """The first ``integers`` columns are 0 or 1, the last is free from 0 up, those between lie in 0 to 1."""
        matrix = lil_matrix((len(self._rows), self._width))
        for i, row in enumerate(self._rows):
            for column, value in row.items():
                matrix[i, column] = value
        kinds = np.zeros(self._width)
        kinds[:integers] = 1
        high = np.ones(self._width)
        high[-1] = np.inf
        constraints = LinearConstraint(matrix.tocsr(), self._low, self._high)

        def attempt(time_limit: float) -> Any:
            return milp(
                objective,
                constraints=constraints,
                integrality=kinds,
                bounds=Bounds(np.zeros(self._width), high),
                options={"mip_rel_gap": 0.0, "time_limit": time_limit},
            )

        result = attempt(seconds)
        out_of_time = result.status == 1
        if out_of_time and seconds >= _PROOF_SECONDS and (result.x is None or result.mip_gap > _GAP):
            result = attempt(_MOST_SECONDS)
        return None if result.x is None else np.asarray(result.x)


def _add(row: _Row, held_bytes: int, any_of: frozenset[Condition], known: set[str]) -> None:
    """Add a holding to a row: exactly linear where one simple condition decides, else through a shared column."""
    if len(any_of) == 1:
        (condition,) = any_of
        if condition.needs is None:
            row.constant += held_bytes
            for name in condition.none_of & known:
                row.choices[name] = row.choices.get(name, 0) - held_bytes
            return
        if condition.needs not in known:
            return
        if not condition.none_of & known:
            row.choices[condition.needs] = row.choices.get(condition.needs, 0) + held_bytes
            return
    row.shared[any_of] = row.shared.get(any_of, 0) + held_bytes


def _condition_row(condition: Condition, columns: dict[str, int], own: int) -> tuple[dict[int, float], float]:
    """own >= [needs] - sum(none_of), as entries and a lower bound."""
    entries = {own: 1.0}
    for name in condition.none_of:
        if name in columns:
            entries[columns[name]] = 1.0
    if condition.needs is None:
        return entries, 1.0
    if condition.needs in columns:
        entries[columns[condition.needs]] = entries.get(columns[condition.needs], 0.0) - 1.0
    return entries, 0.0


def _order(key: frozenset[Condition]) -> list[tuple[str, list[str]]]:
    return sorted((condition.needs or "", sorted(condition.none_of)) for condition in key)


def _highest(peaks: Sequence[int]) -> int:
    return max(range(len(peaks)), key=peaks.__getitem__)
