"""Slices by length: whether this model's batches may be trimmed, and the slices where they may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddle_memcallbacks.alerts import announce, warn_once
from paddle_memcallbacks.batches import arrays, text
from paddle_memcallbacks.batches.slicing import Slice, even_slices
from paddle_memcallbacks.batches.weights import Measure, choose_weight
from paddle_memcallbacks.microbatch.probe import BatchView, Probe

# fp32 losses repeat to about 1e-7 from one shape to another
TRIM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class TextRows:
    """A text batch's sequence fields, and how much of them each row needs.

    Attributes:
        layout: the groups of fields with one sequence axis.
        lengths: one [N] int array per group.
    """

    layout: text.Layout
    lengths: tuple[np.ndarray, ...]

    @property
    def sizes(self) -> list[float]:
        """How long every row is."""
        return self.lengths[0].astype(float).tolist()


class Trimming:
    """Trims text once the probe has seen that a row's loss is the same without its padding.

    Args:
        by_length: the config's ``slice_by`` is ``length``.
        pad_id: the model's padding token, where it names one.
    """

    def __init__(self, by_length: bool, pad_id: int | None) -> None:
        self._pad_id = pad_id
        self.allowed: bool | None = None if by_length else False

    def rows_of(self, view: BatchView) -> TextRows | None:
        """The batch's rows by length; None where it is no text, or not to be trimmed. Reads masks and labels."""
        if self.allowed is False:
            return None
        kinds = {path: arrays.kind_of(value) for path, value in view.fields.items()}
        layout = text.layout_of(view.shapes, kinds, view.rows, self._pad_id)
        if not layout.groups:
            _tell_untrimmed(layout.refusal)
            return None
        values = {path: arrays.to_host(view.fields[path]) for group in layout.groups for path in group.keep}
        lengths = text.row_lengths(layout, values, view.rows, self._pad_id)
        _tell_untrimmed(lengths.refusal)
        return TextRows(layout, lengths.rows) if lengths.rows else None

    def find(self, probe: Probe, rows: TextRows, measures: Sequence[Measure], unit: int) -> tuple[Measure, ...]:
        """Decide on short rows of this batch whether to trim, if it has some.

        Returns:
            The measures under which trimming changes nothing; empty where it is not decided, or not allowed.
        """
        comparisons = probe.compare_trimmed(measures, rows.layout, rows.lengths, unit)
        if not comparisons:
            return ()
        choice = choose_weight(comparisons, TRIM_TOLERANCE)
        # a loss of 0 (a contrastive one of a single row) shows nothing
        seen = all(comparison.together != 0.0 for comparison in comparisons)
        self.allowed = seen and bool(choice.agreeing)
        if not self.allowed:
            why = f"({choice.nearest[1]:.1e} off)" if seen else "(or cannot be compared on single rows)"
            announce(f"slices are not taken by length: padding changes this model's loss {why}")
            return ()
        error = choice.errors[choice.agreeing[0]]
        announce(f"slices are taken by length and trimmed: without padding the loss is the same to {error:.1e}")
        return choice.agreeing

    def slices(self, view: BatchView, rows: TextRows | None, micro_batch_size: int) -> list[Slice]:
        """The batch's slices: by length where that is allowed, else in order."""
        if self.allowed and rows is not None:
            return text.length_slices(rows.layout, rows.lengths, micro_batch_size)
        return even_slices(view.rows, micro_batch_size)


def _tell_untrimmed(reason: str) -> None:
    if reason:
        warn_once(f"untrimmed:{reason}", f"slices are not taken by length: {reason}")
