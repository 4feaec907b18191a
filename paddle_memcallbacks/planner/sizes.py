"""A profile over micro-batch sizes: upwards from 1, everything recomputed first: nothing is tried that cannot fit."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import paddle

from paddle_memcallbacks import memory
from paddle_memcallbacks.batches import arrays, batch_rows, slicing, text
from paddle_memcallbacks.oom import drop_traceback, error_line, is_oom
from paddle_memcallbacks.planner.measure import ProfileError, Replacement
from paddle_memcallbacks.planner.measured import Profile, SizeProfile
from paddle_memcallbacks.planner.peak import peak_part
from paddle_memcallbacks.planner.profiler import MOST_STEPS, PlainOutOfMemory, Progress, StepProfiler

# micro-batches of a profiled step: the second one meets the gradients of the first
_SLICES = 2


class Runner(Protocol):
    """Runs one optimizer step at a micro-batch size.

    Attributes:
        rows: rows of the batch.
        extra_bytes: what the newest run held that training does not.
    """

    rows: int
    extra_bytes: int

    def __call__(self, micro_batch_size: int) -> int:
        """Forward and backward of up to two micro-batches, the optimizer's step, clear_grad; how many they were."""


def profile(
    session: Any,
    batch: Any,
    compute_loss: Callable[[paddle.nn.Layer, Any], Any],
    micro_batch_sizes: Iterable[int] | None = None,
    **options: Any,
) -> Profile:
    """Profile a session's step on a batch, at several micro-batch sizes, in at most 5 steps a size.

    Weights, gradients, moments, buffers, LR schedule, loss scale and random numbers are afterwards as they were; no
    data is drawn. For text the longest rows of the batch are taken: hand in the largest batch that the reader gives.

    Args:
        session: a `Session`: its model, optimizer, scaler, loop and meter are used.
        batch: as the loader gives it.
        compute_loss: ``compute_loss(model, micro_batch)`` returns the loss.
        micro_batch_sizes: default: 1, 2, 4 and so on up to half the batch, and the whole batch.
        options: ``units``, ``replacements``, ``keepers``, ``on_progress`` as for `profile_step`.

    Raises:
        ProfileError: this Paddle cannot reset a peak, the model has no units, or not even one row fits.
    """
    forward_backward, forward_only = session.plain_functions(compute_loss)
    return profile_batch(session, batch, forward_backward, forward_only, micro_batch_sizes, **options)


def profile_batch(
    session: Any,
    batch: Any,
    forward_backward: Callable[[Any, Any], Any],
    forward_only: Callable[[Any], Any],
    micro_batch_sizes: Iterable[int] | None = None,
    **options: Any,
) -> Profile:
    """As `profile`, with the functions that `Session.run_batch` takes: for toolkits."""
    switch = getattr(session, "switch", None)
    was_on = switch is not None and switch.active
    if switch is not None and was_on:
        switch.remove()
    try:
        runner = SessionRunner(session, batch, forward_backward, forward_only)
        keepers = [*options.pop("keepers", ()), getattr(session, "scaler", None)]
        model = getattr(session, "bare_model", session.model)
        return profile_sizes(model, session.optimizer, runner, micro_batch_sizes, keepers=keepers, **options)
    finally:
        if switch is not None and was_on:
            switch.apply()


class SessionRunner:
    """Runs a session's step on rows of one batch, the longest first.

    Args:
        session: its loop runs the micro-batches, its optimizer steps.
        batch: as the loader gives it.
        forward_backward: ``(micro_batch, weight) -> loss``.
        forward_only: ``micro_batch -> loss``.
    """

    def __init__(self, session: Any, batch: Any, forward_backward: Any, forward_only: Any) -> None:
        self._session, self._batch = session, batch
        self._forward_backward, self._forward_only = forward_backward, forward_only
        self.rows, self.extra_bytes = batch_rows(batch), 0
        self._order = longest_first(batch, self.rows)

    def __call__(self, micro_batch_size: int) -> int:
        part = self._batch
        rows = min(self.rows, _SLICES * micro_batch_size)
        before_bytes = memory.allocated_bytes()
        if rows < self.rows:
            part = slicing.take(self._batch, slicing.Slice(tuple(self._order[:rows])), self.rows)
        self.extra_bytes = memory.allocated_bytes() - before_bytes
        # a loop of its own: what is tried here must not change the run's size, and must fail where memory does
        loop = copy.copy(self._session.loop)
        loop.micro_batch_size, loop._on_oom = micro_batch_size, "raise"
        with self._session.meter.paused():
            outcome = loop.run(part, self._forward_backward, self._forward_only)
            self._session.optimizer.step()
            self._session.optimizer.clear_grad()
        return int(outcome.micro_batches)


