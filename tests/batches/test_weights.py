"""What a loss divides by, decided over plain numbers."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_memcallbacks.batches.weights import (
    SAMPLES,
    SUM,
    Comparison,
    Measure,
    choose_weight,
    pick_rows,
    told_apart,
    weights_for,
)

TOKENS = Measure("tokens", "labels")


def losses_of(sums: list[float], counts: list[float], kind: str) -> tuple[list[float], float]:
    """Losses apart and together of a model that divides these sums by these counts."""
    if kind == "sum":
        return sums, math.fsum(sums)
    return [part / count for part, count in zip(sums, counts, strict=True)], math.fsum(sums) / math.fsum(counts)


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(1, 50)), min_size=2, max_size=8),
    st.sampled_from(["samples", "tokens", "sum"]),
)
def test_weighted_slices_give_the_batch_whatever_it_divides_by(parts: list[tuple[float, int]], kind: str) -> None:
    sums, counts = [part for part, _ in parts], [float(count) for _, count in parts]
    apart, together = losses_of(sums, counts, kind)
    weights = weights_for(kind, counts)
    assert math.fsum(w * loss for w, loss in zip(weights, apart, strict=True)) == pytest.approx(together, rel=1e-12)
    if kind != "sum":
        assert math.fsum(weights) == pytest.approx(1.0, rel=1e-12)


def test_a_total_of_its_own_is_for_trimmed_slices() -> None:
    assert weights_for("positions", [2 * 3, 2 * 4], total=4 * 5) == [0.3, 0.4]


def test_a_slice_that_counts_nothing_weighs_nothing_unless_all_do() -> None:
    assert weights_for("tokens", [3, 0, 1]) == [0.75, 0.0, 0.25]
    assert weights_for("tokens", [0, 0]) == [0.5, 0.5]


def counts(tokens: tuple[float, ...]) -> dict[Measure, tuple[float, ...]]:
    return {SAMPLES: (1.0,) * len(tokens), TOKENS: tokens, SUM: (1.0,) * len(tokens)}


def test_the_measure_that_agrees_is_chosen() -> None:
    by_tokens = Comparison((2.0, 5.0), (2.0 * 3 + 5.0) / 4, counts((3, 1)))
    assert choose_weight([by_tokens]).agreeing == (TOKENS,)
    by_samples = Comparison((2.0, 5.0), 3.5, counts((3, 1)))
    assert choose_weight([by_samples]).agreeing == (SAMPLES,)
    summed = Comparison((2.0, 5.0), 7.0, counts((3, 1)))
    assert choose_weight([summed]).agreeing == (SUM,)


def test_none_agrees_with_a_mixture_or_a_small_coupling() -> None:
    mixture = Comparison((2.0, 5.0), 3.5 + 0.1 * (2.0 * 3 + 5.0) / 4, counts((3, 1)))
    assert choose_weight([mixture]).agreeing == ()
    coupled = Comparison((2.0, 5.0), 3.5 * (1 + 2e-5), counts((3, 1)))
    chosen = choose_weight([coupled])
    assert chosen.agreeing == ()
    assert chosen.nearest[0] == SAMPLES
    assert chosen.nearest[1] == pytest.approx(2e-5, rel=1e-3)
    assert choose_weight([Comparison((2.0, 5.0), 3.5 * (1 + 5e-6), counts((3, 1)))]).agreeing == (SAMPLES,)


def test_every_comparison_must_agree() -> None:
    pair = Comparison((2.0, 5.0), 3.5, counts((3, 1)))
    group = Comparison((2.0, 5.0, 1.0), 2.7, counts((3, 1, 2)))
    assert choose_weight([pair, group]).agreeing == ()


def test_equal_counts_leave_it_open_with_samples_first() -> None:
    chosen = choose_weight([Comparison((2.0, 5.0), 3.5, counts((3, 3)))])
    assert chosen.agreeing == (SAMPLES, TOKENS)
    odd, positions = Measure("tokens", "labels", 255), Measure("positions", "labels")
    alike = Comparison((2.0, 5.0), 3.5, {odd: (2.0, 2.0), positions: (4.0, 4.0)})
    assert choose_weight([alike]).agreeing == (positions, odd)


def test_a_loss_of_nan_alone_does_not_hide_what_counts_nothing() -> None:
    chosen = choose_weight([Comparison((2.0, math.nan), 2.0, counts((3, 0)))])
    assert chosen.agreeing == (TOKENS,)
    assert chosen.errors[SAMPLES] == math.inf


def test_told_apart_compares_shares_not_counts() -> None:
    assert not told_apart({SAMPLES: (4, 2), TOKENS: (20, 10)})
    assert told_apart({SAMPLES: (4, 2), TOKENS: (20, 11)})
    assert told_apart({SAMPLES: (1, 1), SUM: (1, 1)})


def test_rows_are_small_and_differ_in_their_counts() -> None:
    picked = pick_rows(counts((5, 5, 9, 5, 7)), sizes=(3, 1, 2, 1, 9))
    assert picked is not None
    assert picked.pair == (1, 2)
    assert picked.group[:3] == (1, 2, 4)


def test_rows_that_count_nothing_come_last() -> None:
    picked = pick_rows(counts((0, 4, 3)), sizes=(1, 2, 3))
    assert picked is not None
    assert picked.pair == (1, 2)


def test_rows_of_other_labels_are_taken_too_for_class_weights() -> None:
    picked = pick_rows({SAMPLES: (1,) * 5}, sizes=(1,) * 5, labels=[0, 0, 0, 1, 2], group_size=3)
    assert picked is not None
    assert picked.pair == (0, 3)
    assert picked.group == (0, 3, 4)


def test_equal_rows_still_fill_the_group() -> None:
    picked = pick_rows({SAMPLES: (1,) * 8}, sizes=(1,) * 8, group_size=6)
    assert picked is not None
    assert picked.group == (0, 1, 2, 3, 4, 5)
    assert pick_rows({SAMPLES: (1,)}, sizes=(1,)) is None


def test_measures_read_well_in_messages() -> None:
    assert str(TOKENS) == "tokens (labels >= 0)"
    assert str(Measure("tokens", "y", 255)) == "tokens (y != 255)"
    assert str(Measure("tokens", "labels", shifted=True)) == "tokens (labels[:, 1:] >= 0)"


def test_deciding_needs_no_paddle() -> None:
    rooms = ", ".join(f"paddle_memcallbacks.batches.{room}" for room in ("text", "counting", "weights"))
    code = f"import sys, {rooms}; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_numpy_counts_are_fine_too() -> None:
    assert weights_for("tokens", np.array([1.0, 3.0])) == [0.25, 0.75]


@pytest.mark.parametrize(
    ("apart", "together", "says"),
    [
        ((0.0, 0.0), 0.0, False),
        ((0.0, 0.0, 2.0), 2.0, False),
        ((0.0, 2.0), 1.0, True),
        ((1.0, 2.0), 3.0, True),
        ((0.0, 0.0), 0.5, True),
    ],
)
def test_what_a_comparison_can_prove(apart, together, says):
    assert Comparison(apart, together, {}).says_something is says
