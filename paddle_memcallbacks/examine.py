"""Recompute examined on a slice of a real batch: is it exact (on demand), and what does it save (always, once).

Gradients, buffers and random states are put back, so the training that follows is the same bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paddle

from paddle_memcallbacks.alerts import announce, warn
from paddle_memcallbacks.batches import batch_rows, split_batch
from paddle_memcallbacks.config import RecomputeConfig
from paddle_memcallbacks.memory import PhaseMeter, StepMemory
from paddle_memcallbacks.microbatch import MicroBatchLoop, StepSnapshot, release_cached_memory
from paddle_memcallbacks.oom import drop_traceback, is_oom
from paddle_memcallbacks.recompute import RecomputeSwitch, savings_report, verify_units

# the first step creates what later steps reuse (moments, caches), so savings are measured on the second
_SAVINGS_STEP = 1


@dataclass(frozen=True)
class Measured:
    """One forward and backward of a slice."""

    memory: StepMemory
    seconds: float

    @property
    def held_bytes(self) -> int:
        """Bytes that forward left allocated."""
        return self.memory.held_after_forward_bytes or 0


@dataclass(frozen=True)
class Savings:
    """The same slice without (``plain``) and with recompute; ``plain`` is None where it did not fit in memory."""

    plain: Measured | None
    recomputed: Measured

    @property
    def saved_bytes(self) -> int | None:
        """Bytes by which the peak fell; None where the plain slice did not fit."""
        return None if self.plain is None else self.plain.memory.peak_bytes - self.recomputed.memory.peak_bytes


class RecomputeExamination:
    """Looks at a run's recompute, once, before a batch is trained on.

    Args:
        switch: the run's units.
        model: the bare model.
        section: the ``recompute`` keys.
        meter: the run's phase meter; it counts nothing while a slice is examined.
    """

    def __init__(
        self, switch: RecomputeSwitch, model: paddle.nn.Layer, section: RecomputeConfig, meter: PhaseMeter
    ) -> None:
        self.savings: Savings | None = None
        self._switch, self._model, self._section, self._meter = switch, model, section, meter
        self._verified = not section.verify
        self._idle_told = False

    def before_batch(
        self, step: int, batch: Any, loop: MicroBatchLoop, forward_backward: Callable[[Any, Any], Any]
    ) -> None:
        """Examine what is due before the batch of ``step`` (0 is the first)."""
        if self._verified and (self.savings is not None or step < _SAVINGS_STEP):
            return
        rows = batch_rows(batch)
        size = min(loop.micro_batch_size or rows, rows)

        def run_slice() -> Any:
            return forward_backward(split_batch(batch, size)[0] if size < rows else split_batch(batch, rows)[0], 1.0)

        with loop.local(), self._meter.paused():
            if not self._verified:
                self._verified = True
                self._verify(run_slice)
            if self.savings is None and step >= _SAVINGS_STEP:
                self._measure(run_slice)

    def after_step(self) -> None:
        """Name units whose forward is never called: a pattern may match a layer that the model does not use."""
        if self._idle_told:
            return
        self._idle_told = True
        idle = self._switch.idle_units()
        if idle:
            warn(
                f"recompute: {len(idle)} unit(s) were not called in the first step and save nothing: "
                f"{', '.join(idle[:5])}. Name the layers that the model's forward calls (a container is not called)."
            )

    def _verify(self, run_slice: Callable[[], Any]) -> None:
        self._switch.remove()
        try:
            result = verify_units(self._model, run_slice, self._switch.names)
        finally:
            self._switch.apply()
        (announce if result.exact else warn)(result.text())

    def _measure(self, run_slice: Callable[[], Any]) -> None:
        snapshot = StepSnapshot(self._model)
        try:
            recomputed = self._run(run_slice)
            snapshot.restore()
            self._switch.remove()
            try:
                plain: Measured | None = self._run(run_slice)
            except Exception as error:
                if not is_oom(error):
                    raise
                drop_traceback(error)
                plain = None
            finally:
                self._switch.apply()
        finally:
            snapshot.restore()
            release_cached_memory()
        self.savings = Savings(plain, recomputed)
        self._tell(self.savings)

    def _run(self, run_slice: Callable[[], Any]) -> Measured:
        with self._meter.measuring() as measured:
            start = time.perf_counter()
            run_slice()
            seconds = time.perf_counter() - start
        return Measured(measured(), seconds)

    def _tell(self, savings: Savings) -> None:
        after = savings.recomputed
        if savings.plain is None:
            announce("recompute: a micro-batch does not fit in memory without it, and does with it")
            return
        before = savings.plain
        text, poor = savings_report(
            before.held_bytes,
            after.held_bytes,
            before.memory.peak_bytes,
            after.memory.peak_bytes,
            before.seconds,
            after.seconds,
        )
        (warn if poor else announce)(f"{text} ({len(self._switch.names)} units, one micro-batch)")
