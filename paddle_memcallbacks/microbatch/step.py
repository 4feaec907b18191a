"""The batch in hand: what its step began with, how a try went, and whether it can be repeated."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import paddle

from paddle_memcallbacks.batches import slicing
from paddle_memcallbacks.memory import memory_reading
from paddle_memcallbacks.microbatch.snapshot import StepSnapshot
from paddle_memcallbacks.oom import OomFacts, error_line, is_oom, oom_report, remedies_for


@dataclass
class Step:
    """One batch and what its step began with.

    Attributes:
        batch: as the loader gave it.
        rows: its rows.
        parameters: those that the step trains.
        versions: inplace versions of the batch's tensors at the start.
        start: random states, the model's state, gradients.
        sizes: micro-batch sizes that were tried.
        memory_error: the last out-of-memory error in one line; empty: none yet.
    """

    batch: Any
    rows: int
    parameters: list[paddle.Tensor]
    versions: Mapping[str, int]
    start: StepSnapshot
    sizes: list[int] = field(default_factory=list)
    memory_error: str = ""


@dataclass
class Try:
    """One pass over the batch: its loss, or the error that ended it."""

    size: int
    loss: Any = None
    micro_batches: int = 0
    error: Exception | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out in this try, on this rank."""
        return self.error is not None and is_oom(self.error)


def why_not_replayed(step: Step, attempt: Try, on_oom: str) -> str:
    """Why the batch cannot be repeated with a smaller micro-batch after this try; empty where it can."""
    if attempt.error is not None and not attempt.out_of_memory:
        return "not an out-of-memory error"
    if on_oom != "replay":
        return "memory.on_oom is raise, so the batch was not replayed"
    if attempt.error is not None and attempt.size <= 1:
        return "a micro-batch of one row does not fit"
    changed = slicing.changed_in_place(step.batch, step.rows, step.versions)
    if changed:
        return f"the batch cannot be replayed: forward changes its input {', '.join(changed)} in place"
    if not step.start.gradients_were_empty():
        return "the batch cannot be replayed: gradients of an earlier batch were still there (no clear_grad)"
    return ""


def report_of(step: Step, why: str, can_slice: bool, on_oom: str, notes: Sequence[str]) -> str:
    """The out-of-memory report of a step that could not be saved."""
    reading = memory_reading()
    return oom_report(
        OomFacts(
            error=step.memory_error,
            rows=step.rows,
            micro_batch_sizes=tuple(step.sizes),
            allocated_bytes=reading.allocated_bytes,
            peak_bytes=reading.peak_allocated_bytes,
            why_stopped=why,
            notes=tuple(notes),
            remedies=remedies_for(step.sizes[-1], can_slice, on_oom),
        )
    )


def back_to_start(step: Step, attempt: Try) -> None:
    """Let go of the failed try, and put the step back to where it began."""
    if attempt.out_of_memory:
        assert attempt.error is not None
        step.memory_error = error_line(attempt.error)
    attempt.error = attempt.loss = None
    step.start.restore()
    release_cached_memory()


def release_cached_memory() -> None:
    """Give the allocator's cached blocks back, so that smaller ones find room. Failing is no error here."""
    gc.collect()
    with contextlib.suppress(Exception):
        if paddle.device.cuda.device_count() > 0:
            paddle.device.cuda.empty_cache()
