"""The plan: the micro-batch size and the units that make a step fastest under a budget. Pure; no paddle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil, floor

from paddle_memcallbacks.planner.measured import Profile, SizeProfile
from paddle_memcallbacks.planner.milp import Choices
from paddle_memcallbacks.planner.peak import corrected, peak_part
from paddle_memcallbacks.planner.plan import Plan, size_text

DEFAULT_MARGIN = 0.03


class Infeasible(ValueError):
    """No plan fits the budget.

    Attributes:
        smallest_budget_bytes: the smallest budget that has one.
        plan: the plan at that budget.
        static_bytes: weights, gradients, optimizer state and the batch.
    """

    def __init__(self, message: str, smallest_budget_bytes: int, plan: Plan, static_bytes: int) -> None:
        super().__init__(message)
        self.smallest_budget_bytes = smallest_budget_bytes
        self.plan = plan
        self.static_bytes = static_bytes


def solve(
    profile: Profile,
    budget_bytes: int,
    *,
    margin: float = DEFAULT_MARGIN,
    micro_batch_sizes: Iterable[int] | None = None,
) -> Plan:
    """The plan with the least predicted time whose predicted peak is at most ``budget_bytes * (1 - margin)``.

    Exact: no other choice of units and micro-batch size that fits is faster. Of equally fast ones the largest
    micro-batch and the fewest units are taken.

    Args:
        profile: measured steps.
        budget_bytes: allocated bytes that a step may reach.
        margin: part of the budget that is left free.
        micro_batch_sizes: sizes to choose from; default: every size that slices the profile's batch differently.

    Raises:
        Infeasible: no choice fits.
        ValueError: the margin is not in [0, 1), or a size is out of the profile's reach.
    """
    limit_bytes = limit_of(profile, budget_bytes, margin)
    sizes = _sizes(profile, micro_batch_sizes)
    rows = rows_of(profile)
    best: tuple[float, SizeProfile, tuple[str, ...]] | None = None
    for size in sorted(sizes, key=lambda size: (size.seconds((), rows), -(size.micro_batch_size or 0))):
        if best is not None and size.seconds((), rows) >= best[0]:
            break
        chosen = Choices(size).least_seconds(limit_bytes)
        if chosen is None:
            continue
        seconds = size.seconds(chosen, rows)
        if best is None or seconds < best[0]:
            best = (seconds, size, chosen)
    if best is None:
        raise _infeasible(profile, sizes, budget_bytes, margin)
    return _plan(profile, best[1], best[2], budget_bytes, margin)


def plan_of(
    profile: Profile,
    recompute: Iterable[str],
    micro_batch_size: int | None = None,
    budget_bytes: int | None = None,
    margin: float = DEFAULT_MARGIN,
) -> Plan:
    """The plan that these choices make, whether or not it fits: for tables that compare plans."""
    size = profile.at(micro_batch_size)
    return _plan(profile, size, tuple(recompute), budget_bytes, margin)


def limit_of(profile: Profile, budget_bytes: int, margin: float = DEFAULT_MARGIN) -> int:
    """The largest predicted peak, before correction, that a plan under this budget may have."""
    if not 0 <= margin < 1:
        raise ValueError(f"margin is a part of the budget, in [0, 1), not {margin}")
    most = floor(budget_bytes * (1 - margin))
    limit = floor(most / profile.correction)
    while corrected(profile, limit) > most:
        limit -= 1
    return limit


def rows_of(profile: Profile) -> int | None:
    """Rows of the batch that plans are compared on: the profile's batch, or its largest measured micro-batch."""
    if profile.batch_rows is not None:
        return profile.batch_rows
    return profile.sizes[-1].micro_batch_size


def candidate_sizes(rows: int) -> list[int]:
    """The micro-batch sizes that matter for ``rows`` rows: for every number of slices the smallest that makes it."""
    return sorted({ceil(rows / slices) for slices in range(1, rows + 1)}, reverse=True)


