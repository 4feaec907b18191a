"""Slicing numpy batches: no paddle is needed."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_memcallbacks.batches import BatchError, Slice, batch_rows, fresh, split_batch
from paddle_memcallbacks.batches.slicing import array_fields, even_slices, row_lists, take

Pair = namedtuple("Pair", ["left", "right"])


def rows_of(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype="float32").reshape(shape)


def test_slices_hold_the_rows_in_order_and_the_tail_is_shorter() -> None:
    image = rows_of(7, 3)
    parts = split_batch({"image": image, "label": np.arange(7)}, 3)
    assert [part["label"].tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert np.array_equal(np.concatenate([part["image"] for part in parts]), image)


def test_an_order_is_followed() -> None:
    parts = split_batch({"x": np.arange(4)}, 2, order=[3, 0, 2, 1])
    assert [part["x"].tolist() for part in parts] == [[3, 0], [2, 1]]


def test_sizes_may_be_given_and_must_add_up() -> None:
    assert [len(part) for part in split_batch(np.arange(5), [1, 4])] == [1, 4]
    with pytest.raises(ValueError, match="do not make up the batch's 5 rows"):
        split_batch(np.arange(5), [2, 2])
    with pytest.raises(ValueError, match="each of the batch's 3 rows once"):
        split_batch(np.arange(3), 2, order=[0, 0, 1])


def test_what_has_no_first_axis_goes_whole() -> None:
    batch = {"x": rows_of(4, 2), "epoch": 3, "name": "train", "none": None, "temperature": np.array(0.5)}
    first = split_batch(batch, 2)[0]
    assert (first["epoch"], first["name"], first["none"], float(first["temperature"])) == (3, "train", None, 0.5)


def test_a_first_axis_of_one_goes_whole() -> None:
    parts = split_batch({"x": rows_of(4, 2), "positions": rows_of(1, 2)}, 3)
    assert [part["positions"].shape for part in parts] == [(1, 2), (1, 2)]


def test_a_batch_of_one_row_is_one_slice() -> None:
    assert batch_rows({"x": rows_of(1, 2), "image_shape": [3, 224, 224]}) == 1


def test_lists_of_one_thing_per_row_are_sliced_as_lists() -> None:
    boxes = [rows_of(count, 4) for count in (2, 0, 5)]
    parts = split_batch({"image": rows_of(3, 8), "gt_bbox": boxes, "names": ["a", "b", "c"], "curve": [1.0, 2.0]}, 2)
    assert [len(part["gt_bbox"]) for part in parts] == [2, 1]
    assert np.array_equal(parts[1]["gt_bbox"][0], boxes[2])
    assert parts[1]["names"] == ["c"]
    assert parts[1]["curve"] == [1.0, 2.0]


def test_a_list_as_long_as_the_batch_is_one_thing_per_row_even_where_it_could_be_fields() -> None:
    batch = {"image": rows_of(2, 8), "gt_bbox": [rows_of(2, 4), rows_of(2, 4) + 100]}
    second = split_batch(batch, 1)[1]
    assert len(second["gt_bbox"]) == 1
    assert np.array_equal(second["gt_bbox"][0], batch["gt_bbox"][1])


def test_an_inner_list_of_arrays_with_the_first_axis_holds_fields() -> None:
    parts = split_batch({"x": rows_of(4, 2), "pyramid": [rows_of(4, 8), rows_of(4, 4)]}, 2)
    assert [level.shape for level in parts[0]["pyramid"]] == [(2, 8), (2, 4)]


def test_the_outermost_list_holds_fields() -> None:
    first = split_batch([rows_of(2, 3), np.arange(2)], 1)[0]
    assert isinstance(first, list)
    assert first[0].shape == (1, 3)
    assert first[1].tolist() == [0]


def test_lists_alone_tell_the_rows() -> None:
    assert split_batch({"text": ["a", "b", "c"]}, 2) == [{"text": ["a", "b"]}, {"text": ["c"]}]
    assert split_batch(["a", "b", "c"], 2) == [["a", "b"], ["c"]]
    with pytest.raises(BatchError, match=r"text list of 3, label list of 2"):
        batch_rows({"text": ["a", "b", "c"], "label": [0, 1]})


def test_an_outermost_list_of_unlike_samples_holds_one_per_row() -> None:
    samples = [{"image": rows_of(3, size)} for size in (4, 6)]
    samples[0]["image"], samples[1]["image"] = rows_of(4, 3), rows_of(6, 3)
    assert [part[0]["image"].shape for part in split_batch(samples, 1)] == [(4, 3), (6, 3)]


def test_disagreeing_first_axes_are_refused_with_names_and_shapes() -> None:
    with pytest.raises(BatchError, match=r"disagree: image \[8, 3\], label \[7\], gt list of 8") as told:
        batch_rows({"image": rows_of(8, 3), "label": np.arange(7), "gt": list("abcdefgh")})
    assert isinstance(told.value, ValueError)
    with pytest.raises(BatchError, match=r"parts\.0 has first axis 3 where the batch has 8 rows"):
        batch_rows({"image": rows_of(8, 3), "parts": [rows_of(3, 1), rows_of(3, 1)]})


@pytest.mark.parametrize("batch", [{}, {"a": 1}, 5, None, "text", np.array(3.0)])
def test_a_batch_without_a_first_axis_is_refused(batch: Any) -> None:
    with pytest.raises(BatchError, match="no field has a first axis"):
        batch_rows(batch)


def test_containers_come_back_as_their_own_type() -> None:
    class Encoding(UserDict):  # type: ignore[type-arg]
        def __init__(self, data: Any = None, extra: str = "") -> None:
            super().__init__(data)
            self.extra = extra

    batch = Encoding({"ids": rows_of(4, 2)}, extra="kept")
    part = split_batch(batch, 2)[1]
    assert type(part) is Encoding
    assert part.extra == "kept"
    assert part["ids"].shape == (2, 2)
    assert batch["ids"].shape == (4, 2)
    assert type(split_batch(Pair(rows_of(4, 2), np.arange(4)), 2)[0]) is Pair
    assert type(split_batch(OrderedDict(x=rows_of(4, 2)), 2)[0]) is OrderedDict
    assert type(split_batch((rows_of(4, 2), np.arange(4)), 2)[0]) is tuple
    read_only = split_batch(MappingProxyType({"x": rows_of(4, 2)}), 2)[0]
    assert read_only["x"].shape == (2, 2)


def test_a_slice_and_a_fresh_batch_share_nothing_that_a_model_may_change() -> None:
    batch = {"x": rows_of(4, 2), "tags": ["a", "b", "c", "d"], "one": rows_of(1, 2), "inner": {"label": np.arange(4)}}
    for copy in (split_batch(batch, 4)[0], split_batch(batch, 2)[0], fresh(batch)):
        copy["x"][:] = -1
        copy["one"][:] = -1
        copy["tags"].append("e")
        copy["inner"].pop("label")
        copy.pop("tags")
    assert batch["x"][0, 1] == 1.0
    assert batch["one"][0, 1] == 1.0
    assert batch["tags"] == ["a", "b", "c", "d"]
    assert "label" in batch["inner"]


def test_widths_cut_axis_one_of_the_named_fields() -> None:
    batch = {"ids": rows_of(3, 5), "positions": rows_of(1, 5), "label": np.arange(3)}
    part = take(batch, Slice((2, 0), {"ids": 2, "positions": 2}), 3)
    assert part["ids"].tolist() == [[10, 11], [0, 1]]
    assert part["positions"].tolist() == [[0, 1]]
    assert part["label"].tolist() == [2, 0]


def test_fields_and_lists_are_named_by_their_path() -> None:
    batch = {"a": {"b": rows_of(2, 1)}, "c": (rows_of(2, 1), ["x", "y"])}
    assert list(array_fields(batch)) == ["a.b", "c.0"]
    assert list(row_lists(batch)) == ["c.1"]


def test_slices_of_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 row"):
        even_slices(4, 0)


# ---- any nesting: the slices put together again are the batch


@st.composite
def batches(draw: Any) -> tuple[int, Any]:
    rows = draw(st.integers(2, 7))
    arrays = st.integers(0, 2).map(lambda ndim: np.random.default_rng(ndim).normal(size=(rows, *([3] * ndim))))
    ragged = st.just(None).map(lambda _: [np.full((row % 3, 2), row) for row in range(rows)])
    words = st.just(None).map(lambda _: [f"word {row}" for row in range(rows)])
    whole = st.sampled_from([1, "text", None, 2.5])
    leaf = st.one_of(arrays, ragged, words, whole)
    nested = st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3),
            st.tuples(inner, inner),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=6,
    )
    return rows, {"sure": draw(arrays), "rest": draw(nested)}


def join(parts: list[Any], rows: int) -> Any:
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts], rows) for key in first}
    if isinstance(first, tuple):
        items = [join([part[index] for part in parts], rows) for index in range(len(first))]
        return first._make(items) if hasattr(first, "_make") else tuple(items)
    return [item for part in parts for item in part] if isinstance(first, list) else first


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    return left == right


@settings(max_examples=200, deadline=None)
@given(batches(), st.integers(1, 8))
def test_slices_put_together_are_the_batch(made: tuple[int, Any], micro_batch_size: int) -> None:
    rows, batch = made
    assert batch_rows(batch) == rows
    parts = split_batch(batch, micro_batch_size)
    assert len(parts) == -(-rows // micro_batch_size)
    assert equal(join(parts, rows), batch)
    assert equal(fresh(batch), batch)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"])
def test_rows_of_every_dtype(dtype):
    import paddle

    from paddle_memcallbacks.batches.arrays import copy_rows

    values = (np.arange(12).reshape(4, 3) % 2).astype(dtype)
    taken = copy_rows(paddle.to_tensor(values), [2, 0])
    assert str(taken.dtype).removeprefix("paddle.") == dtype
    assert np.array_equal(taken.numpy(), values[[2, 0]])
