"""Which measures a batch's fields allow, and their count in every row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paddle_memcallbacks.batches import arrays
from paddle_memcallbacks.batches.slicing import Slice
from paddle_memcallbacks.batches.weights import SAMPLES, SUM, Measure

# label values that losses are often told to ignore, besides negative ones
_USUAL_IGNORED = (0, 255)
_LABEL_NAMES = ("label", "target")
_MASK_NAMES = ("mask", "weight")
_BOX_NAMES = ("gt_bbox", "gt_boxes", "bbox", "boxes", "gt_class")


def measures_of(fields: Mapping[str, Any], lists: Mapping[str, Any], pad_id: int | None = None) -> tuple[Measure, ...]:
    """The measures that a loss on such a batch may divide by; decided by names, dtypes and shapes alone.

    Args:
        fields: path -> array, as `slicing.array_fields` gives them.
        lists: path -> list of one thing per row.
        pad_id: the model's padding token, which a loss may ignore.
    """
    ignored = tuple(dict.fromkeys((*_USUAL_IGNORED, *(() if pad_id is None else (pad_id,)))))
    found: list[Measure] = [SAMPLES]
    for path in label_fields(fields):
        found.append(Measure("tokens", path))
        found += [Measure("tokens", path, value) for value in ignored]
        if len(fields[path].shape) == 2 and arrays.shape_of(fields[path])[1] > 1:
            found.append(Measure("tokens", path, shifted=True))
    rows = max((arrays.shape_of(value)[0] for value in fields.values() if value.shape), default=0)
    for path, value in fields.items():
        # a 4-D attention mask counts nothing that a loss divides by
        per_row = 1 <= len(value.shape) <= 3 and arrays.shape_of(value)[0] == rows
        if per_row and arrays.kind_of(value) != "other" and any(word in _last(path) for word in _MASK_NAMES):
            found.append(Measure("mask", path))
    positions = positions_field(fields)
    if positions is not None:
        found.append(Measure("positions", positions))
    found += [Measure("boxes", path) for path in _named([*fields, *lists], _BOX_NAMES)[:1]]
    return (*found, SUM)


def configured_measure(weight: str, measures: Iterable[Measure]) -> Measure | None:
    """The measure that a config's ``weight`` names in such a batch; None where the batch has nothing of the kind."""
    for measure in measures:
        if measure.kind == weight:
            return measure
    # without a field of its own every row has as many positions as the next
    return SAMPLES if weight == "positions" else None


def label_fields(fields: Mapping[str, Any]) -> list[str]:
    """Paths of integer arrays that hold labels: by name, or the last of an unnamed batch's fields."""
    integers = [path for path, value in fields.items() if value.shape and arrays.kind_of(value) == "int"]
    named = [path for path in integers if any(word in _last(path) for word in _LABEL_NAMES) or _last(path) == "y"]
    unnamed = [path for path in integers if _last(path).isdigit()]
    return named or (unnamed[-1:] if len(fields) > 1 else [])


def positions_field(fields: Mapping[str, Any]) -> str | None:
    """The field whose elements a loss over all positions would count: labels of a sequence, else its ids."""
    for path in [*label_fields(fields), *_named(fields, ("input_ids",))]:
        if len(fields[path].shape) >= 2 and arrays.shape_of(fields[path])[1] > 1:
            return path
    return None


def row_counts(measure: Measure, fields: Mapping[str, Any], lists: Mapping[str, Any], rows: int) -> np.ndarray:
    """[N] float64: the measure's count in every row. Reads labels, masks and boxes; shapes alone for the others."""
    if measure.kind in ("samples", "sum"):
        return np.ones(rows)
    if measure.kind == "positions":
        return np.full(rows, float(np.prod(arrays.shape_of(fields[measure.field])[1:])))
    if measure.field in lists:
        return np.asarray([float(len(item)) for item in lists[measure.field]])
    value = fields[measure.field]
    if measure.kind == "tokens":
        value = value[:, 1:] if measure.shifted else value
        return arrays.row_sums(value >= 0 if measure.ignored is None else value != measure.ignored)
    if measure.kind == "boxes":
        return _padded_boxes(value, fields, measure.field)
    return arrays.row_sums(value)


def slice_counts(
    measure: Measure, per_row: Sequence[float], parts: Sequence[Slice], shapes: Mapping[str, tuple[int, ...]]
) -> list[float]:
    """The measure's count in every slice, less what was trimmed off: padding, whose labels are negative, masks 0.

    Args:
        measure: what is counted.
        per_row: its count in every row of the untrimmed batch.
        parts: the slices.
        shapes: field path -> shape in the untrimmed batch.
    """
    counts_padding = measure.kind == "positions" or (measure.kind == "tokens" and measure.ignored is not None)
    counts = []
    for part in parts:
        count = math.fsum(per_row[row] for row in part.rows)
        width = part.widths.get(measure.field)
        if width is not None and counts_padding:
            _, length, *inner = shapes[measure.field]
            count -= (length - width) * len(part.rows) * math.prod(inner)
        counts.append(count)
    return counts


def _padded_boxes(value: Any, fields: Mapping[str, Any], path: str) -> np.ndarray:
    """Boxes of each row in a padded [N, G, ...] field: by its mask, else those that are not all zero."""
    for name in _named(fields, ("pad_gt_mask",)):
        return arrays.row_sums(fields[name])
    if len(value.shape) < 2:
        raise ValueError(f"weight: boxes needs boxes per row, but {path} has shape {list(arrays.shape_of(value))}")
    host = arrays.to_host(value)
    return (host.reshape([*host.shape[:2], -1]) != 0).any(axis=2).sum(axis=1).astype("float64")


def _last(path: str) -> str:
    return path.rsplit(".", 1)[-1].lower()


def _named(paths: Iterable[str], names: tuple[str, ...]) -> list[str]:
    """Paths whose last part is one of the names, in the order of the names."""
    have = list(paths)
    return [path for name in names for path in have if _last(path) == name]
