"""Which text fields may be cut, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddle_memcallbacks.batches.arrays import kind_of
from paddle_memcallbacks.batches.text import Layout, layout_of, length_slices, row_lengths

IDS = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0], [7, 0, 0, 0, 0], [8, 9, 1, 0, 0]])
MASK = (IDS != 0).astype("int64")
TEXT = {"input_ids": IDS, "token_type_ids": IDS * 0, "attention_mask": MASK, "labels": np.array([0, 1, 1, 0])}


def layout(batch: dict[str, Any], pad_id: int | None = None) -> Layout:
    kinds = {path: kind_of(value) for path, value in batch.items()}
    return layout_of({path: value.shape for path, value in batch.items()}, kinds, 4, pad_id)


def lengths(batch: dict[str, Any], pad_id: int | None = None) -> Any:
    return row_lengths(layout(batch, pad_id), batch, 4, pad_id)


def test_rows_end_behind_their_last_attended_token() -> None:
    found = layout(TEXT)
    assert [set(group.fields) for group in found.groups] == [{"input_ids", "token_type_ids", "attention_mask"}]
    assert lengths(TEXT).rows[0].tolist() == [2, 4, 1, 3]


def test_slices_are_by_length_longest_first_and_cut_to_their_longest_row() -> None:
    parts = length_slices(layout(TEXT), lengths(TEXT).rows, 2)
    assert [part.rows for part in parts] == [(1, 3), (0, 2)]
    assert [part.widths["input_ids"] for part in parts] == [4, 2]
    assert "labels" not in parts[0].widths


def test_equal_lengths_keep_their_order() -> None:
    same = {**TEXT, "attention_mask": np.ones_like(MASK)}
    assert [part.rows for part in length_slices(layout(same), lengths(same).rows, 3)] == [(0, 1, 2), (3,)]
    assert length_slices(layout(same), lengths(same).rows, 3)[0].widths == {}


def test_a_label_behind_the_mask_is_not_cut_off() -> None:
    labels = np.full((4, 5), -100)
    labels[2, 3] = 7
    batch = {**TEXT, "labels": labels}
    assert "labels" in layout(batch).groups[0].fields
    assert lengths(batch).rows[0].tolist() == [2, 4, 4, 3]
    loss_mask = np.zeros((4, 5))
    loss_mask[0, 4] = 1
    assert lengths({**TEXT, "loss_mask": loss_mask}).rows[0].tolist() == [5, 4, 1, 3]


def test_a_hole_in_the_mask_is_kept() -> None:
    mask = MASK.copy()
    mask[1, 1] = 0
    assert lengths({**TEXT, "attention_mask": mask}).rows[0].tolist() == [2, 4, 1, 3]


def test_without_a_mask_the_padding_id_tells() -> None:
    bare = {"input_ids": IDS, "labels": np.array([0, 1, 1, 0])}
    assert lengths(bare, pad_id=0).rows[0].tolist() == [2, 4, 1, 3]
    assert "neither an attention_mask nor a padding id" in layout(bare).refusal


def test_a_decoder_has_lengths_of_its_own() -> None:
    decoder = np.array([[1, 2, 3], [1, 0, 0], [1, 2, 0], [1, 0, 0]])
    labels = np.where(decoder != 0, decoder, -100)
    batch = {**TEXT, "labels": labels, "decoder_input_ids": decoder, "decoder_attention_mask": (decoder != 0) * 1}
    found = lengths(batch)
    assert [row.tolist() for row in found.rows] == [[2, 4, 1, 3], [3, 1, 2, 1]]
    part = length_slices(layout(batch), found.rows, 2)[0]
    assert part.rows == (1, 3)
    assert (part.widths["input_ids"], part.widths["labels"], part.widths["decoder_input_ids"]) == (4, 1, 1)
    without_ids = {**TEXT, "labels": labels}
    assert [row.tolist() for row in lengths(without_ids).rows] == [[2, 4, 1, 3], [3, 1, 2, 1]]


def test_positions_of_one_row_are_cut_with_the_rest() -> None:
    batch = {**TEXT, "position_ids": np.arange(5)[None]}
    parts = length_slices(layout(batch), lengths(batch).rows, 2)
    assert parts[1].widths["position_ids"] == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_mask", np.ones((4, 1, 1, 5))),
        ("attention_mask", np.ones((4, 1, 5, 5))),
        ("bbox", np.ones((4, 5, 4))),
        ("soft_labels", np.ones((4, 5))),
        ("attention_mask", np.ones((4, 7))),
    ],
)
def test_unknown_fields_along_the_sequence_turn_it_off(field: str, value: np.ndarray) -> None:
    found = layout({**TEXT, field: value})
    assert found.groups == ()
    assert field in found.refusal


def test_other_fields_are_left_alone() -> None:
    batch = {**TEXT, "soft_labels": np.ones((4, 3)), "labels": np.ones((4, 3)), "start_positions": np.arange(4)}
    assert layout(batch).groups[0].length == 5
    assert layout(batch).refusal == ""


def test_padding_on_the_left_and_odd_masks_turn_it_off() -> None:
    left = {**TEXT, "attention_mask": MASK[:, ::-1]}
    assert "padded on the left" in lengths(left).refusal
    additive = {**TEXT, "attention_mask": (MASK - 1) * 10000}
    assert "other values than 0 and 1" in lengths(additive).refusal
    assert "padded on the left" in lengths({"input_ids": IDS[:, ::-1]}, pad_id=0).refusal


def test_what_is_no_text_is_no_refusal() -> None:
    assert layout({"image": np.zeros((4, 3))}) == Layout()
    assert layout({"a.input_ids": IDS, "b.input_ids": IDS}) == Layout()
