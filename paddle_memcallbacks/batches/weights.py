"""What a loss divides by, and so how much each micro-batch weighs. Pure: numbers in, numbers out.

A batch's mean loss is the sum over its slices of weight_i * loss_i with weight_i = count_i / count of the whole batch,
if the model's loss is a sum divided by that count. Which count it is belongs to the model, so it is found by
comparison: the loss of some rows together must equal their losses apart, weighted by the count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FOUND_TOLERANCE = 1e-5
# loose, so that half precision's rounding is not taken for a proof
_LIKE_A_SUM = 1e-2

# where several measures explain a loss equally well, the first of these is used
_PREFERENCE = ("samples", "tokens", "mask", "boxes", "positions", "sum")


@dataclass(frozen=True)
class Measure:
    """Something that a loss may divide by.

    Attributes:
        kind: ``samples``; ``tokens``: labels that are not ignored; ``mask``: a mask's or weight's sum; ``boxes``:
            ground truth boxes; ``positions``: rows x padded length; ``sum``: nothing.
        field: path of the field that is counted, where one is.
        ignored: the label value that does not count; None stands for any negative one.
        shifted: the model predicts labels[:, 1:], so the first label of a row does not count.
    """

    kind: str
    field: str = ""
    ignored: int | None = None
    shifted: bool = False

    def __str__(self) -> str:
        if self.kind == "samples":
            return "samples"
        if self.kind == "sum":
            return "nothing (the loss is a sum)"
        if self.kind == "tokens":
            condition = ">= 0" if self.ignored is None else f"!= {self.ignored}"
            return f"tokens ({self.field}{'[:, 1:]' if self.shifted else ''} {condition})"
        return f"{self.kind} ({self.field})" if self.field else self.kind


SAMPLES = Measure("samples")
SUM = Measure("sum")


@dataclass(frozen=True)
class Comparison:
    """Losses of some rows apart and together, and what each measure counts in each of them.

    Attributes:
        apart: the loss of every part by itself.
        together: the loss of all parts in one forward.
        counts: measure -> its count in every part.
        totals: measure -> its count in what `together` ran on; missing ones are the sum of the parts' counts.
    """

    apart: tuple[float, ...]
    together: float
    counts: Mapping[Measure, tuple[float, ...]]
    totals: Mapping[Measure, float] | None = None

    @property
    def says_something(self) -> bool:
        """Whether it can prove a weight, or that there is none.

        It cannot where the loss together is that of the only part which loses anything (or where none does): a sum and
        a mean over what that part alone holds are the same there. Zero apart and a loss together prove a coupling.
        """
        if sum(loss != 0.0 for loss in self.apart) >= 2:
            return True
        return not math.isclose(self.together, math.fsum(self.apart), rel_tol=_LIKE_A_SUM)

    def error(self, measure: Measure) -> float:
        """How far `together` is from the weighted losses, relative to the larger; infinite where one is not finite.

        A part that counts 0 is left out: alone its mean may be 0/0.
        """
        total = None if self.totals is None else self.totals.get(measure)
        weights = weights_for(measure.kind, self.counts[measure], total)
        terms = [weight * loss for weight, loss in zip(weights, self.apart, strict=True) if weight != 0.0]
        expected = math.fsum(terms) if all(map(math.isfinite, terms)) else math.nan
        if not (math.isfinite(expected) and math.isfinite(self.together)):
            return math.inf
        scale = max(abs(self.together), abs(expected))
        return abs(expected - self.together) / scale if scale > 0.0 else 0.0


@dataclass(frozen=True)
class Choice:
    """Which measures explain the comparisons.

    Attributes:
        agreeing: those within the tolerance in every comparison, the preferred one first; empty: none does.
        errors: measure -> its largest relative error.
    """

    agreeing: tuple[Measure, ...]
    errors: Mapping[Measure, float]

    @property
    def nearest(self) -> tuple[Measure, float]:
        """The measure with the smallest error, and that error."""
        return min(self.errors.items(), key=lambda item: item[1])


def weights_for(kind: str, counts_per_slice: Sequence[float], total: float | None = None) -> list[float]:
    """The weight of every slice's loss in the batch's.

    Args:
        kind: a measure's kind; for ``sum`` every weight is 1.
        counts_per_slice: the measure's count in every slice.
        total: the whole batch's count; None: the sum of the slices' (they differ where slices were trimmed).
    """
    if kind == "sum":
        return [1.0] * len(counts_per_slice)
    whole = math.fsum(counts_per_slice) if total is None else total
    if whole == 0.0:
        # a mean over nothing is NaN or 0 in the whole batch too, and equal weights hand that on
        return [1.0 / len(counts_per_slice)] * len(counts_per_slice)
    return [count / whole for count in counts_per_slice]


def choose_weight(comparisons: Sequence[Comparison], tolerance: float = FOUND_TOLERANCE) -> Choice:
    """The measures that explain every comparison to the tolerance.

    Args:
        comparisons: at least one, all over the same measures.
        tolerance: largest relative error.
    """
    measures = list(comparisons[0].counts)
    errors = {measure: max(comparison.error(measure) for comparison in comparisons) for measure in measures}
    agreeing = sorted((m for m in measures if errors[m] <= tolerance), key=_preference)
    return Choice(tuple(agreeing), errors)


def _preference(measure: Measure) -> tuple[bool, int]:
    """Labels that ignore one value by its number are the last guess: often no such label was there to tell."""
    return measure.ignored is not None, _PREFERENCE.index(measure.kind)


def told_apart(counts: Mapping[Measure, Sequence[float]], tolerance: float = 1e-9) -> bool:
    """Whether the measures give slices (or rows) different weights, so that it matters which one is right."""
    weights = [weights_for(measure.kind, values) for measure, values in counts.items()]
    return any(
        abs(weight - first) > tolerance * max(abs(first), abs(weight))
        for other in weights[1:]
        for weight, first in zip(other, weights[0], strict=True)
    )


@dataclass(frozen=True)
class ProbeRows:
    """Rows to compare on.

    Attributes:
        pair: two small rows whose counts differ, where the batch has such.
        group: more rows, as different as possible, for the cross-check; holds the pair.
    """

    pair: tuple[int, int]
    group: tuple[int, ...]


def pick_rows(
    counts: Mapping[Measure, Sequence[float]],
    sizes: Sequence[float],
    labels: Sequence[object] | None = None,
    group_size: int = 6,
) -> ProbeRows | None:
    """The rows to find the weight on; None where there is only one.

    Args:
        counts: measure -> count of every row. Rows that count 0 come last: alone their mean may be 0/0.
        sizes: how large every row is; small ones are cheaper.
        labels: a label per row where the batch has one: a loss with class weights shows only across classes.
        group_size: how many rows the cross-check may take.
    """
    if len(sizes) < 2:
        return None
    empty = lambda row: any(values[row] == 0 for values in counts.values())
    ranked = sorted(range(len(sizes)), key=lambda row: (empty(row), sizes[row]))
    profile = lambda row: tuple(values[row] for values in counts.values())
    label = lambda row: None if labels is None else labels[row]
    first = ranked[0]
    others = ranked[1:]
    # most telling first: other counts and another label, then other counts, then another label, then any
    second = min(others, key=lambda row: (profile(row) == profile(first), label(row) == label(first)))
    group = [first, second]
    seen = {(profile(row), label(row)) for row in group}
    for row in others:
        if len(group) < group_size and row not in group and (profile(row), label(row)) not in seen:
            seen.add((profile(row), label(row)))
            group.append(row)
    group += [row for row in others if row not in group][: max(0, group_size - len(group))]
    return ProbeRows((first, second), tuple(group))