def least_peak(profile: Profile) -> Plan:
    """The plan with the lowest predicted peak, the fastest of those."""
    return _least_peak(profile, _sizes(profile, None))


def _sizes(profile: Profile, wanted: Iterable[int] | None) -> list[SizeProfile]:
    if wanted is None:
        rows, known = rows_of(profile), [s for s in profile.sizes if s.micro_batch_size is not None]
        if rows is None or len(known) < 2:
            return list(profile.sizes)
        wanted = candidate_sizes(rows)
    ceiling = profile.too_large
    return [profile.at(size) for size in wanted if ceiling is None or size < ceiling]


def _plan(profile: Profile, size: SizeProfile, chosen: Iterable[str], budget_bytes: int | None, margin: float) -> Plan:
    names = set(chosen)
    ordered = [unit for unit in size.units if unit.name in names]
    part = peak_part(size, names)
    return Plan(
        recompute=tuple(unit.name for unit in ordered if unit.kind == "recompute"),
        replace=tuple(unit.name for unit in ordered if unit.kind != "recompute"),
        micro_batch_size=size.micro_batch_size,
        predicted_peak_bytes=corrected(profile, part.peak_bytes),
        predicted_step_seconds=size.seconds(names, rows_of(profile)),
        budget_bytes=budget_bytes,
        margin=margin,
        peak_at=part.key,
        batch_rows=profile.batch_rows,
        device=profile.device,
    )


def _infeasible(profile: Profile, sizes: list[SizeProfile], budget_bytes: int, margin: float) -> Infeasible:
    cheapest = _least_peak(profile, sizes)
    smallest = ceil(cheapest.predicted_peak_bytes / (1 - margin))
    while floor(smallest * (1 - margin)) < cheapest.predicted_peak_bytes:
        smallest += 1
    named = [size.micro_batch_size for size in sizes if size.micro_batch_size is not None]
    plan = solve(profile, smallest, margin=margin, micro_batch_sizes=named or None)
    static_bytes = profile.static_bytes
    text = (
        f"no plan fits {size_text(budget_bytes)} less {margin:.0%}: the smallest budget that works is "
        f"{size_text(smallest)}, with {plan.choice_text()} at {plan.predicted_step_seconds:.3g} s a step"
    )
    if static_bytes > budget_bytes * (1 - margin):
        text = (
            f"weights, gradients, optimizer state and the batch alone are {size_text(static_bytes)}, over the budget "
            f"of {size_text(budget_bytes)} less {margin:.0%}: only a smaller model, LoRA, sharding, another optimizer "
            f"(SGD and Momentum keep less than Adam) or AMP O2 helps. {text}"
        )
    return Infeasible(text, smallest, plan, static_bytes)


def _least_peak(profile: Profile, sizes: list[SizeProfile]) -> Plan:
    """Over all sizes; smaller ones first, and a size whose lowest segment is higher already is not searched."""
    plans = []
    for size in sorted(sizes, key=lambda size: size.micro_batch_size or 0):
        choices = Choices(size)
        lowest = choices.least_peak()
        chosen = choices.least_seconds(peak_part(size, lowest).peak_bytes)
        plans.append(_plan(profile, size, lowest if chosen is None else chosen, None, 0.0))
        if len(plans) > 1 and plans[-1].predicted_peak_bytes > plans[-2].predicted_peak_bytes:
            break
    return min(plans, key=lambda plan: (plan.predicted_peak_bytes, plan.predicted_step_seconds))


def all_choices(profile: Profile) -> Iterator[tuple[str, ...]]:
    """Every allowed set of the profile's units: for tests that compare with brute force. 2**n of them."""
    units = [unit for unit in profile.units if unit.calls]
    for bits in range(1 << len(units)):
        chosen = tuple(unit.name for i, unit in enumerate(units) if bits >> i & 1)
        if not any(unit.excludes & set(chosen) for unit in units if unit.name in chosen):
            yield chosen
