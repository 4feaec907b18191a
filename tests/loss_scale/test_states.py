"""The state machine on plain data: no paddle."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_memcallbacks.loss_scale.states import LossScaleState, Observation, Settings, observe

DEFAULT = Settings()


def drive(flags, *, scale=65536.0, state=None, settings=DEFAULT, decr_every=1, incr_every=2000):
    """Feeds flags through Paddle's own rules for the scale; returns the state and [(step, kind)]."""
    state = state or LossScaleState(scale=scale)
    scale = state.scale
    good = bad = 0
    told = []
    for flag in flags:
        before = scale
        if flag:
            good, bad = 0, bad + 1
            if bad == decr_every:
                scale, bad = max(settings.min_loss_scale, scale / 2), 0
        else:
            good, bad = good + 1, 0
            if good == incr_every:
                scale, good = scale * 2, 0
        step = state.steps + 1
        state, alerts = observe(state, Observation(step, bool(flag), None if scale == before else scale), settings)
        told += [(step, alert.kind, alert) for alert in alerts]
    return state, told


def kinds(told):
    return [(step, kind) for step, kind, _ in told]


def test_a_healthy_run_says_nothing():
    state, told = drive([0] * 500)
    assert told == [] and state.phase == "normal" and state.steps == 500 and state.skips == 0


def test_the_usual_skip_after_growth_is_information():
    state, told = drive([0] * 2000 + [1] + [0] * 100)
    assert kinds(told) == [(2001, "loss_scale_skip")]
    alert = told[0][2]
    assert alert.severity == "info" and "1 of 2001 steps" in alert.message and "131072, now 65536" in alert.message
    assert state.phase == "normal"


@pytest.mark.parametrize("decr_every", [1, 2])
def test_a_high_initial_scale_that_settles_is_information_only(decr_every):
    skips = 10 * decr_every
    state, told = drive([1] * skips + [0] * 40, scale=2.0**24, decr_every=decr_every)
    assert {alert.severity for _, _, alert in told} == {"info"}
    assert kinds(told) == [(1, "loss_scale_settling"), (skips + 20, "loss_scale_settled")]
    assert f"settled at 16384 after {skips} updates" in told[-1][2].message
    assert state.phase == "normal" and state.window.bit_count() == 2 * decr_every  # those from 65536 down


def test_a_fixed_high_scale_never_settles_and_is_a_storm():
    state, told = drive([1] * 5, scale=2.0**24, decr_every=10**9)
    assert kinds(told) == [(1, "loss_scale_settling"), (5, "loss_scale_storm")]
    assert "lower amp.init_loss_scaling" in told[-1][2].remedy


@pytest.mark.parametrize("good_before", [0, 3, 200])
@pytest.mark.parametrize("limit", [1, 2, 5, 9])
def test_a_diverging_run_is_a_storm_at_exactly_the_limit(good_before, limit):
    settings = replace(DEFAULT, max_consecutive_skips=limit)
    state, told = drive([0] * good_before + [1] * limit, settings=settings)
    assert kinds(told)[-1] == (good_before + limit, "loss_scale_storm")
    assert sum(kind == "loss_scale_storm" for _, kind in kinds(told)) == 1
    plural = "" if limit == 1 else "s"
    assert f"skipped {limit} update{plural} in a row" in told[-1][2].message
    assert state.phase == "storm" and state.lost == limit
    _, told = drive([0] * good_before + [1] * (limit - 1) + [0], settings=settings)
    assert "loss_scale_storm" not in [kind for _, kind in kinds(told)]


def test_every_second_step_skipped_is_told_though_the_scale_never_moves():
    state, told = drive([0, 1] * 10, scale=1024.0, decr_every=2)
    assert state.scale == 1024.0
    assert kinds(told)[-1] == (20, "loss_scale_storm")
    assert (
        "skipped 10 of 20 updates (50 %)" in told[-1][2].message
        and "10 updates lost since step 2" in told[-1][2].message
    )


