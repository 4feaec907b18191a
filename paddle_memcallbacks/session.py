"""A plain loop: one object for a run, one call a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paddle

from paddle_memcallbacks.alerts import Alert, warn_once
from paddle_memcallbacks.config import MemoryConfig, load_config
from paddle_memcallbacks.driver import ForwardBackward, ForwardOnly, RunDriver
from paddle_memcallbacks.loss_scale import prepare_amp
from paddle_memcallbacks.microbatch import detached, weighted_backward
from paddle_memcallbacks.writers import Writer


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did. ``float(result)`` is the batch's mean loss and waits for the device.

    Attributes:
        loss: 0-D tensor, detached.
        skipped: GradScaler left the step out for a non-finite gradient.
        micro_batches: slices that the batch went through in.
        peak_bytes: the largest allocated bytes within the step; on paddle 2.6 the largest since the start.
    """

    loss: paddle.Tensor
    skipped: bool
    micro_batches: int
    peak_bytes: int

    def __float__(self) -> float:
        return float(self.loss)


class Session(RunDriver):
    """A run of a plain loop: `step` for every batch. Integrations use its base, `RunDriver`, with a toolkit's loop.

    Args:
        cfg: a `MemoryConfig`, a mapping of the keys, or the path of a YAML or JSON file.
        model: the layer that is trained; may be wrapped in ``paddle.DataParallel``.
        optimizer: needed by `step`.
        scaler: a ``paddle.amp.GradScaler``; with ``amp: {enable: true}`` and none given, one is made.
        logdir: where the run's record and curves go; None: only the console tells.
        name: the run's name in VisualDL and in reports.
        writers: replaces the writers that the config would open.
        on_action: takes ``checkpoint`` or ``stop`` when the config asks for it; None tells the user.

    Raises:
        ConfigError: a key is wrong.
        RecomputeError: a pattern matches no layer, or nested ones.
    """

    def __init__(
        self,
        cfg: MemoryConfig | Mapping[str, Any] | str | Path,
        *,
        model: paddle.nn.Layer,
        optimizer: Any = None,
        scaler: Any = None,
        logdir: str | Path | None = None,
        name: str | None = None,
        writers: Sequence[Writer] | None = None,
        on_action: Callable[[str, Alert], None] | None = None,
    ) -> None:
        config = load_config(cfg)
        accumulates = config.gradient_accumulation.enable
        amp = prepare_amp(model, optimizer, config.amp, scaler=scaler, accumulates=accumulates)
        super().__init__(
            config,
            model=amp.model,
            optimizer=amp.optimizer,
            logdir=logdir,
            name=name,
            writers=writers,
            on_action=on_action,
        )
        self.scaler, self._autocast = amp.scaler, amp.autocast
        self.set_amp_text(amp.active, amp.note)
        if amp.active == "off" and amp.note:
            warn_once("amp_off", amp.note)
        if self.scaler is not None:
            self.watch_scaler(self.scaler)

    def step(self, batch: Any, compute_loss: Callable[[paddle.nn.Layer, Any], paddle.Tensor]) -> StepResult:
        """One optimizer step on one batch: forward, backward, scaler, optimizer, clear_grad (not the LR schedule).

        Args:
            batch: tensors, lists, tuples or dicts that share their first axis.
            compute_loss: ``compute_loss(model, micro_batch)`` returns the loss as a 0-D tensor.

        Raises:
            MicroBatchError: the batch or its loss cannot be sliced exactly.
        """
        if self.optimizer is None:
            raise ValueError("Session.step needs an optimizer: Session(cfg, model=..., optimizer=...)")
        forward_backward, forward_only = self.plain_functions(compute_loss)
        outcome = self.run_batch(batch, forward_backward, forward_only)
        with self.optimizer_phase():
            self._optimizer_step()
        skipped = self.after_optimizer()
        self.optimizer.clear_grad()
        self.end_step(loss=outcome.mean_loss, skipped=skipped)
        assert self._memory is not None
        return StepResult(outcome.mean_loss, skipped, outcome.micro_batches, self._memory.peak_bytes)

    def plain_functions(
        self, compute_loss: Callable[[paddle.nn.Layer, Any], Any]
    ) -> tuple[ForwardBackward, ForwardOnly]:
        """The two functions that `run_batch` takes, from a plain loop's ``compute_loss``."""

        def forward_only(micro_batch: Any) -> Any:
            with self._autocast():
                return compute_loss(self.model, micro_batch)

        def forward_backward(micro_batch: Any, weight: Any) -> Any:
            with self.meter.phase("forward"):
                loss = forward_only(micro_batch)
            with self.meter.phase("backward"):
                weighted_backward(loss, weight, self.scaler)
            return detached(loss)

        return forward_backward, forward_only

    def _optimizer_step(self) -> None:
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close("finished" if kind is None else f"{kind.__name__}: {error}"[:500])
