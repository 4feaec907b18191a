"""Losses as models return them: a tensor, or a mapping with the key ``loss``; weighted, detached, averaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import paddle
from paddle.amp.auto_cast import amp_global_state

from paddle_memcallbacks.microbatch.errors import MicroBatchError

_LOSS_KEY = "loss"


def primary(loss: Any) -> paddle.Tensor:
    """The tensor that backward runs on.

    Raises:
        MicroBatchError: a mapping without the key ``loss``, or no single number.
    """
    value = loss
    if isinstance(loss, Mapping):
        if _LOSS_KEY not in loss:
            raise MicroBatchError(f"the losses {sorted(map(str, loss))} hold no entry 'loss' to run backward on")
        value = loss[_LOSS_KEY]
    if not isinstance(value, paddle.Tensor) or value.size != 1:
        what = list(value.shape) if isinstance(value, paddle.Tensor) else type(value).__name__
        raise MicroBatchError(f"a loss is one number in a paddle tensor, not {what}")
    return value


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """auto_cast(enable=False), as Paddle's recompute runs its backward, leaving the dtype that GradScaler looks at."""
    state = amp_global_state()
    dtype = state.amp_dtype
    with paddle.amp.auto_cast(enable=False):
        # entering wrote float16 there, and a GradScaler would take a bfloat16 run for a float16 one
        state.amp_dtype = dtype
        yield


def weighted_backward(loss: Any, weight: float | paddle.Tensor, scaler: Any = None) -> None:
    """Backward of ``scaler.scale(weight * loss)``, with auto_cast off.

    Args:
        loss: a tensor of one element, or a mapping with the key ``loss``.
        weight: the slice's share; 1.0 leaves the loss untouched, bit for bit.
        scaler: a GradScaler, or None.
    """
    value = primary(loss)
    with autocast_off():
        if not isinstance(weight, float) or weight != 1.0:
            value = value * weight
        if scaler is not None:
            value = scaler.scale(value)
        value.backward()


def detached(loss: Any) -> Any:
    """The loss without its graph: a tensor, or a mapping of the same entries."""
    if isinstance(loss, Mapping):
        return {key: detached(value) for key, value in loss.items()}
    return loss.detach() if isinstance(loss, paddle.Tensor) else loss


def dummy_leaf(loss: paddle.Tensor) -> paddle.Tensor:
    """A tensor with this loss's value whose backward ends in a leaf of its own, with a zero gradient.

    For a toolkit's loop that runs backward on what the model hands back, after the slices have run theirs.
    """
    leaf = paddle.zeros_like(loss)
    leaf.stop_gradient = False
    return loss.detach() + leaf * 0.0


class LossMean:
    """The batch's loss from its slices': every entry weighted alike. A sum where the weights are all 1."""

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}
        self._is_mapping = False
        self._slices = 0

    def add(self, loss: Any, weight: float) -> None:
        """Take in one slice's loss, a tensor or a mapping; entries that are no single number are not averaged."""
        self._is_mapping = isinstance(loss, Mapping)
        self._slices += 1
        entries = loss if isinstance(loss, Mapping) else {_LOSS_KEY: loss}
        for key, value in entries.items():
            part = _scalar(value)
            if part is None:
                continue
            part = part if weight == 1.0 else part * weight
            self._entries[key] = self._entries[key] + part if key in self._entries else part

    def value(self) -> Any:
        """A detached 0-D tensor, or a dict of them where the slices gave mappings."""
        if self._is_mapping:
            return dict(self._entries)
        return self._entries[_LOSS_KEY]


def _scalar(value: Any) -> Any:
    """A detached 0-D tensor, or a number as it is; None for anything else."""
    if isinstance(value, paddle.Tensor):
        return value.detach().reshape([]) if value.size == 1 else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
