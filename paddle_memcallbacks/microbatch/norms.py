"""BatchNorm under micro-batches: its running statistics keep moving at the batch's pace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import paddle
from paddle.nn.layer.norm import _BatchNormBase

from paddle_memcallbacks.alerts import warn_once


def slice_momentum(momentum: float, share: float) -> float:
    """The momentum for a slice that holds this share of the batch's rows.

    Paddle's running = m * running + (1 - m) * batch: the slices' factors m**share multiply to m over a whole batch, so
    that old statistics fade as fast as they do natively.
    """
    return float(momentum) ** share


def norm_layers(model: paddle.nn.Layer) -> dict[str, paddle.nn.Layer]:
    """Name -> BatchNorm layer."""
    kinds = (_BatchNormBase, paddle.nn.BatchNorm)
    return {name: layer for name, layer in model.named_sublayers(include_self=True) if isinstance(layer, kinds)}


def running(norms: Mapping[str, paddle.nn.Layer]) -> dict[str, paddle.nn.Layer]:
    """Those whose running statistics move now: in training mode, and not on frozen statistics."""
    return {name: layer for name, layer in norms.items() if layer.training and not _is_frozen(layer)}


@contextlib.contextmanager
def at_share(norms: Mapping[str, paddle.nn.Layer], share: float) -> Iterator[None]:
    """While one slice runs, every layer has the momentum for the slice's share of the rows."""
    before = [(vars(layer), layer._momentum) for layer in norms.values()]
    try:
        # straight into the attributes: Layer.__setattr__ takes longer than a small layer's forward
        for attributes, momentum in before:
            attributes["_momentum"] = slice_momentum(momentum, share)
        yield
    finally:
        for attributes, momentum in before:
            attributes["_momentum"] = momentum


def warn_of_norms(norms: Mapping[str, paddle.nn.Layer], micro_batch_size: int, several_ranks: bool) -> None:
    """Say once that BatchNorm sees micro-batches, and what is exact instead."""
    if not norms:
        return
    first = next(iter(norms)) or type(next(iter(norms.values()))).__name__
    warn_once(
        "batchnorm_micro_batches",
        f"{len(norms)} BatchNorm layers ({first}, ...) normalise over micro-batches of {micro_batch_size} rows, not "
        "over the batch: the gradient is not exactly the whole batch's, and running statistics miss the variance "
        "between slices. Exact are GroupNorm, or frozen statistics (use_global_stats=True); SyncBatchNorm widens the "
        "sample over ranks.",
    )
    if several_ranks and any(isinstance(layer, paddle.nn.SyncBatchNorm) for layer in norms.values()):
        warn_once(
            "sync_batchnorm_micro_batches",
            "SyncBatchNorm talks to the other ranks in every forward: all ranks must have batches of one size, and "
            "an out-of-memory error on one rank alone cannot be replayed (set memory.on_oom: raise).",
        )


def _is_frozen(layer: paddle.nn.Layer) -> bool:
    return bool(getattr(layer, "_use_global_stats", None) or getattr(layer, "_is_test", False))
