"""Text batches: which rows are short, which fields are sequences, and what can be cut off. Pure, over shapes and numpy.

A slice of rows that are all shorter than the batch may lose the padding behind its longest row. That is exact only if
nothing in the model looks at padding, which the probe sees; here it is made sure that only padding is cut: what lies
behind a row's last attended token and its last label that is not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paddle_memcallbacks.batches.slicing import Slice

_IDS = "input_ids"
_DECODER_IDS = "decoder_input_ids"
_MASKS = ("attention_mask", "decoder_attention_mask", "loss_mask")
_LABELS = ("labels", "masked_lm_labels", "lm_labels", "token_labels")
_SOURCE = (_IDS, "token_type_ids", "segment_ids", "position_ids", "task_type_ids", "attention_mask", "loss_mask")
_DECODER = (_DECODER_IDS, "decoder_position_ids", "decoder_attention_mask")


@dataclass(frozen=True)
class Group:
    """Fields that share one sequence axis.

    Attributes:
        length: the padded length, axis 1 of every field.
        fields: their paths.
        keep: path -> how its values tell what must stay: ``mask`` (not 0), ``labels`` (>= 0), ``ids`` (not the pad id).
    """

    length: int
    fields: tuple[str, ...]
    keep: Mapping[str, str]


@dataclass(frozen=True)
class Layout:
    """The sequence fields of a batch by group, or why it cannot be trimmed."""

    groups: tuple[Group, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class Lengths:
    """What each row needs of every group, or why it cannot be told.

    Attributes:
        rows: one [N] int array per group.
        refusal: empty where the lengths are known.
    """

    rows: tuple[np.ndarray, ...] = ()
    refusal: str = ""


def layout_of(shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str], rows: int, pad_id: int | None) -> Layout:
    """Which fields are sequences that may be cut, from names, shapes and dtype kinds (`arrays.kind_of`).

    A batch without ``input_ids`` is no text: no groups and no refusal. Unknown fields along the sequence axis and masks
    that are not [N, L] are a refusal.
    """
    by_name = {path.rsplit(".", 1)[-1]: path for path in shapes}
    if len(by_name) != len(shapes) or _IDS not in by_name or len(shapes[by_name[_IDS]]) != 2:
        return Layout()
    length = shapes[by_name[_IDS]][1]
    decoder_length = shapes[by_name[_DECODER_IDS]][1] if _DECODER_IDS in by_name else None
    members: dict[str, list[str]] = {"source": [], "decoder": [], "labels": []}
    for name, path in by_name.items():
        shape = shapes[path]
        place = _place_of(name, shape, kinds[path], length, decoder_length)
        if place == "unknown":
            return Layout(
                refusal=f"{path} {list(shape)} may run along the sequence, and is not a field known to be cut"
            )
        if place:
            members[place].append(path)
    groups = [_group(paths, shapes, pad_id) for paths in members.values() if paths]
    for group in groups:
        if not group.keep:
            return Layout(refusal="there is neither an attention_mask nor a padding id of the model's config")
    return Layout(tuple(groups))


def row_lengths(layout: Layout, values: Mapping[str, np.ndarray], rows: int, pad_id: int | None) -> Lengths:
    """How much of every group each row needs: 1 + the last position that is attended to or labelled.

    Args:
        layout: groups of the batch.
        values: the fields named in the groups' ``keep``, [N, L] (or [1, L]).
        rows: N.
        pad_id: what fills ``input_ids`` where there is no mask.
    """
    lengths = []
    for group in layout.groups:
        keep = np.zeros((rows, group.length), dtype=bool)
        for path, how in group.keep.items():
            value = values[path]
            if how == "mask" and not np.isin(value, (0, 1)).all():
                return Lengths(refusal=f"{path} holds other values than 0 and 1")
            stays = {"mask": value != 0, "labels": value >= 0, "ids": value != pad_id}[how]
            if how != "labels" and path.rsplit(".", 1)[-1] != "loss_mask" and not stays[:, 0].all():
                return Lengths(refusal=f"{path} is padded on the left")
            keep |= stays
        last = group.length - np.argmax(keep[:, ::-1], axis=1)
        lengths.append(np.where(keep.any(axis=1), last, 1))
    return Lengths(tuple(lengths))


def length_slices(layout: Layout, lengths: Sequence[np.ndarray], micro_batch_size: int) -> list[Slice]:
    """Slices of rows of like length, longest first (the largest memory comes first), each with its own widths."""
    order = np.argsort(-lengths[0], kind="stable").tolist()
    starts = range(0, len(order), micro_batch_size)
    return [trimmed(layout, lengths, order[start : start + micro_batch_size]) for start in starts]


def trimmed(layout: Layout, lengths: Sequence[np.ndarray], rows: Sequence[int]) -> Slice:
    """The slice of these rows, cut to its own longest row."""
    widths: dict[str, int] = {}
    for group, length in zip(layout.groups, lengths, strict=True):
        width = int(max(length[row] for row in rows))
        if width < group.length:
            widths.update(dict.fromkeys(group.fields, width))
    return Slice(tuple(rows), widths)


def _place_of(name: str, shape: tuple[int, ...], kind: str, length: int, decoder_length: int | None) -> str:
    """The group that a field belongs to; empty where it has no sequence axis, ``unknown`` where it might."""
    along = [size in (length, decoder_length) and size > 1 for size in shape[1:]]
    if len(shape) == 2 and name in _SOURCE:
        return "source" if shape[1] == length else "unknown"
    if len(shape) == 2 and name in _DECODER:
        return "decoder" if shape[1] == decoder_length else "unknown"
    if len(shape) == 2 and name in _LABELS and shape[1] > 1 and kind == "int":
        if decoder_length is not None:
            return "decoder" if shape[1] == decoder_length else "unknown"
        return "source" if shape[1] == length else "labels"
    return "unknown" if any(along) else ""


def _group(paths: Sequence[str], shapes: Mapping[str, tuple[int, ...]], pad_id: int | None) -> Group:
    keep: dict[str, str] = {}
    ids = None
    for path in paths:
        name = path.rsplit(".", 1)[-1]
        if name in _MASKS:
            keep[path] = "mask"
        elif name in _LABELS:
            keep[path] = "labels"
        elif name in (_IDS, _DECODER_IDS):
            ids = path
    attended = any(path.rsplit(".", 1)[-1] in ("attention_mask", "decoder_attention_mask") for path in keep)
    if ids is not None and not attended:
        if pad_id is None:
            return Group(shapes[ids][1], tuple(paths), {})
        keep[ids] = "ids"
    return Group(shapes[paths[0]][1], tuple(paths), keep)
