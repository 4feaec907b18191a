"""Run-time shims for paddledet 2.6.0, whose loss code calls Paddle in ways that newer Paddle refuses.

Each is switched on only for the versions that need it, changes nothing that worked before, and can be taken off again.
A PaddleDetection clone of 2024 or later has these places mended and gets none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paddle_memcallbacks.alerts import announce

Version = tuple[int, ...]
# the first develop sources with both places mended call themselves 0.0.0
_LAST_BROKEN_PPDET = (2, 6)


@dataclass(frozen=True)
class Shim:
    """One place of paddledet that a newer Paddle refuses.

    Attributes:
        name: what the start line and `paddle-mem doctor` call it.
        why: what fails without it.
        first_paddle: the first Paddle version that needs it.
        apply: switches it on; returns what takes it off again.
    """

    name: str
    why: str
    first_paddle: Version
    apply: Callable[[], Callable[[], None]]


def version_numbers(text: str) -> Version:
    """The leading numbers of a version: ``3.3.1`` -> (3, 3, 1), ``3.0.0-beta`` -> (3, 0, 0); () without any."""
    numbers = []
    for part in text.split("+")[0].replace("-", ".").split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits or not part[0].isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def needed(paddle_version: str, ppdet_version: str, shims: Sequence[Shim] | None = None) -> list[Shim]:
    """The shims that this pair of versions needs.

    A clone that was never installed has no version; as one built from the develop branch (0.0.0) it gets none.
    A Paddle built from its develop branch (0.0.0) counts as the newest.
    """
    ppdet = version_numbers(ppdet_version)
    paddle = version_numbers(paddle_version)
    if not any(ppdet) or ppdet[:2] > _LAST_BROKEN_PPDET:
        return []
    return [shim for shim in (SHIMS if shims is None else shims) if not any(paddle) or paddle >= shim.first_paddle]


def _labels_as_int64() -> Callable[[], None]:
    """Hands ground-truth labels to the assigners as int64: they are added to an argmax, which is int64."""
    from ppdet.modeling.assigners import atss_assigner, task_aligned_assigner

    originals: list[tuple[Any, Any]] = []
    assigner: Any
    for assigner in (atss_assigner.ATSSAssigner, task_aligned_assigner.TaskAlignedAssigner):
        original = assigner.forward
        assigner.forward = _with_int64_labels(original)
        originals.append((assigner, original))

    def remove() -> None:
        for assigner, original in originals:
            assigner.forward = original

    return remove


def _with_int64_labels(forward: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["gt_labels"] = bound.arguments["gt_labels"].astype("int64")
        return forward(*bound.args, **bound.kwargs)

    return wrapped


def _concat_of_scalars() -> Callable[[], None]:
    """Lets `paddle.concat` join 0-D tensors, as it did when ``shape[0]`` was 1-D."""
    import paddle

    original = paddle.concat

    @functools.wraps(original)
    def concat(x: Any, axis: Any = 0, name: str | None = None, **kwargs: Any) -> Any:
        if isinstance(x, (list, tuple)) and x and all(getattr(tensor, "ndim", 1) == 0 for tensor in x):
            x = [tensor.reshape([1]) for tensor in x]
        return original(x, axis, name, **kwargs)

    paddle.concat = concat

    def remove() -> None:
        if paddle.concat is concat:
            paddle.concat = original

    return remove


SHIMS = (
    Shim(
        "int64 labels",
        "the ATSS and task-aligned assigners add int32 labels to int64 indices, which Paddle 3 refuses (TypeError)",
        (3, 0),
        _labels_as_int64,
    ),
    Shim(
        "concat of 0-D tensors",
        "the RPN head and the RoI targets join 0-D tensors, which Paddle refuses from 2.5 on",
        (2, 5),
        _concat_of_scalars,
    ),
)

_active: dict[str, Callable[[], None]] = {}


def apply_shims() -> list[str]:
    """Switch on what the installed versions need, once, and say so in one line. Returns those active."""
    import paddle
    import ppdet

    ppdet_version = getattr(ppdet, "__version__", "")
    fresh = [shim for shim in needed(paddle.__version__, ppdet_version) if shim.name not in _active]
    for shim in fresh:
        _active[shim.name] = shim.apply()
    if fresh:
        names = ", ".join(shim.name for shim in fresh)
        announce(f"paddledet {ppdet_version} on Paddle {paddle.__version__}: run-time shims on ({names})")
    return list(_active)


def remove_shims() -> None:
    """Take all shims off again."""
    while _active:
        _, remove = _active.popitem()
        remove()


def describe_shims(paddle_version: str, ppdet_version: str) -> list[str]:
    """For `paddle-mem doctor`: one line for each shim that this pair of versions needs."""
    return [f"{shim.name}: {shim.why}" for shim in needed(paddle_version, ppdet_version)]
