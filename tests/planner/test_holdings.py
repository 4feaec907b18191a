"""From claims on storages to what a choice holds; no paddle."""

from __future__ import annotations

import itertools
import random

from paddle_memcallbacks.planner.holdings import Claim, held_bytes, holdings_of
from paddle_memcallbacks.planner.measured import Condition

NAMES = "abc"


def kept(*names: str) -> Condition:
    return Condition(None, frozenset(names))


def choices() -> list[frozenset[str]]:
    return [frozenset(c) for n in range(4) for c in itertools.combinations(NAMES, n)]


def test_a_storage_counts_once_however_often_it_is_claimed() -> None:
    claims = [Claim("s", 8, 1, 4, kept("a")), Claim("s", 8, 2, 3, kept("a")), Claim("s", 8, 3, 6, kept("b"))]
    holdings = holdings_of(claims)
    assert held_bytes(holdings, 8, ()) == [0, 8, 8, 8, 8, 8, 8, 0]
    assert held_bytes(holdings, 8, "a") == [0, 0, 0, 8, 8, 8, 8, 0]
    assert held_bytes(holdings, 8, "ab") == [0] * 8


def test_what_always_lives_is_left_out() -> None:
    assert holdings_of([Claim("s", 8, 0, 3, kept("a")), Claim("s", 8, 0, 3)]) == ()
    # saved inside a unit, and kept by it as its input
    assert holdings_of([Claim("s", 8, 0, 3, kept("a")), Claim("s", 8, 0, 3, Condition("a"))]) == ()
    assert holdings_of([Claim("s", 8, 3, 2, kept("a"))]) == ()


def test_a_condition_that_another_implies_is_dropped() -> None:
    (holding,) = holdings_of([Claim("s", 8, 0, 3, kept("a", "b")), Claim("s", 8, 0, 3, kept("a"))])
    assert holding.any_of == {kept("a")}


def test_equal_conditions_are_added_up() -> None:
    (holding,) = holdings_of([Claim("s", 8, 0, 3, kept("a")), Claim("t", 5, 0, 3, kept("a"))])
    assert holding.held_bytes == 13


def test_any_claims_hold_what_a_walk_over_them_says() -> None:
    rng = random.Random(0)
    for _ in range(200):
        claims = []
        for _ in range(rng.randint(1, 12)):
            first = rng.randint(0, 9)
            names = rng.sample(NAMES, rng.randint(1, 2))
            kind = rng.choice([None, kept(*names), Condition(names[0]), Condition(names[0], frozenset(names[1:]))])
            storage = rng.randint(0, 4)
            claims.append(Claim(storage, 10**storage, first, rng.randint(first, 9), kind))
        holdings = holdings_of(claims)
        differences = set()
        for chosen in choices():
            walked = [sum(10**storage for storage in alive) for alive in walk(claims, chosen)]
            found = held_bytes(holdings, 10, chosen)
            differences.add(tuple(w - f for w, f in zip(walked, found, strict=True)))
        # what lives for every choice is in no holding: the same for all choices
        assert len(differences) == 1, claims
        assert min(differences.pop()) >= 0


def walk(claims: list[Claim], chosen: frozenset[str]) -> list[set[int]]:
    alive: list[set[int]] = [set() for _ in range(10)]
    for claim in claims:
        if claim.condition is None or claim.condition.true(chosen):
            for segment in range(claim.first, claim.last + 1):
                alive[segment].add(int(str(claim.storage)))
    return alive
