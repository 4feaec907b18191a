"""Micro-batches inside ``model(data)``: what PaddleDetection's loop calls forward does every backward as well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import paddle

from paddle_memcallbacks.batches import batch_rows
from paddle_memcallbacks.driver import RunDriver
from paddle_memcallbacks.microbatch import BatchOutcome, autocast_off, detached, dummy_leaf, weighted_backward
from paddle_memcallbacks.oom import is_oom

from .talk import SILENT, RankStopped, Talk, alone, stop_text

Call = Callable[[Any], Any]


def run_sliced(session: RunDriver, call: Call, data: Any, scaler: Any, talk: Talk = SILENT) -> BatchOutcome:
    """Forward and backward of the whole batch, slice by slice.

    Args:
        session: drives the slices, meters their phases, replays after an out-of-memory error.
        call: the model's own forward; it changes the mapping that it is given, and gets a fresh one every time.
        data: the loader's batch.
        scaler: the loop's GradScaler; None without AMP.
        talk: what talks to other ranks inside forward.

    Raises:
        RankStopped: memory ran out in a forward that other ranks wait in.
    """
    rows = batch_rows(data)

    def forward(micro_batch: Any, whole: bool) -> Any:
        with alone() if talk.losses and not whole else contextlib.nullcontext():
            return call(micro_batch)

    def forward_backward(micro_batch: Any, weight: Any) -> Any:
        whole = batch_rows(micro_batch) == rows
        try:
            with session.meter.phase("forward"):
                outputs = forward(micro_batch, whole)
            with session.meter.phase("backward"):
                weighted_backward(outputs, weight, scaler)
        except Exception as error:
            if is_oom(error) and (talk.norms or (talk.losses and whole)):
                raise RankStopped(stop_text(rows)) from error
            raise
        return detached(outputs)

    return session.run_batch(data, forward_backward, lambda micro_batch: forward(micro_batch, whole=False))


def handed_back(outcome: BatchOutcome) -> dict[str, paddle.Tensor]:
    """The batch's mean losses for the loop, whose own backward then reaches a leaf of its own and nothing else."""
    losses = outcome.loss if isinstance(outcome.loss, dict) else {"loss": outcome.loss}
    # the loop's auto_cast is still on, and O2 would round the loss to fp16
    with autocast_off():
        return {**losses, "loss": dummy_leaf(losses["loss"])}
