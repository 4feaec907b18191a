"""The frontier, the plans beside it, its picture, and planning again after a measurement; no paddle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paddle_memcallbacks.planner.correction import correct, replan
from paddle_memcallbacks.planner.peak import predict_peak
from paddle_memcallbacks.planner.plan import Facts
from paddle_memcallbacks.planner.solver import Infeasible, all_choices, least_peak, solve
from paddle_memcallbacks.planner.tradeoff import (
    baseline,
    comparison,
    draw_frontier,
    frontier,
    frontier_text,
    halving,
    table_text,
)
from tests.planner.random_profiles import random_profile
from tests.planner.test_solve import two_sizes


def test_the_frontier_rises_in_memory_and_falls_in_time() -> None:
    profile = two_sizes(3, 6, rows=8)
    seen: list[int] = []
    plans = frontier(profile, points=9, on_progress=lambda done, total, text: seen.append(done))
    assert seen == list(range(9))
    assert len(plans) > 2
    seconds = [plan.predicted_step_seconds for plan in plans]
    assert seconds == sorted(seconds, reverse=True) and len(set(seconds)) == len(seconds)
    for plan in plans:
        assert plan.predicted_peak_bytes <= (plan.budget_bytes or 0)
        assert plan.predicted_step_seconds == solve(profile, plan.budget_bytes or 0, margin=0.0).predicted_step_seconds
    assert plans[0].predicted_peak_bytes == least_peak(profile).predicted_peak_bytes


def test_least_peak_is_the_least() -> None:
    for seed in range(10):
        profile = random_profile(seed, 6, nested=seed % 2 == 0)
        lowest = min(predict_peak(profile, chosen) for chosen in all_choices(profile))
        assert least_peak(profile).predicted_peak_bytes == lowest


def test_comparison_and_table() -> None:
    profile = two_sizes(2, 5, rows=8)
    plan = solve(profile, predict_peak(profile, (), 8) // 2, margin=0.0)
    rows = {row.name: row for row in comparison(profile, plan)}
    assert rows["nothing recomputed"].peak_bytes == predict_peak(profile, (), 8)
    assert rows["everything recomputed"].units == 5
    assert rows["micro-batches of 1"].micro_batch_size == 1
    text = table_text(list(rows.values()))
    assert "everything recomputed" in text and len(text.splitlines()) == len(rows) + 1
    assert len(frontier_text(frontier(profile, 4)).splitlines()) >= 2


def test_halving_stops_where_it_fits() -> None:
    profile = two_sizes(2, 5, rows=8)
    plan = halving(profile, predict_peak(profile, (), 4))
    assert plan is not None and plan.micro_batch_size == 4 and plan.recompute == ()
    assert halving(profile, 1) is None
    assert baseline(profile).micro_batch_size == 8


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    profile = two_sizes(2, 5, rows=8)
    plans = frontier(profile, 4)
    draw_frontier(plans, comparison(profile, plans[0]), tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_plan_over_its_budget_is_planned_again_with_what_was_measured() -> None:
    profile = random_profile(4, 8)
    budget = predict_peak(profile) - 100_000
    plan = replace(solve(profile, budget, margin=0.0), facts=Facts(model="M"))
    assert replan(profile, plan, budget, budget, margin=0.0) is plan
    measured = round(plan.predicted_peak_bytes * 1.15)
    assert measured > budget
    again = replan(profile, plan, measured, budget, margin=0.0)
    assert set(again.recompute) != set(plan.recompute)
    assert again.predicted_peak_bytes <= budget
    assert predict_peak(profile, again.recompute) * 1.15 * 0.999 <= budget
    assert again.facts == plan.facts
    with pytest.raises(Infeasible):
        replan(profile, plan, 100 * measured, budget, margin=0.0)


def test_a_prediction_is_never_lowered() -> None:
    profile = random_profile(4, 4)
    assert correct(profile, 100, 90).correction == 1.0
    assert correct(correct(profile, 100, 110), 100, 110).correction == pytest.approx(1.21)
