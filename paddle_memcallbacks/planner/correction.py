"""A plan that its run has measured: its profile corrected, and planning once more where the budget was exceeded."""

from __future__ import annotations

from dataclasses import replace

from paddle_memcallbacks.planner.measured import Profile
from paddle_memcallbacks.planner.plan import Plan
from paddle_memcallbacks.planner.solver import DEFAULT_MARGIN, solve


def correct(profile: Profile, predicted_bytes: int, measured_bytes: int) -> Profile:
    """The profile with its predictions raised to what a run has measured; they are never lowered.

    Args:
        profile: the one that the prediction came from.
        predicted_bytes: the plan's predicted peak.
        measured_bytes: the largest allocated bytes of a step under the plan.
    """
    ratio = max(1.0, measured_bytes / max(1, predicted_bytes))
    return replace(profile, correction=profile.correction * ratio)


def replan(
    profile: Profile, plan: Plan, measured_bytes: int, budget_bytes: int, margin: float = DEFAULT_MARGIN
) -> Plan:
    """A new plan where the measured peak is over the budget; the same one where it is not.

    Raises:
        Infeasible: no plan fits under the corrected predictions.
    """
    if measured_bytes <= budget_bytes:
        return plan
    again = solve(correct(profile, plan.predicted_peak_bytes, measured_bytes), budget_bytes, margin=margin)
    return replace(again, facts=plan.facts)
