"""Forwards on a few rows that show what a loss divides by, and whether trimming changes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import paddle

from paddle_memcallbacks.batches import arrays, slicing, text
from paddle_memcallbacks.batches.counting import row_counts, slice_counts
from paddle_memcallbacks.batches.slicing import Slice
from paddle_memcallbacks.batches.weights import Comparison, Measure, ProbeRows, pick_rows
from paddle_memcallbacks.microbatch.errors import MicroBatchError
from paddle_memcallbacks.microbatch.losses import primary
from paddle_memcallbacks.microbatch.quiet import Quiet, quiet
from paddle_memcallbacks.oom import drop_traceback, is_oom

_GROUP_ROWS = 6


@dataclass
class BatchView:
    """A batch with what is known of it: its rows, fields, and counts by row as they were asked for."""

    batch: Any
    rows: int
    fields: Mapping[str, Any]
    lists: Mapping[str, list[Any]]
    _counts: dict[Measure, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Any, rows: int) -> BatchView:
        return cls(batch, rows, slicing.array_fields(batch, rows), slicing.row_lists(batch, rows))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {path: arrays.shape_of(value) for path, value in self.fields.items()}

    @property
    def on_host(self) -> bool:
        """Whether counting waits for no device."""
        return all(arrays.on_host(value) for value in self.fields.values())

    def counts(self, measure: Measure) -> list[float]:
        """The measure's count in every row; labels and masks are read once."""
        if measure not in self._counts:
            self._counts[measure] = row_counts(measure, self.fields, self.lists, self.rows).tolist()
        return self._counts[measure]

    def slice_counts(self, measure: Measure, parts: Sequence[Slice]) -> list[float]:
        """The measure's count in every slice."""
        return slice_counts(measure, self.counts(measure), parts, self.shapes)


@dataclass(frozen=True)
class Findings:
    """What the probe saw.

    Attributes:
        comparisons: losses apart and together.
        rows: how many rows the largest comparison held.
        unit: rows of a part; 2 where the model cannot take a single row.
        varied_labels: the rows had different labels, or the batch has none by row.
        moved_state: buffers that a forward changed.
    """

    comparisons: tuple[Comparison, ...]
    rows: int
    unit: int
    varied_labels: bool
    moved_state: tuple[str, ...] = ()


class Probe:
    """Runs forwards for comparisons; leaves weights, buffers, gradients and random states as they were."""

    def __init__(self, model: paddle.nn.Layer, forward_only: Callable[[Any], Any], view: BatchView) -> None:
        self._model = model
        self._forward_only = forward_only
        self._view = view

    def compare(
        self,
        measures: Sequence[Measure],
        sizes: Sequence[float],
        labels: Sequence[object] | None,
        micro_batch_size: int,
    ) -> Findings | None:
        """Losses of a pair and of a larger group, apart and together; None where the batch has one row.

        Args:
            measures: what may be counted.
            sizes: how large every row is.
            labels: one per row, where the batch has such.
            micro_batch_size: what training runs at once; the group is not much larger, since it must fit too.

        Raises:
            MicroBatchError: the model's forward fails on a part of the batch.
        """
        group_size = min(max(3, 2 * micro_batch_size), _GROUP_ROWS)
        picked = pick_rows({m: self._view.counts(m) for m in measures}, sizes, labels, group_size)
        if picked is None:
            return None
        varied = labels is None or len({labels[row] for row in picked.group}) > 1
        with quiet(self._model) as state:
            unit, apart = self._apart(state, picked)
            moved = tuple(state.moved_state())
            parts = list(apart)
            comparisons = [self._together(state, measures, parts[:2], apart)]
            try:
                if len(parts) > 2:
                    comparisons.append(self._together(state, measures, parts, apart))
            except Exception as error:
                # the pair has told what it can; a group that does not fit is no reason to stop
                if not is_oom(error):
                    raise
                drop_traceback(error)
        return Findings(tuple(comparisons), len(comparisons[-1].apart) * unit, unit, varied, moved)

    def compare_slices(self, measures: Sequence[Measure], parts: Sequence[Slice]) -> Comparison:
        """Losses of slices as training takes them, apart and together."""
        with quiet(self._model) as state:
            return self._together(state, measures, parts, {part: self._loss(state, part) for part in parts})

    def compare_trimmed(
        self, measures: Sequence[Measure], layout: text.Layout, lengths: Sequence[Any], unit: int
    ) -> list[Comparison]:
        """Losses of short rows, trimmed and untrimmed; empty where no row is shorter than the batch."""
        padded = layout.groups[0].length
        short = sorted((row for row in range(self._view.rows) if lengths[0][row] < padded), key=lambda r: lengths[0][r])
        if not short:
            return []
        chosen = [short[:unit], short[-unit:]] if len(short) > 2 * unit else [short[:unit]]
        comparisons = []
        with quiet(self._model) as state:
            for rows in chosen:
                cut, whole = text.trimmed(layout, lengths, rows), Slice(tuple(rows))
                comparisons.append(
                    Comparison(
                        apart=(self._loss(state, cut),),
                        together=self._loss(state, whole),
                        counts={m: tuple(self._view.slice_counts(m, [cut])) for m in measures},
                        totals={m: self._view.slice_counts(m, [whole])[0] for m in measures},
                    )
                )
        return comparisons

    def _apart(self, state: Quiet, picked: ProbeRows) -> tuple[int, dict[Slice, float]]:
        """The loss of every picked row alone; of pairs of rows where the model cannot take one alone."""
        rows = list(picked.group)
        try:
            return 1, {part: self._loss(state, part) for part in (Slice((row,)) for row in rows)}
        except Exception as error:
            if is_oom(error) or isinstance(error, MicroBatchError):
                raise
            if self._view.rows < 4:
                raise MicroBatchError(_cannot_take(1, error)) from error
            drop_traceback(error)
        rest = [row for row in range(self._view.rows) if row not in rows]
        pairs = _pairs(rows + rest[: max(0, 4 - len(rows))])
        try:
            return 2, {part: self._loss(state, part) for part in pairs}
        except Exception as error:
            if is_oom(error):
                raise
            raise MicroBatchError(_cannot_take(2, error)) from error

    def _together(
        self, state: Quiet, measures: Sequence[Measure], parts: Sequence[Slice], apart: Mapping[Slice, float]
    ) -> Comparison:
        joint = Slice(tuple(row for part in parts for row in part.rows))
        return Comparison(
            apart=tuple(apart[part] for part in parts),
            together=self._loss(state, joint),
            counts={m: tuple(self._view.slice_counts(m, parts)) for m in measures},
        )

    def _loss(self, state: Quiet, part: Slice) -> float:
        state.rewind()
        loss = self._forward_only(slicing.take(self._view.batch, part, self._view.rows))
        return float(primary(loss).astype("float32"))


def row_labels(view: BatchView, label_paths: Sequence[str]) -> list[object] | None:
    """One label per row where the batch has such a field, [N] or [N, 1]; None without."""
    for path in label_paths:
        if view.fields[path].size == view.rows:
            return arrays.to_host(view.fields[path]).reshape(-1).tolist()
    return None


def _pairs(rows: Sequence[int]) -> list[Slice]:
    even = len(rows) - len(rows) % 2
    return [Slice((rows[start], rows[start + 1])) for start in range(0, even, 2)]


def _cannot_take(size: int, error: BaseException) -> str:
    return (
        f"the model's forward fails on {size} row{'s' if size > 1 else ''} of a batch alone, so the batch cannot be "
        f"taken apart: {type(error).__name__}: {error}"
    )
