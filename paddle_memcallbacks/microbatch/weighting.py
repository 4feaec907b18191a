"""What each slice weighs, and how a batch is sliced: found by the probe, and looked at again where it is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from paddle_memcallbacks.alerts import announce, warn, warn_once
from paddle_memcallbacks.batches import counting
from paddle_memcallbacks.batches.slicing import Slice, even_slices
from paddle_memcallbacks.batches.weights import (
    FOUND_TOLERANCE,
    SAMPLES,
    Choice,
    Measure,
    choose_weight,
    told_apart,
    weights_for,
)
from paddle_memcallbacks.config import AccumulationConfig
from paddle_memcallbacks.microbatch.errors import MicroBatchError
from paddle_memcallbacks.microbatch.probe import BatchView, Findings, Probe, row_labels
from paddle_memcallbacks.microbatch.quiet import half_precision_weights
from paddle_memcallbacks.microbatch.trimming import TextRows, Trimming
from paddle_memcallbacks.oom import drop_traceback, error_line

# AMP O2: a loss of fp16 or bf16 weights repeats no better than this from one shape to another
HALF_TOLERANCE = 1e-2
# counts that live on a device are read in the first batches, then in every so manieth, while it is open which is right
_LOOKS_AT_FIRST = 10
_LOOK_EVERY = 10

ForwardOnly = Callable[[Any], Any]


@dataclass(frozen=True)
class WeightChoice:
    """How the slices' losses are weighted.

    Attributes:
        measure: what a slice counts.
        how: ``found``: by the probe; ``open``: several measures count alike so far; ``configured``: by the key
            ``weight``; ``unknown``: the probe saw no finite loss yet.
        open_measures: the measures that explain the loss equally well.
        difference: for ``configured``, the relative difference between the loss together and apart; None: not measured.
    """

    measure: Measure
    how: str
    open_measures: tuple[Measure, ...] = ()
    difference: float | None = None

    @property
    def kind(self) -> str:
        """The measure's kind: samples, tokens, mask, boxes, positions or sum."""
        return self.measure.kind

    def __str__(self) -> str:
        return f"{self.measure} ({self.how})"


@dataclass(frozen=True)
class WeightedSlices:
    """The slices of one batch with their weights; ``kind`` says of what."""

    parts: list[Slice]
    weights: list[float]
    kind: str


