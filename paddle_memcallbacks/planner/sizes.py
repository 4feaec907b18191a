"""A profile over micro-batch sizes: upwards from 1, everything recomputed first: nothing is tried that cannot fit."""

from __future__ import annotations

import copy
import functools
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
from paddle_memcallbacks.planner.profiler import MOST_STEPS, Progress, StepProfiler
from paddle_memcallbacks.planner.solver import candidate_sizes

# micro-batches of a profiled step: the second one meets the gradients of the first
_SLICES = 2
# a line through two sizes that misses a third by more is given a size in between
_LINE_ERROR = 0.002


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
        micro_batch_sizes: default: 1, 2 and the whole batch, and one between where they do not lie on a line.
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
        if micro_batch_sizes is not None:
            climb.take(sorted(set(micro_batch_sizes)))
        else:
            climb.take([size for size in (1, 2) if size < runner.rows])
            climb.finish()
    if not climb.sizes:
        raise ProfileError("; ".join(climb.notes) or "no micro-batch size could be profiled")
    return climb.profile()


class _Climb:
    """Goes up the sizes until memory runs out."""

    def __init__(self, profiler: StepProfiler, runner: Runner) -> None:
        self._profiler, self._runner = profiler, runner
        self.sizes: list[SizeProfile] = []
        self.notes: list[str] = []
        self.too_large: int | None = None
        self._whole_only = False

    def take(self, sizes: Sequence[int]) -> None:
        """Profile these sizes, in rising order."""
        self._profiler.total = self._profiler.done + MOST_STEPS * len(sizes)
        for size in sizes:
            if self.too_large is not None or (self._whole_only and size < self._runner.rows):
                continue
            try:
                found = self._profiler.size(functools.partial(self._runner, size), size, warm=bool(self.sizes))
            except Exception as error:
                self._failed(size, error)
            else:
                found = found.lighter(self._runner.extra_bytes)
                self.sizes = sorted([*self.sizes, found], key=lambda s: s.micro_batch_size or 0)

    def finish(self) -> None:
        """The largest size that a line through the smaller ones lets fit, and one between where it is no line."""
        largest = self._largest()
        if largest is None or any(size.micro_batch_size == largest for size in self.sizes):
            return
        line = self.profile().at(largest) if len(self.sizes) > 1 else None
        self.take([largest])
        measured = next((size for size in self.sizes if size.micro_batch_size == largest), None)
        middle = -(-self._runner.rows // 2)
        known = [size.micro_batch_size for size in self.sizes]
        if line is not None and measured is not None and middle not in known and _apart(line, measured, self._profiler):
            self.take([middle])

    def profile(self) -> Profile:
        """What was measured so far."""
        return Profile(
            tuple(self.sizes),
            device=paddle.get_device(),
            batch_rows=self._runner.rows,
            too_large=self.too_large,
            device_total_bytes=memory.device_total_bytes(),
            notes=tuple(self.notes),
        )

    def _largest(self) -> int | None:
        """The largest size whose plain step should fit the device; None if only larger ones failed."""
        if self.too_large is not None:
            return None
        total = memory.device_total_bytes()
        if total is None or len(self.sizes) < 2:
            return self._runner.rows
        line = self.profile()
        fits = [n for n in candidate_sizes(self._runner.rows) if peak_part(line.at(n)).peak_bytes < total]
        return max(fits, default=None)

    def _failed(self, size: int, error: Exception) -> None:
        drop_traceback(error)
        if is_oom(error):
            self.too_large = size
            self.notes.append(f"micro-batches of {size} ran out of memory")
            if paddle.get_device().startswith("gpu"):
                paddle.device.cuda.empty_cache()
        elif size < self._runner.rows and not self.sizes:
            # a batch of one row, or any part of the batch, is no batch for this model or loss
            self.notes.append(f"micro-batches of {size} cannot run: {error_line(error)}")
            self._whole_only = type(error).__name__ == "MicroBatchError"
        else:
            raise error


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


def _apart(line: SizeProfile, measured: SizeProfile, profiler: StepProfiler) -> bool:
    """Whether the line misses the measured size, with nothing or everything recomputed."""
    for chosen in ((), tuple(profiler.levels[0]) if profiler.levels else ()):
        expected, found = peak_part(line, chosen).peak_bytes, peak_part(measured, chosen).peak_bytes
        if abs(expected - found) > _LINE_ERROR * found:
            return True
    return False


def with_rows(profile: Profile, rows: int) -> Profile:
    """The profile for a batch of another number of rows (accumulation over more of them)."""
    return replace(profile, batch_rows=rows)
