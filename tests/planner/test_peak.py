"""The peak's arithmetic, on numbers small enough to follow by hand; no paddle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddle_memcallbacks.planner.measured import Condition, Holding, Profile, Segment, SizeProfile, UnitProfile, between
from paddle_memcallbacks.planner.peak import peak_part, predict_peak, segment_peaks


def kept(*names: str) -> frozenset[Condition]:
    return frozenset([Condition(None, frozenset(names))])


# two units a, b; forward a, forward b, backward b, backward a; a saves 100, b saves 60
A, B = 100, 60
STEP = SizeProfile(
    micro_batch_size=1,
    segments=(
        Segment("forward a", "forward", 30, {"a": 35}),
        Segment("forward b", "forward", 30, {"b": 35}),
        Segment("backward b", "backward", 40, {"b": 110}),
        Segment("backward a", "backward", 40, {"a": 150}),
    ),
    holdings=(Holding(A, 1, 3, kept("a")), Holding(B, 2, 2, kept("b"))),
    units=(UnitProfile("a", A, 0, 0.1, 0.2, 0.1), UnitProfile("b", B, 0, 0.1, 0.2, 0.2)),
    micro_seconds=1.0,
    step_seconds=0.5,
    static_bytes=10,
)


def test_forward_and_backward_segments_follow_the_formulas() -> None:
    assert segment_peaks(STEP) == [30, 30 + A, 40 + A + B, 40 + A]
    assert segment_peaks(STEP, ["a"]) == [35, 30, 40 + B, 150]
    assert segment_peaks(STEP, ["b"]) == [30, 35 + A, 110 + A, 40 + A]
    assert segment_peaks(STEP, ["a", "b"]) == [35, 35, 110, 150]
    assert peak_part(STEP, ["b"]).key == "backward b"
    assert peak_part(STEP).phase == "backward"


def test_a_shared_storage_is_held_while_anyone_needs_it() -> None:
    shared = frozenset([Condition(None, frozenset("a")), Condition("b")])
    step = replace(STEP, holdings=(Holding(7, 2, 2, shared),))
    held = {chosen: segment_peaks(step, chosen)[2] for chosen in ("", "a", "b", "ab")}
    assert held == {"": 47, "a": 40, "b": 117, "ab": 117}


def test_leftovers_go_with_the_next_second_pass() -> None:
    leftover = frozenset([Condition("b", frozenset("a"))])
    step = replace(STEP, holdings=(Holding(7, 3, 3, leftover),))
    held = {chosen: segment_peaks(step, chosen)[3] for chosen in ("", "a", "b", "ab")}
    assert held == {"": 40, "a": 150, "b": 47, "ab": 150}


def test_unknown_and_nested_names_are_refused() -> None:
    nested = tuple(replace(unit, excludes=frozenset("ab") - {unit.name}) for unit in STEP.units)
    profile = Profile((replace(STEP, units=nested),))
    with pytest.raises(ValueError, match=r"'aa' is no unit of this profile; nearest: a"):
        predict_peak(profile, ["aa"])
    with pytest.raises(ValueError, match="'a' and 'b' are nested"):
        predict_peak(profile, ["a", "b"])
    assert predict_peak(profile, ["a"]) == 150


def twice(size: SizeProfile) -> SizeProfile:
    """What the step needs with two rows: all but 20 bytes a segment doubles."""
    return replace(
        size,
        micro_batch_size=2,
        segments=tuple(
            replace(
                s,
                transient_bytes=2 * s.transient_bytes - 20,
                owner_transient_bytes={k: 2 * v - 20 for k, v in s.owner_transient_bytes.items()},
            )
            for s in size.segments
        ),
        holdings=tuple(replace(h, held_bytes=2 * h.held_bytes) for h in size.holdings),
        micro_seconds=1.5,
    )


def test_other_sizes_lie_on_the_line() -> None:
    profile = Profile((STEP, twice(STEP)), batch_rows=6)
    for chosen in ((), ("a",), ("b",), ("a", "b")):
        low, high = (predict_peak(profile, chosen, size) for size in (1, 2))
        for size in (3, 5, 12):
            assert predict_peak(profile, chosen, size) == low + (size - 1) * (high - low)
    assert profile.at(3).micro_seconds == pytest.approx(2.0)
    assert profile.at(3).seconds(["a"], 6) == pytest.approx(2 * (2.0 + 0.1) + 0.5)
    assert not profile.at(3).measured and profile.at(2).measured
    assert profile.units == twice(STEP).units


def test_bytes_between_sizes_are_rounded_up() -> None:
    high = replace(
        STEP, micro_batch_size=4, holdings=tuple(replace(h, held_bytes=h.held_bytes + 1) for h in STEP.holdings)
    )
    assert [h.held_bytes for h in between(STEP, high, 2).holdings] == [A + 1, B + 1]


def test_one_size_says_nothing_of_others_and_unlike_steps_make_no_line() -> None:
    with pytest.raises(ValueError, match="two measured sizes"):
        Profile((STEP,)).at(3)
    unlike = replace(STEP, micro_batch_size=4, segments=STEP.segments[:3])
    with pytest.raises(ValueError, match="two measured sizes"):
        Profile((STEP, unlike)).at(3)
    assert Profile((STEP, unlike)).at(4) is unlike


def test_a_correction_raises_the_peak_and_rounds_up() -> None:
    assert predict_peak(Profile((STEP,), correction=1.001)) == 201


def test_less_is_held_where_the_runner_held_something_of_its_own() -> None:
    light = STEP.lighter(10)
    assert [a - b for a, b in zip(segment_peaks(STEP, "a"), segment_peaks(light, "a"), strict=True)] == [10] * 4
    assert light.static_bytes == 0
