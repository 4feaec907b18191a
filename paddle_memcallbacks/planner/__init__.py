"""The planner: measured steps, the peak that follows from them for any choice, and the fastest choice under a budget.

Names are loaded on first use: predicting, solving and plan files need no paddle.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# name -> module
_PUBLIC = {
    "Compared": "plan",
    "Facts": "plan",
    "Infeasible": "solver",
    "Plan": "plan",
    "PlanError": "plan_file",
    "Profile": "measured",
    "ProfileError": "measure",
    "Replacement": "measure",
    "SizeProfile": "measured",
    "UnitProfile": "measured",
    "budget_bytes": "device",
    "chunked_cross_entropy": "head",
    "chunked_head": "head",
    "comparison": "tradeoff",
    "correct": "correction",
    "draw_frontier": "tradeoff",
    "facts_of": "facts",
    "frontier": "tradeoff",
    "frontier_text": "tradeoff",
    "least_peak": "solver",
    "load_plan": "plan_file",
    "measured_text": "plan",
    "micro_batch_for_shape": "plan",
    "offer": "plan",
    "peak_part": "peak",
    "plan_mismatches": "plan",
    "plan_of": "solver",
    "predict_peak": "peak",
    "profile": "sizes",
    "profile_batch": "sizes",
    "profile_step": "profiler",
    "replan": "correction",
    "save_plan": "plan_file",
    "shape_scale": "plan",
    "solve": "solver",
    "table_text": "tradeoff",
}

__all__ = list(_PUBLIC)

if TYPE_CHECKING:
    from paddle_memcallbacks.planner.correction import correct, replan
    from paddle_memcallbacks.planner.device import budget_bytes
    from paddle_memcallbacks.planner.facts import facts_of
    from paddle_memcallbacks.planner.head import chunked_cross_entropy, chunked_head
    from paddle_memcallbacks.planner.measure import ProfileError, Replacement
    from paddle_memcallbacks.planner.measured import Profile, SizeProfile, UnitProfile
    from paddle_memcallbacks.planner.peak import peak_part, predict_peak
    from paddle_memcallbacks.planner.plan import (
        Compared,
        Facts,
        Plan,
        measured_text,
        micro_batch_for_shape,
        offer,
        plan_mismatches,
        shape_scale,
    )
    from paddle_memcallbacks.planner.plan_file import PlanError, load_plan, save_plan
    from paddle_memcallbacks.planner.profiler import profile_step
    from paddle_memcallbacks.planner.sizes import profile, profile_batch
    from paddle_memcallbacks.planner.solver import Infeasible, least_peak, plan_of, solve
    from paddle_memcallbacks.planner.tradeoff import comparison, draw_frontier, frontier, frontier_text, table_text


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value
