"""Slicing nested batches along their first axis.

What counts as what:

- paddle tensors and numpy arrays are sliced; 0-D ones, and those whose first axis is 1 in a larger batch, go whole;
- a mapping's values, and a tuple's or the outermost list's items, are fields;
- a list inside the batch that is as long as the batch has rows holds one thing per row (``gt_bbox`` of ppdet, strings)
  and is sliced as a list. Where it is just as well a list of arrays with the batch's first axis (2 rows, 2 arrays of
  2 rows each), it is still read as one thing per row;
- any other list of arrays holds fields; a list without arrays and of another length goes whole, as do numbers, strings,
  None and unknown objects;
- an outermost list without arrays, or one of mappings whose first axes disagree, holds one thing per row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddle_memcallbacks.batches import arrays

_WHOLE_BATCH = "batch"


class BatchError(ValueError):
    """A batch cannot be sliced along its first axis; the message names its fields with their shapes."""


@dataclass(frozen=True)
class Slice:
    """One micro-batch of a batch.

    Attributes:
        rows: the batch's rows that it takes, in order.
        widths: field path -> entries kept along axis 1; fields that are not named keep all.
    """

    rows: tuple[int, ...]
    widths: Mapping[str, int] = field(default_factory=dict, hash=False)


def batch_rows(batch: Any) -> int:
    """The number of rows: the first axis that the fields agree on.

    Raises:
        BatchError: the first axes disagree, or no field has one.
    """
    firm = {shape[0] for _, shape in _firm_shapes(batch)}
    # beside arrays whose first axis is 1, a list of numbers or strings is more likely to describe the one row
    lists = {len(items) for _, items in _loose_lists(batch) if not firm or _holds_arrays(items)}
    sizes = (firm - {1}) or (lists - {1})
    if len(sizes) > 1:
        raise BatchError(f"the batch cannot be sliced, its first axes disagree: {describe_fields(batch)}")
    if not firm and not lists:
        raise BatchError(f"the batch cannot be sliced, no field has a first axis: {describe_fields(batch)}")
    rows = sizes.pop() if sizes else 1
    if rows > 1:
        for path, value in _leaves(batch, rows):
            _check_leaf(batch, path, value, rows)
    return rows


def array_fields(batch: Any, rows: int | None = None) -> dict[str, Any]:
    """Path -> array for every tensor and numpy array that is a field (those in per-row lists are not)."""
    rows = batch_rows(batch) if rows is None else rows
    return {path: value for path, value in _leaves(batch, rows) if arrays.is_array(value)}


def row_lists(batch: Any, rows: int | None = None) -> dict[str, list[Any]]:
    """Path -> list for every list that holds one thing per row."""
    rows = batch_rows(batch) if rows is None else rows
    return {path: value for path, value in _leaves(batch, rows) if isinstance(value, list)}


def take(batch: Any, part: Slice, rows: int) -> Any:
    """One micro-batch in containers of its own, its arrays copied (so that a model may change them).

    Args:
        batch: the whole batch.
        part: which rows, and how much of axis 1.
        rows: `batch_rows` of the batch.
    """

    def leaf(path: str, value: Any) -> Any:
        width = part.widths.get(path)
        if isinstance(value, list):
            return [_copy_item(value[row]) for row in part.rows]
        if not value.shape or (arrays.shape_of(value)[0] == 1 and rows > 1):
            return arrays.copy_whole(value) if width is None else arrays.copy_width(value, width)
        return arrays.copy_rows(value, part.rows, width)

    return _rebuild(batch, rows, leaf)


def fresh(batch: Any) -> Any:
    """The whole batch in containers of its own. Tensors are the batch's own; numpy arrays are copied."""
    keep = lambda path, value: [*value] if isinstance(value, list) else value
    copied = lambda path, value: np.array(value) if isinstance(value, np.ndarray) else keep(path, value)
    return _rebuild(batch, batch_rows(batch), copied)


def even_slices(rows: int, micro_batch_size: int, order: Sequence[int] | None = None) -> list[Slice]:
    """`rows` rows in slices of `micro_batch_size`, the last one shorter where it does not divide."""
    if micro_batch_size < 1:
        raise ValueError(f"a micro-batch has at least 1 row, not {micro_batch_size}")
    picked = range(rows) if order is None else order
    return [Slice(tuple(picked[start : start + micro_batch_size])) for start in range(0, rows, micro_batch_size)]


def split_batch(batch: Any, sizes: int | Sequence[int], order: Sequence[int] | None = None) -> list[Any]:
    """The batch in micro-batches, each with containers and arrays of its own.

    Args:
        batch: nested tensors, numpy arrays, lists, tuples, mappings, scalars.
        sizes: rows of every micro-batch (the last may be shorter), or the rows of each; they add up to the batch.
        order: the order to take the rows in; None: as they are.

    Raises:
        BatchError: the first axes disagree.
        ValueError: the sizes do not add up to the batch's rows, or `order` is not a permutation of them.
    """
    rows = batch_rows(batch)
    picked = list(range(rows)) if order is None else [int(row) for row in order]
    if sorted(picked) != list(range(rows)):
        raise ValueError(f"order must hold each of the batch's {rows} rows once")
    if isinstance(sizes, int):
        return [take(batch, part, rows) for part in even_slices(rows, sizes, picked)]
    if sum(sizes) != rows or any(size < 1 for size in sizes):
        raise ValueError(f"sizes {list(sizes)} do not make up the batch's {rows} rows")
    ends = np.cumsum(list(sizes)).tolist()
    parts = [Slice(tuple(picked[end - size : end])) for size, end in zip(sizes, ends, strict=True)]
    return [take(batch, part, rows) for part in parts]


