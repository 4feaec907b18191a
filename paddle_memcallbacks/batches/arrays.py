"""The one place where batches touch arrays: paddle tensors and numpy arrays behind the same few functions.

Paddle is never imported here: where a batch holds a paddle tensor, paddle has been imported by whoever made it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


def is_tensor(value: Any) -> bool:
    """Whether the value is a paddle tensor."""
    paddle = sys.modules.get("paddle")
    return paddle is not None and hasattr(paddle, "Tensor") and isinstance(value, paddle.Tensor)


def is_array(value: Any) -> bool:
    """Whether the value is a paddle tensor or a numpy array."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def shape_of(array: Any) -> tuple[int, ...]:
    """The shape as plain ints."""
    return tuple(int(size) for size in array.shape)


def kind_of(array: Any) -> str:
    """``bool``, ``int``, ``float`` or ``other``, from the dtype's name."""
    name = str(array.dtype).rsplit(".", 1)[-1]
    if name.startswith("bool"):
        return "bool"
    if name.startswith(("int", "uint")):
        return "int"
    return "float" if name.startswith(("float", "bfloat")) else "other"


def on_host(array: Any) -> bool:
    """Whether reading the values does not wait for a device."""
    if not is_tensor(array):
        return True
    place = array.place
    return bool(place.is_cpu_place() or place.is_cuda_pinned_place())


def to_host(array: Any) -> np.ndarray:
    """The values as a numpy array; waits for the device where they live there."""
    if not is_tensor(array):
        return np.asarray(array)
    if kind_of(array) == "float":
        # numpy has no bfloat16: paddle would hand out its bits as uint16
        array = array.astype("float32")
    return np.asarray(array.numpy())


def inplace_version(array: Any) -> int:
    """How often a tensor was changed in place; 0 for numpy arrays, which do not count."""
    return int(array.inplace_version) if is_tensor(array) else 0


def copy_whole(array: Any) -> Any:
    """A copy with memory of its own."""
    return array.clone() if is_tensor(array) else np.array(array)


def copy_rows(array: Any, rows: Sequence[int], width: int | None = None) -> Any:
    """A copy of some rows, and of their first `width` entries along axis 1. Paddle's own slices are views.

    Args:
        array: [N, ...].
        rows: indices into axis 0, in the wanted order.
        width: None keeps axis 1 as it is.
    """
    part = array if width is None else array[:, :width]
    first, last = rows[0], rows[-1]
    if list(rows) == list(range(first, last + 1)):
        return copy_whole(part[first : last + 1])
    if not is_tensor(array):
        return part[np.asarray(rows, dtype=np.int64)]
    paddle = sys.modules["paddle"]
    # not index_select: it has no CPU kernel for uint8 (raw images), int8, int16 and float16
    return part[paddle.to_tensor(list(rows), dtype="int64", place=array.place)]


def copy_width(array: Any, width: int) -> Any:
    """A copy of the first `width` entries along axis 1, all rows."""
    return copy_whole(array[:, :width])


def row_sums(array: Any) -> np.ndarray:
    """[N, ...] -> [N] float64: the sum of every row, added up where the array lives and then read."""
    rows = shape_of(array)[0]
    flat = array.reshape([rows, -1])
    if is_tensor(array):
        flat = flat.astype("float32") if kind_of(array) == "float" else flat.astype("int64")
    else:
        flat = flat.astype("float64" if kind_of(array) == "float" else "int64")
    return to_host(flat.sum(axis=1)).astype("float64")
