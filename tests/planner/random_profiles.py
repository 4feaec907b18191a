"""Random profiles with everything a real one may have: shared storages, leftovers, nested choices, several sizes."""

from __future__ import annotations

import random

from paddle_memcallbacks.planner.measured import Condition, Holding, Profile, Segment, SizeProfile, UnitProfile


def random_size(
    rng: random.Random, units: int, *, nested: bool = False, micro_batch_size: int | None = None
) -> SizeProfile:
    """A step of ``units`` units in a chain, forward then backward."""
    names = [f"layers.{i}" for i in range(units)]
    parents = {f"layers.{i}.mlp": f"layers.{i}" for i in range(units) if nested and rng.random() < 0.5}
    count = 2 * units
    holdings, segments, profiles = [], [], []
    for i, name in enumerate(names):
        first, last = i + 1, count - 1 - i
        size = rng.randint(1, 400) * 1000 + rng.randint(0, 999)
        holdings.append(Holding(size, first, last, _any(Condition(None, frozenset([name])))))
        child = f"{name}.mlp"
        if child in parents:
            holdings.append(Holding(size // 2, first, last, _any(Condition(None, frozenset([name, child])))))
        if i and rng.random() < 0.5:
            # the output of the unit before, saved by it and kept by this one
            shared = _any(Condition(None, frozenset([names[i - 1]])), Condition(name))
            holdings.append(Holding(rng.randint(1, 100_000), first, last, shared))
        if i + 1 < units and rng.random() < 0.5:
            # kept until the next recomputed unit's second pass
            since = frozenset(names[max(0, i - 2) : i])
            holdings.append(Holding(rng.randint(1, 100_000), last + 1, count - 1, _any(Condition(name, since))))
    for index in range(count):
        unit = index if index < units else count - 1 - index
        name, plain = names[unit], rng.randint(500_000, 900_000)
        owners = {name: plain + rng.randint(-50_000, 400_000)}
        if f"{name}.mlp" in parents:
            owners[f"{name}.mlp"] = plain + rng.randint(-50_000, 200_000)
        segments.append(Segment(f"segment {index}", "forward" if index < units else "backward", plain, owners))
    for name in [*names, *parents]:
        excludes = {other for other, parent in parents.items() if parent == name}
        if name in parents:
            excludes.add(parents[name])
        seconds = rng.choice([0.0, 0.01, 0.02]) if rng.random() < 0.3 else rng.random()
        profiles.append(UnitProfile(name, 10, 1, seconds, 2 * seconds, seconds, excludes=frozenset(excludes)))
    return SizeProfile(micro_batch_size, tuple(segments), tuple(holdings), tuple(profiles), 1.0, 0.1, 500_000)


def random_profile(seed: int, units: int, *, nested: bool = False) -> Profile:
    """A profile at one size."""
    return Profile((random_size(random.Random(seed), units, nested=nested),))


def _any(*conditions: Condition) -> frozenset[Condition]:
    return frozenset(conditions)