def describe_fields(batch: Any) -> str:
    """The fields with their shapes in one line, e.g. ``image [8, 3, 32, 32], label [7], gt_bbox list of 8``."""
    parts = [f"{path} {list(shape)}" for path, shape in _all_shapes(batch)]
    parts += [f"{path} list of {len(items)}" for path, items in _loose_lists(batch)]
    return ", ".join(parts) or f"{type(batch).__name__} without arrays"


def changed_in_place(batch: Any, rows: int, before: Mapping[str, int]) -> list[str]:
    """Fields that were changed in place since `versions_of` gave `before`."""
    return [path for path, version in versions_of(batch, rows).items() if before.get(path, version) != version]


def versions_of(batch: Any, rows: int) -> dict[str, int]:
    """Path -> inplace version of every tensor field; numpy arrays always count 0."""
    return {path: arrays.inplace_version(value) for path, value in array_fields(batch, rows).items()}


def _copy_item(item: Any) -> Any:
    if arrays.is_array(item):
        return arrays.copy_whole(item)
    children = _children(item)
    return item if children is None else _like(item, [(key, _copy_item(value)) for key, value in children])


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """The keyed items of a container; None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple):
        return list(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    return list(enumerate(value)) if isinstance(value, list) else None


def _holds_arrays(value: Any) -> bool:
    children = _children(value)
    return arrays.is_array(value) if children is None else any(_holds_arrays(item) for _, item in children)


def _outermost_is_row_list(batch: Any) -> bool:
    if not isinstance(batch, list) or not batch:
        return False
    if not _holds_arrays(batch):
        return True
    shapes = [shape for item in batch for _, shape in _all_shapes(item)]
    return all(isinstance(item, Mapping) for item in batch) and len({shape[0] for shape in shapes} - {1}) > 1


def _firm_shapes(value: Any, path: str = "", inside: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Paths and shapes of the arrays that are fields for certain: reached without entering an inner list."""
    if arrays.is_array(value):
        if value.shape:
            yield path or _WHOLE_BATCH, arrays.shape_of(value)
        return
    if isinstance(value, list) and (inside or _outermost_is_row_list(value)):
        return
    for key, item in _children(value) or ():
        yield from _firm_shapes(item, _join(path, key), True)


def _all_shapes(value: Any, path: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
    if arrays.is_array(value):
        if value.shape:
            yield path or _WHOLE_BATCH, arrays.shape_of(value)
        return
    for key, item in _children(value) or ():
        yield from _all_shapes(item, _join(path, key))


def _loose_lists(value: Any, path: str = "", inside: bool = False) -> Iterator[tuple[str, list[Any]]]:
    """Lists that may hold one thing per row."""
    if isinstance(value, list) and (inside or _outermost_is_row_list(value)):
        yield path or _WHOLE_BATCH, value
        return
    for key, item in _children(value) or ():
        yield from _loose_lists(item, _join(path, key), True)


def _is_row_list(value: Any, rows: int, inside: bool) -> bool:
    return isinstance(value, list) and len(value) == rows and (inside or _outermost_is_row_list(value))


def _leaves(value: Any, rows: int, path: str = "", inside: bool = False) -> Iterator[tuple[str, Any]]:
    """Paths and values of arrays and of lists of one thing per row; what goes whole is left out."""
    if arrays.is_array(value) or _is_row_list(value, rows, inside):
        yield path or _WHOLE_BATCH, value
        return
    if isinstance(value, list) and not _holds_arrays(value):
        return
    for key, item in _children(value) or ():
        yield from _leaves(item, rows, _join(path, key), True)


def _check_leaf(batch: Any, path: str, value: Any, rows: int) -> None:
    if arrays.is_array(value) and value.shape and arrays.shape_of(value)[0] not in (1, rows):
        raise BatchError(
            f"the batch cannot be sliced, {path} has first axis {arrays.shape_of(value)[0]} where the batch has "
            f"{rows} rows: {describe_fields(batch)}"
        )


def _rebuild(batch: Any, rows: int, leaf: Callable[[str, Any], Any]) -> Any:
    """The same nesting in new containers, with `leaf(path, value)` in the place of every leaf."""

    def walk(value: Any, path: str, inside: bool) -> Any:
        if arrays.is_array(value) or _is_row_list(value, rows, inside):
            return leaf(path or _WHOLE_BATCH, value)
        if isinstance(value, list) and not _holds_arrays(value):
            return copy.copy(value)
        children = _children(value)
        if children is None:
            return value
        return _like(value, [(key, walk(item, _join(path, key), True)) for key, item in children])

    return walk(batch, "", False)


def _like(container: Any, items: list[tuple[Any, Any]]) -> Any:
    """A container of the same type where that can be made, else the plain dict, tuple or list."""
    if isinstance(container, Mapping):
        return _mapping_like(container, items)
    values = [value for _, value in items]
    if isinstance(container, tuple):
        return container._make(values) if hasattr(container, "_make") else _sequence_like(container, values, tuple)
    return _sequence_like(container, values, list)


def _mapping_like(container: Mapping[Any, Any], items: list[tuple[Any, Any]]) -> Any:
    if type(container) is dict:
        return dict(items)
    try:
        # a copy keeps what a subclass holds besides its items (BatchEncoding, defaultdict)
        made = copy.copy(container)
        if not isinstance(made, MutableMapping) or made is container:
            return type(container)(dict(items))  # type: ignore[call-arg]
        for key, value in items:
            made[key] = value
        return made
    except Exception:
        return dict(items)


def _sequence_like(container: Any, values: list[Any], plain: type) -> Any:
    if type(container) is plain:
        return plain(values)
    try:
        return type(container)(values)
    except Exception:
        return plain(values)