@pytest.mark.parametrize(
    ("flags", "storm"),
    [
        ([1] + [0] * 9, False),  # one of ten is 10 %, and no evidence
        ([0] * 16 + [1, 0, 1, 1], False),  # three of twenty
        (([1, 0, 0, 0] * 5), False),  # five of twenty
        (([1, 0, 0] * 6 + [0, 1]), True),  # seven of twenty
        (([1, 0] * 9 + [0]), False),  # nine of nineteen: too early
        (([1, 0] * 10 + [1]), True),
        (([1] + [0] * 10) * 30, False),  # 9 %
        (([1] + [0] * 7) * 30, True),  # 12.5 %
    ],
)
def test_the_rate_needs_evidence(flags, storm):
    _, told = drive(flags, scale=2.0**16, incr_every=4)
    assert ("loss_scale_storm" in [kind for _, kind in kinds(told)]) is storm


def test_the_rate_looks_back_over_its_window_only():
    old = [1, 1, 1, 0] * 2
    state, told = drive([0] * 30 + old + [0] * 200)
    assert state.skip_rate == 0 and state.window_length <= 100


def test_lost_steps_held_back_things_and_remedy_stand_in_the_text():
    settings = replace(DEFAULT, held=("LR schedule", "EMA"))
    _, told = drive([0] * 50 + [1] * 5, settings=settings)
    alert = told[-1][2]
    assert "5 updates lost since step 51" in alert.message and "LR schedule and EMA did not advance" in alert.message
    assert "amp.custom_black_list" in alert.remedy and "bfloat16" in alert.remedy and "master_weight" in alert.remedy
    assert alert.data["lost"] == 5 and alert.data["loss_scale"] == 2048.0 and alert.severity == "warning"
    _, told = drive([0] * 50 + [1] * 5)
    assert "up to the training loop" in told[-1][2].message


def test_the_floor_is_told_when_a_step_is_skipped_at_it_not_on_the_way():
    state, told = drive([0] * 30 + [1, 1, 1], scale=4.0)
    assert "loss_scale_floor" in [kind for step, kind in kinds(told)] and kinds(told)[-1] == (33, "loss_scale_floor")
    assert state.phase == "floor" and "stands at its floor 1" in told[-1][2].message
    _, told = drive([0] * 30 + [1, 1], scale=4.0)
    assert "loss_scale_floor" not in [kind for _, kind in kinds(told)]


def test_floor_and_storm_are_both_told_whichever_comes_first():
    _, told = drive([0] * 30 + [1] * 6, scale=2.0)
    assert kinds(told)[-2:] == [(32, "loss_scale_floor"), (35, "loss_scale_storm")]
    _, told = drive([0] * 30 + [1], scale=1.0, settings=replace(DEFAULT, max_consecutive_skips=1))
    assert kinds(told) == [(31, "loss_scale_floor"), (31, "loss_scale_storm")]
    _, told = drive([0] * 30 + [1] * 8, scale=64.0)
    assert kinds(told)[-2:] == [(35, "loss_scale_storm"), (37, "loss_scale_floor")]
    assert sum(kind == "loss_scale_floor" for _, kind in kinds(told)) == 1


def test_an_endless_storm_is_told_a_logarithmic_number_of_times():
    state, told = drive([0] * 30 + [1] * 5000)
    later = [step - 30 for step, kind in kinds(told) if kind == "loss_scale_storm_goes_on"]
    # the floor, at the 17th, starts the doubling anew
    assert later == [10, 34, 68, 136, 272, 544, 1088, 2176, 4352]
    assert sum(kind == "loss_scale_storm" for _, kind in kinds(told)) == 1 and state.phase == "floor"
    assert 8 <= len(told) <= 15


