"""From what was watched in one step to what any choice would hold: pure, no paddle.

A storage lives while anything needs it. An operator outside all units, or a Python variable, needs it whatever is
chosen. An operator inside a unit needs it unless the unit is recomputed; then the unit keeps its inputs until backward
has passed it, and from its second pass on it holds copies of what its operators save.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from paddle_memcallbacks.planner.measured import Condition, Holding


@dataclass(frozen=True)
class Claim:
    """Why a storage is alive in the segments ``first`` to ``last``.

    Attributes:
        storage: which one. Copies have names of their own.
        storage_bytes: its size.
        first: index of the first segment.
        last: index of the last segment.
        condition: when the claim holds; None: whatever is chosen.
    """

    storage: object
    storage_bytes: int
    first: int
    last: int
    condition: Condition | None = None


def holdings_of(claims: Iterable[Claim]) -> tuple[Holding, ...]:
    """Holdings that depend on the choice, storages with the same conditions and segments added up.

    A storage is counted once however many claims it has; one that is alive whatever is chosen is left out.
    """
    by_storage: dict[object, list[Claim]] = defaultdict(list)
    for claim in claims:
        if claim.first <= claim.last:
            by_storage[claim.storage].append(claim)
    sums: dict[tuple[int, int, frozenset[Condition]], int] = defaultdict(int)
    for group in by_storage.values():
        for first, last, live in _stretches(group):
            conditions = [claim.condition for claim in live if claim.condition is not None]
            if len(conditions) == len(live) and not _always(conditions):
                sums[first, last, _needed(conditions)] += max(claim.storage_bytes for claim in live)
    ordered = sorted(sums.items(), key=lambda item: item[0][:2])
    return tuple(Holding(held_bytes, *key) for key, held_bytes in ordered if held_bytes)


def held_bytes(holdings: Iterable[Holding], segments: int, chosen: Iterable[str]) -> list[int]:
    """Conditional bytes that each of ``segments`` segments holds when the units ``chosen`` are recomputed."""
    units = frozenset(chosen)
    steps = [0] * (segments + 1)
    for holding in holdings:
        if holding.alive(units):
            steps[holding.first] += holding.held_bytes
            steps[holding.last + 1] -= holding.held_bytes
    return list(accumulate(steps))[:segments]


def _stretches(claims: list[Claim]) -> Iterator[tuple[int, int, list[Claim]]]:
    """The longest runs of segments over which the same claims hold."""
    cuts = sorted({claim.first for claim in claims} | {claim.last + 1 for claim in claims})
    for first, after in zip(cuts, cuts[1:], strict=False):
        live = [claim for claim in claims if claim.first <= first and claim.last >= after - 1]
        if live:
            yield first, after - 1, live


def _always(conditions: list[Condition]) -> bool:
    """Whether one of the conditions is true for every choice: saved inside a unit, and kept by the unit if not."""
    needed = {condition.needs for condition in conditions if not condition.none_of}
    return any(condition.needs is None and condition.none_of <= needed for condition in conditions)


def _needed(conditions: list[Condition]) -> frozenset[Condition]:
    """Without the conditions that another one implies."""
    kinds = set(conditions)
    return frozenset(c for c in kinds if not any(c is not other and c.implies(other) for other in kinds))
