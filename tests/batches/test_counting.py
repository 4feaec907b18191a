"""Which measures a batch allows, and their counts."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_memcallbacks.batches.counting import (
    configured_measure,
    label_fields,
    measures_of,
    positions_field,
    row_counts,
    slice_counts,
)
from paddle_memcallbacks.batches.slicing import Slice
from paddle_memcallbacks.batches.weights import SAMPLES, SUM, Measure

IDS = np.array([[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]])
LABELS = np.array([[-100, 2, 3, 255], [5, -100, -100, -100], [-100, -100, -100, -100]])
TEXT = {"input_ids": IDS, "labels": LABELS, "attention_mask": (IDS != 0).astype("int64")}


def test_measures_of_text() -> None:
    found = measures_of(TEXT, {}, pad_id=0)
    assert found[0] == SAMPLES
    assert found[-1] == SUM
    kinds = {(m.kind, m.field, m.ignored, m.shifted) for m in found[1:-1]}
    assert kinds == {
        ("tokens", "labels", None, False),
        ("tokens", "labels", 0, False),
        ("tokens", "labels", 255, False),
        ("tokens", "labels", None, True),
        ("mask", "attention_mask", None, False),
        ("positions", "labels", None, False),
    }


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (SAMPLES, [1, 1, 1]),
        (Measure("tokens", "labels"), [3, 1, 0]),
        (Measure("tokens", "labels", shifted=True), [3, 0, 0]),
        (Measure("tokens", "labels", 255), [3, 4, 4]),
        (Measure("mask", "attention_mask"), [4, 2, 1]),
        (Measure("positions", "labels"), [4, 4, 4]),
        (SUM, [1, 1, 1]),
    ],
)
def test_counts_by_row(measure: Measure, expected: list[float]) -> None:
    assert row_counts(measure, TEXT, {}, 3).tolist() == expected


def test_trimming_takes_padding_off_what_counts_padding() -> None:
    shapes = {path: value.shape for path, value in TEXT.items()}
    parts = [Slice((0,)), Slice((1, 2), {"labels": 2, "attention_mask": 2})]
    count = lambda measure: slice_counts(measure, row_counts(measure, TEXT, {}, 3).tolist(), parts, shapes)
    assert count(SAMPLES) == [1, 2]
    assert count(Measure("tokens", "labels")) == [3, 1]
    assert count(Measure("mask", "attention_mask")) == [4, 3]
    assert count(Measure("positions", "labels")) == [4, 4]
    assert count(Measure("tokens", "labels", 255)) == [3, 4]


def test_positions_of_deeper_fields_count_all_their_elements() -> None:
    fields = {"label": np.zeros((2, 5, 3), dtype="int64")}
    measure = Measure("positions", "label")
    assert positions_field(fields) == "label"
    assert row_counts(measure, fields, {}, 2).tolist() == [15, 15]
    assert slice_counts(measure, [15, 15], [Slice((0, 1), {"label": 4})], {"label": (2, 5, 3)}) == [24]


def test_labels_are_found_by_name_or_as_the_last_of_unnamed_fields() -> None:
    assert label_fields({"x": IDS, "sent_labels": IDS[:, 0], "soft_label": np.zeros((3, 2))}) == ["sent_labels"]
    assert label_fields({"0": IDS, "1": IDS, "2": IDS[:, 0]}) == ["2"]
    assert label_fields({"batch": IDS}) == []


def test_boxes_come_from_lists_masks_or_padded_boxes() -> None:
    boxes = Measure("boxes", "gt_bbox")
    ragged = {"gt_bbox": [np.ones((2, 4)), np.ones((0, 4))]}
    assert row_counts(boxes, {}, ragged, 2).tolist() == [2, 0]
    padded = np.zeros((2, 3, 4))
    padded[0, :2] = 1
    assert row_counts(boxes, {"gt_bbox": padded}, {}, 2).tolist() == [2, 0]
    mask = np.array([[1, 1, 1], [1, 0, 0]])
    assert row_counts(boxes, {"gt_bbox": padded, "pad_gt_mask": mask[..., None]}, {}, 2).tolist() == [3, 1]


def test_a_configured_weight_names_its_field() -> None:
    found = measures_of(TEXT, {})
    assert configured_measure("tokens", found) == Measure("tokens", "labels")
    assert configured_measure("boxes", found) is None
    assert configured_measure("positions", measures_of({"image": np.zeros((2, 3))}, {})) == SAMPLES