def profile_sizes(
    model: paddle.nn.Layer,
    optimizer: Any,
    runner: Runner,
    micro_batch_sizes: Iterable[int] | None = None,
    *,
    units: Iterable[str] | None = None,
    replacements: Sequence[Replacement] = (),
    keepers: Sequence[Any] = (),
    on_progress: Progress | None = None,
) -> Profile:
    """Profile whatever ``runner`` runs, at several sizes.

    Raises:
        ProfileError: see `profile`.
    """
    profiler = StepProfiler(
        model, optimizer, units=units, replacements=replacements, keepers=keepers, on_progress=on_progress
    )
    with profiler:
        climb = _Climb(profiler, runner)
        climb.take(doubling(runner.rows) if micro_batch_sizes is None else sorted(set(micro_batch_sizes)))
    return climb.profile()


class _Climb:
    """Goes up the sizes until memory runs out."""

    def __init__(self, profiler: StepProfiler, runner: Runner) -> None:
        self._profiler, self._runner = profiler, runner
        self._sizes: list[SizeProfile] = []
        self._notes: list[str] = []
        self._too_large: int | None = None
        self._whole_only = self._recomputed_only = False
        self._correction = 1.0

    def take(self, sizes: Sequence[int]) -> None:
        """Profile these sizes, in rising order."""
        self._profiler.total = MOST_STEPS * len(sizes)
        for size in sizes:
            if self._too_large is not None or (self._whole_only and size < self._runner.rows):
                continue
            try:
                if self._recomputed_only:
                    self._confirm(size, self._profiler.recomputed_peak(functools.partial(self._runner, size)))
                else:
                    self._sizes.append(self._measure(size))
            except PlainOutOfMemory as error:
                drop_traceback(error)
                self._release()
                self._notes.append(f"micro-batches of {size} fit only recomputed")
                self._recomputed_only = True
                self._confirm(size, error.peak_bytes)
            except Exception as error:
                self._failed(size, error)

    def profile(self) -> Profile:
        """What was measured."""
        if not self._sizes:
            raise ProfileError("; ".join(self._notes) or "no micro-batch size could be profiled")
        return Profile(
            tuple(self._sizes),
            device=paddle.get_device(),
            batch_rows=self._runner.rows,
            too_large=self._too_large,
            device_total_bytes=memory.device_total_bytes(),
            notes=tuple(self._notes),
            correction=self._correction,
        )

    def _measure(self, size: int) -> SizeProfile:
        found = self._profiler.size(functools.partial(self._runner, size), size, warm=bool(self._sizes))
        return found.lighter(self._runner.extra_bytes)

    def _confirm(self, size: int, peak_bytes: int) -> None:
        """Compare a size that was run with everything recomputed with the line through those measured whole."""
        try:
            predicted = peak_part(self.profile().at(size), self._profiler.first_level).peak_bytes
        except (ProfileError, ValueError):
            # too few sizes for a line: larger ones are not planned
            self._too_large = size
            return
        self._correction = max(self._correction, (peak_bytes - self._runner.extra_bytes) / predicted)

    def _failed(self, size: int, error: Exception) -> None:
        drop_traceback(error)
        if is_oom(error):
            self._too_large = size
            self._notes.append(f"micro-batches of {size} ran out of memory")
            self._release()
        elif size < self._runner.rows and not self._sizes:
            # a batch of one row, or any part of the batch, is no batch for this model or loss
            self._notes.append(f"micro-batches of {size} cannot run: {error_line(error)}")
            self._whole_only = type(error).__name__ == "MicroBatchError"
        else:
            raise error

    def _release(self) -> None:
        gc.collect()
        if paddle.get_device().startswith("gpu"):
            paddle.device.cuda.empty_cache()


def doubling(rows: int) -> list[int]:
    """1, 2, 4, ... up to half of the rows, and the rows."""
    sizes = [1]
    while 4 * sizes[-1] <= rows:
        sizes.append(2 * sizes[-1])
    return sizes if rows == 1 else [*sizes, rows]


def longest_first(batch: Any, rows: int, pad_id: int | None = None) -> list[int]:
    """The batch's rows, the longest text first; as they are where it is no text or its lengths cannot be told."""
    fields = slicing.array_fields(batch, rows)
    shapes = {path: arrays.shape_of(value) for path, value in fields.items()}
    layout = text.layout_of(shapes, {path: arrays.kind_of(value) for path, value in fields.items()}, rows, pad_id)
    if not layout.groups:
        return list(range(rows))
    values = {path: arrays.to_host(fields[path]) for group in layout.groups for path in group.keep}
    lengths = text.row_lengths(layout, values, rows, pad_id)
    return np.argsort(-lengths.rows[0], kind="stable").tolist() if lengths.rows else list(range(rows))


def with_rows(profile: Profile, rows: int) -> Profile:
    """The profile for a batch of another number of rows (accumulation over more of them)."""
    return replace(profile, batch_rows=rows)