class Weighting:
    """Decides slices and weights for every batch of a run.

    Args:
        model: the bare model, for the probe.
        config: ``slice_by`` and ``weight``.
    """

    def __init__(self, model: paddle.nn.Layer, config: AccumulationConfig) -> None:
        self._model = model
        self._wanted = config.weight
        self._pad_id = _pad_id(model)
        self._trimming = Trimming(config.slice_by == "length", self._pad_id)
        self._open: tuple[Measure, ...] = ()
        self._confirmed = False
        self._unit = 1
        self._batches = 0
        self._not_looked = 0
        self.choice: WeightChoice | None = None

    def slices(self, view: BatchView, micro_batch_size: int, forward_only: ForwardOnly) -> WeightedSlices:
        """The batch's slices and their weights. Runs the probe where something is still open.

        Raises:
            MicroBatchError: no measure explains the loss, or the model cannot take a part of the batch.
        """
        if micro_batch_size >= view.rows:
            return WeightedSlices(even_slices(view.rows, view.rows), [1.0], "samples")
        self._batches += 1
        probe = Probe(self._model, forward_only, view)
        rows = self._trimming.rows_of(view)
        if not self._confirmed and self._looks_now(view):
            self._settle(probe, view, rows, micro_batch_size)
        if self._trimming.allowed is None and rows is not None and self._open:
            self._narrow(self._trimming.find(probe, rows, self._open, self._unit))
        parts = self._trimming.slices(view, rows, micro_batch_size)
        if len(self._open) > 1:
            if not self._looks_now(view):
                self._not_looked += 1
            elif self._matters(view, parts):
                self._find(probe, view, rows, micro_batch_size)
                self._decide(probe, view, parts)
        assert self.choice is not None
        measure = self.choice.measure
        total = None if measure.kind == "sum" else sum(view.counts(measure))
        weights = weights_for(measure.kind, view.slice_counts(measure, parts), total)
        return WeightedSlices(parts, weights, measure.kind)

    def describe(self) -> str:
        """One line for the user: the weight, how it was found, and whether slices are trimmed."""
        if self.choice is None:
            return "weight not looked for yet"
        return f"weighted by {self.choice}{', trimmed by length' if self._trimming.allowed else ''}"

    # ---- the weight

    def _settle(self, probe: Probe, view: BatchView, rows: TextRows | None, micro_batch_size: int) -> None:
        """The first choice of a run."""
        if self._wanted == "found":
            self._find(probe, view, rows, micro_batch_size)
        else:
            self._accept(probe, view, micro_batch_size)

    def _find(self, probe: Probe, view: BatchView, rows: TextRows | None, micro_batch_size: int) -> None:
        """Narrow the measures down by the probe on this batch."""
        measures = self._open or counting.measures_of(view.fields, view.lists, self._pad_id)
        sizes = rows.sizes if rows is not None else [0.0] * view.rows
        labels = row_labels(view, counting.label_fields(view.fields))
        findings = probe.compare(measures, sizes, labels, micro_batch_size)
        if findings is None:
            return
        self._unit = findings.unit
        _tell_of_state(findings.moved_state)
        telling = [comparison for comparison in findings.comparisons if comparison.says_something]
        choice = choose_weight(telling or findings.comparisons, self._tolerance())
        if not np.isfinite([comparison.together for comparison in findings.comparisons]).all():
            self._postpone()
        elif not telling:
            self._wait(choice, tuple(measures))
        elif not choice.agreeing:
            raise MicroBatchError(refusal_text(choice, findings))
        else:
            self._adopt(choice, findings)

    def _accept(self, probe: Probe, view: BatchView, micro_batch_size: int) -> None:
        """Take the weight that the config names, and say what it changes on the first two slices."""
        measure = self._configured(view)
        self._open, self._confirmed = (measure,), True
        try:
            comparison = probe.compare_slices([measure], even_slices(view.rows, micro_batch_size)[:2])
        except Exception as error:
            drop_traceback(error)
            self.choice = WeightChoice(measure, "configured", self._open)
            warn(f"weight: {self._wanted} is taken; what it changes could not be measured: {error_line(error)}")
            return
        difference = comparison.error(measure)
        self.choice = WeightChoice(measure, "configured", self._open, difference)
        if difference <= self._tolerance():
            announce(f"weight: {self._wanted} changes nothing in the first two micro-batches' loss ({difference:.1e})")
        else:
            warn(
                f"weight: {self._wanted} is accepted, and is not exact: the first two micro-batches' loss is "
                f"{comparison.together:.6g} together, and apart, weighted by {measure}, {difference:.2%} off"
            )

    def _configured(self, view: BatchView) -> Measure:
        measures = counting.measures_of(view.fields, view.lists, self._pad_id)
        measure = counting.configured_measure(self._wanted, measures)
        if measure is None:
            have = ", ".join([*view.fields, *view.lists]) or "none"
            raise MicroBatchError(
                f"gradient_accumulation.weight is {self._wanted}, but the batch has no field to count them in: {have}"
            )
        return measure

    def _adopt(self, choice: Choice, findings: Findings) -> None:
        before = self.choice
        self._open = choice.agreeing
        self._confirmed = findings.varied_labels
        how = "found" if len(self._open) == 1 else "open"
        self.choice = WeightChoice(self._open[0], how, self._open)
        if before is not None and (before.measure, before.how) == (self.choice.measure, how):
            return
        error = choice.errors[self.choice.measure]
        others = ", ".join(str(measure) for measure in self._open[1:3]) + (", ..." if len(self._open) > 3 else "")
        announce(
            f"the loss divides by {self.choice.measure}: together and apart agree to {error:.1e} over "
            f"{findings.rows} rows"
            + (f"; {others} would do as well, and the first batch that tells them apart decides" if others else "")
        )
        if self._not_looked and before is not None and before.measure != self.choice.measure:
            warn(f"{self._not_looked} batches that were not looked at were weighted by {before.measure}")

    def _decide(self, probe: Probe, view: BatchView, parts: Sequence[Slice]) -> None:
        """Where the rows looked at leave several measures, this batch's own slices decide between them, in pairs."""
        for pair in zip(parts, parts[1:], strict=False):
            if len(self._open) < 2 or not self._matters(view, parts):
                return
            if not self._matters(view, pair):
                continue
            comparison = probe.compare_slices(self._open, pair)
            if not comparison.says_something or not np.isfinite(comparison.together):
                continue
            choice = choose_weight([comparison], self._tolerance())
            if not choice.agreeing:
                findings = Findings((comparison,), sum(len(part.rows) for part in pair), self._unit, True)
                raise MicroBatchError(refusal_text(choice, findings))
            if choice.agreeing != self._open:
                announce(f"the loss divides by {choice.agreeing[0]}: two slices of this batch tell it from the others")
            self._narrow(choice.agreeing)

    def _narrow(self, agreeing: tuple[Measure, ...]) -> None:
        """Keep the open measures under which trimming is exact too."""
        if not agreeing or self.choice is None:
            return
        self._open = agreeing
        how = "found" if self.choice.how == "open" and len(agreeing) == 1 else self.choice.how
        self.choice = WeightChoice(agreeing[0], how, agreeing, self.choice.difference)

    def _wait(self, choice: Choice, measures: tuple[Measure, ...]) -> None:
        """Nothing was proven: everything stays open, and later slices or batches decide."""
        warn_once(
            "probe_zero", "hardly a row that was looked at has a loss, which proves no weight: it is looked at again"
        )
        self._open = measures
        self.choice = WeightChoice(choice.agreeing[0] if choice.agreeing else SAMPLES, "open", measures)

    def _postpone(self) -> None:
        warn_once(
            "probe_not_finite", "the loss is not finite, so its weight cannot be found; samples are used until it is"
        )
        if self.choice is None:
            self.choice = WeightChoice(SAMPLES, "unknown")

    def _matters(self, view: BatchView, parts: Sequence[Slice]) -> bool:
        """Whether the measures that are still open would weigh these slices differently."""
        return told_apart({measure: view.slice_counts(measure, parts) for measure in self._open})

    def _looks_now(self, view: BatchView) -> bool:
        """Whether counts may be read now: always for free on the host, now and then from a device."""
        if self.choice is None or view.on_host or self._batches <= _LOOKS_AT_FIRST:
            return True
        return self._batches % _LOOK_EVERY == 0

    def _tolerance(self) -> float:
        return HALF_TOLERANCE if half_precision_weights(self._model) else FOUND_TOLERANCE


def refusal_text(choice: Choice, findings: Findings) -> str:
    """Why the loss cannot be sliced, with its numbers, and the two ways on."""
    measure, error = choice.nearest
    last = findings.comparisons[-1]
    return (
        f"this loss cannot be taken apart into micro-batches: over {findings.rows} rows it is {last.together:.6g} "
        f"together, and the losses apart do not give that under any weight; the nearest, {measure}, is {error:.2e} "
        f"off (relative; {FOUND_TOLERANCE:g} is allowed). It couples samples (contrastive, in-batch negatives, MoE "
        "balance, losses divided by what a batch assigned). Use recompute to save memory, or set "
        "gradient_accumulation.weight: samples to accept the difference, which is then measured and logged."
    )


def _tell_of_state(names: Sequence[str]) -> None:
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        warn_once(
            "state_per_micro_batch",
            f"every forward changes the model's own state ({shown}): it moves once a micro-batch, not once a batch",
        )


def _pad_id(model: paddle.nn.Layer) -> int | None:
    """The padding token of a model that has a config which names it."""
    pad_id: Any = getattr(getattr(model, "config", None), "pad_token_id", None)
    return pad_id if isinstance(pad_id, int) else None