def test_recovery_is_told_with_its_cost_and_starts_the_rate_anew():
    state, told = drive([0] * 30 + [1] * 6 + [0] * 19)
    assert state.phase == "storm"
    state, told = drive([0] * 30 + [1] * 6 + [0] * 20)
    step, kind, alert = told[-1]
    assert (step, kind, alert.severity) == (56, "loss_scale_recovered", "info")
    assert "cost 6 updates" in alert.message and "began at step 31" in alert.message
    assert state.phase == "normal" and state.skip_rate == 0 and state.lost == 0
    state, told = drive([0] * 30 + [1], state=state)
    assert "loss_scale_storm" not in [kind for _, kind in kinds(told)]


def test_a_run_that_flaps_is_not_told_at_every_turn():
    _, told = drive(([1] * 5 + [0] * 20) * 400, scale=2.0**16)
    assert len(told) < 30


def test_a_strict_rate_is_not_ended_by_too_few_good_steps():
    strict = replace(DEFAULT, max_skip_rate=0.01)
    assert strict.recovery_steps == 100 and DEFAULT.recovery_steps == 20
    assert replace(DEFAULT, max_skip_rate=0.0).recovery_steps == 100
    state, _ = drive([0] * 200 + [1] * 5 + [0] * 99, settings=strict)
    assert state.phase == "storm"
    state, _ = drive([0], state=state, settings=strict)
    assert state.phase == "normal"


def test_rare_skips_are_told_at_growing_distances_with_their_number():
    _, told = drive(([1] + [0] * 24) * 400, scale=1024.0, incr_every=20)
    skips = [(step, alert) for step, kind, alert in told if kind == "loss_scale_skip"]
    assert 5 < len(skips) < 20
    assert "since the last such line" in skips[1][1].message
    gaps = [later[0] - earlier[0] for earlier, later in zip(skips, skips[1:], strict=False)]
    assert gaps == sorted(gaps) and gaps[0] >= 100 and gaps[-1] <= 1600


def test_a_scale_that_only_grows_is_told_once():
    state, told = drive([0] * 60, incr_every=1)
    assert kinds(told) == [(24, "loss_scale_high")] and told[0][2].severity == "warning"
    assert "1.09951e+12" in told[0][2].message


@pytest.mark.parametrize("scale", [None, math.inf, math.nan])
def test_a_scale_that_is_unknown_or_broken_still_leads_to_a_storm(scale):
    state = LossScaleState(scale=scale)
    told = []
    for step in range(1, 6):
        state, alerts = observe(state, Observation(step, True), DEFAULT)
        told += alerts
    assert [alert.kind for alert in told][-1] == "loss_scale_storm"


def test_the_state_survives_a_dict_and_an_unknown_field():
    state, _ = drive([0] * 5 + [1] * 3)
    assert LossScaleState.from_dict(state.to_dict()) == state
    assert LossScaleState.from_dict(state.to_dict() | {"of_a_later_version": 1}) == state


@settings(max_examples=300, deadline=None)
@given(st.lists(st.booleans(), max_size=400), st.sampled_from([1.0, 1024.0, 2.0**16, 2.0**24]), st.integers(1, 3))
def test_any_history_keeps_the_counts_true_and_the_talk_short(flags, scale, decr_every):
    state, told = drive(flags, scale=scale, decr_every=decr_every)
    streak = 0
    for flag in reversed(flags):
        if not flag:
            break
        streak += 1
    assert (state.steps, state.skips, state.streak) == (len(flags), sum(flags), streak)
    assert sum(map(int, bin(state.window)[2:])) <= sum(flags[-100:]) and state.window_length <= min(100, len(flags))
    assert len(told) <= 16
    if not any(flags):
        assert told == []
    # resuming from a saved state at any point changes nothing
    half = len(flags) // 2
    assert all(alert.text().startswith(f"step {step}: ") for step, _, alert in told)
    if decr_every == 1:
        first, told_first = drive(flags[:half], scale=scale, incr_every=10**9)
        second, told_second = drive(flags[half:], state=LossScaleState.from_dict(first.to_dict()), incr_every=10**9)
        whole, told_whole = drive(flags, scale=scale, incr_every=10**9)
        assert second == whole and kinds(told_first) + kinds(told_second) == kinds(told_whole)
