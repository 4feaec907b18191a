"""The memory/time frontier: the fastest plan for every budget, as a table and a picture. Pure but for the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path

from paddle_memcallbacks.planner.measured import Profile
from paddle_memcallbacks.planner.plan import Compared, Plan, size_text
from paddle_memcallbacks.planner.solver import Infeasible, candidate_sizes, least_peak, plan_of, rows_of, solve

Progress = Callable[[int, int, str], None]


def frontier(profile: Profile, points: int = 12, on_progress: Progress | None = None) -> list[Plan]:
    """Plans from the smallest budget that works to the one at which nothing is given up, each faster than the last.

    Args:
        profile: measured steps.
        points: budgets to try, evenly spread.
        on_progress: called with (points done, points in all, what).
    """
    lowest = least_peak(profile).predicted_peak_bytes
    highest = max(lowest, baseline(profile).predicted_peak_bytes)
    plans: list[Plan] = []
    for i in range(points):
        budget = lowest + ceil((highest - lowest) * i / max(1, points - 1))
        if on_progress is not None:
            on_progress(i, points, size_text(budget))
        try:
            plan = solve(profile, budget, margin=0.0)
        except Infeasible:
            continue
        if not plans or plan.predicted_step_seconds < plans[-1].predicted_step_seconds:
            plans.append(plan)
    return plans


def baseline(profile: Profile) -> Plan:
    """Nothing recomputed, the whole batch at once."""
    return plan_of(profile, (), _whole(profile), margin=0.0)


def comparison(profile: Profile, plan: Plan) -> tuple[Compared, ...]:
    """The usual plans beside ``plan``: the baseline, everything recomputed, micro-batches of 1, halving the batch.

    Halving is what Composer's automatic micro-batching does: nothing recomputed, the batch halved until it fits.
    """
    whole = _whole(profile)
    outer = [u.name for u in profile.units if u.kind == "recompute" and not _inside(u.name, u.excludes)]
    plans = [("the plan", plan), ("nothing recomputed", baseline(profile))]
    plans.append(("everything recomputed", plan_of(profile, outer, whole, margin=0.0)))
    if whole is not None and whole > 1:
        sizes = _reachable(profile)
        if 1 in sizes:
            plans.append(("micro-batches of 1", plan_of(profile, (), 1, margin=0.0)))
        halved = halving(profile, plan.budget_bytes) if plan.budget_bytes is not None else None
        if halved is not None:
            plans.append(("halving alone", halved))
    return tuple(
        Compared(
            name,
            other.micro_batch_size,
            len(other.recompute),
            other.predicted_peak_bytes,
            other.predicted_step_seconds,
        )
        for name, other in plans
    )


def halving(profile: Profile, budget_bytes: int) -> Plan | None:
    """Nothing recomputed, the batch halved until its predicted peak is within the budget; None if it never is."""
    size = _whole(profile)
    while size is not None:
        plan = plan_of(profile, (), size, budget_bytes, margin=0.0)
        if plan.predicted_peak_bytes <= budget_bytes:
            return plan
        if size == 1:
            break
        size = ceil(size / 2)
    return None


def table_text(rows: Sequence[Compared]) -> str:
    """The plans as a plain table."""
    head = f"{'plan':<24}{'micro-batch':>12}{'recomputed':>12}{'peak':>12}{'s a step':>12}"
    lines = [
        f"{row.name:<24}{row.micro_batch_size or '-':>12}{row.units:>12}{size_text(row.peak_bytes):>12}"
        f"{row.step_seconds:>12.4g}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def frontier_text(plans: Sequence[Plan]) -> str:
    """The frontier as a plain table."""
    return table_text(
        [
            Compared(
                f"budget {size_text(plan.budget_bytes or plan.predicted_peak_bytes)}",
                plan.micro_batch_size,
                len(plan.recompute) + len(plan.replace),
                plan.predicted_peak_bytes,
                plan.predicted_step_seconds,
            )
            for plan in plans
        ]
    )


def draw_frontier(plans: Sequence[Plan], compared: Sequence[Compared], path: str | Path) -> None:
    """Write the frontier as a PNG: predicted peak against predicted step time, other plans as named points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(
        [plan.predicted_peak_bytes / 2**30 for plan in plans],
        [plan.predicted_step_seconds for plan in plans],
        marker="o",
        drawstyle="steps-post",
        label="fastest plan for a budget",
    )
    for row in compared:
        axes.plot(row.peak_bytes / 2**30, row.step_seconds, "x")
        axes.annotate(
            row.name, (row.peak_bytes / 2**30, row.step_seconds), xytext=(4, 4), textcoords="offset points", fontsize=8
        )
    axes.set_xlabel("predicted peak (GiB)")
    axes.set_ylabel("predicted seconds a step")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(str(path))


def _whole(profile: Profile) -> int | None:
    """The largest micro-batch that the profile reaches: the batch, or the largest measured size."""
    rows = rows_of(profile)
    return rows if rows in _reachable(profile) else profile.sizes[-1].micro_batch_size


def _reachable(profile: Profile) -> set[int]:
    measured = {size.micro_batch_size for size in profile.sizes if size.micro_batch_size is not None}
    rows = rows_of(profile)
    return measured | (set(candidate_sizes(rows)) if rows is not None and len(measured) > 1 else set())


def _inside(name: str, others: frozenset[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)
