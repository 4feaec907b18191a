"""Micro-batches inside ``model(data)``: what PaddleDetection's loop calls forward does every backward as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle

from paddle_memcallbacks.microbatch import BatchOutcome, autocast_off, detached, dummy_leaf, weighted_backward
from paddle_memcallbacks.session import Session

Call = Callable[[Any], Any]


def run_sliced(session: Session, call: Call, data: Any, scaler: Any) -> BatchOutcome:
    """Forward and backward of the whole batch, slice by slice.

    Args:
        session: drives the slices, meters their phases, replays after an out-of-memory error.
        call: the model's own forward; it changes the mapping that it is given, and gets a fresh one every time.
        data: the loader's batch.
        scaler: the loop's GradScaler; None without AMP.
    """

    def forward_backward(micro_batch: Any, weight: Any) -> Any:
        with session.meter.phase("forward"):
            outputs = call(micro_batch)
        with session.meter.phase("backward"):
            weighted_backward(outputs, weight, scaler)
        return detached(outputs)

    return session.run_batch(data, forward_backward, call)


def handed_back(outcome: BatchOutcome) -> dict[str, paddle.Tensor]:
    """The batch's mean losses for the loop, whose own backward then reaches a leaf of its own and nothing else."""
    losses = outcome.loss if isinstance(outcome.loss, dict) else {"loss": outcome.loss}
    # the loop's auto_cast is still on, and O2 would round the loss to fp16
    with autocast_off():
        return {**losses, "loss": dummy_leaf(losses["loss"])}
