"""One object for a run. Toolkit integrations drive it; a plain loop calls `Session.step`.

It owns no mechanism: it holds the parts (recompute switch, micro-batch loop, phase meter, loss-scale watch, writers),
calls them in the order of a step, and tells the user what they found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import paddle

from paddle_memcallbacks import memory
from paddle_memcallbacks.alerts import Alert, WarningsToRecord, announce, forget_told, raise_alert, warn, warn_once
from paddle_memcallbacks.config import MemoryConfig, load_config
from paddle_memcallbacks.effective import Effective
from paddle_memcallbacks.examine import RecomputeExamination
from paddle_memcallbacks.loss_scale import LossScaleError, LossScaleWatch, prepare_amp
from paddle_memcallbacks.microbatch import (
    BatchOutcome,
    MicroBatchLoop,
    detached,
    primary,
    weighted_backward,
    world_size,
)
from paddle_memcallbacks.moments import create_moments
from paddle_memcallbacks.opening import header, open_writers, record_folder
from paddle_memcallbacks.planner import Plan
from paddle_memcallbacks.planning import RunPlan
from paddle_memcallbacks.recompute import RecomputeSwitch, find_units, recompute_units, select_units
from paddle_memcallbacks.writers import Writer, WriterGroup

ForwardBackward = Callable[[Any, Any], Any]
ForwardOnly = Callable[[Any], Any]


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


class Session:
    """Holds a run's parts and drives them, step by step.

    Args:
        cfg: a `MemoryConfig`, a mapping of the keys, or the path of a YAML or JSON file.
        model: the layer that is trained; may be wrapped in ``paddle.DataParallel``.
        optimizer: needed by `step`; integrations whose toolkit makes it later hand it to `attach_optimizer`.
        scaler: a ``paddle.amp.GradScaler``; with ``amp: {enable: true}`` and none given, one is made.
        logdir: where the run's record and curves go; ``visualdl.logdir`` goes before it.
        name: the run's name in VisualDL and in reports.
        writers: replaces the writers that the config would open.
        toolkit: who drives the session; all but ``plain`` set up mixed precision themselves.
        facts: the user's own settings, for the record.
        on_action: takes ``checkpoint`` or ``stop`` when the config asks for it; a plain loop reads `alerts` instead.

    Attributes:
        first_batch: called with (session, batch, forward_backward, forward_only) before a run's first batch; the
            commands ``verify`` and ``plan`` set it.
        begun: how many sessions have begun in this process.

    Raises:
        ConfigError: a key is wrong.
        RecomputeError: a pattern matches no layer, or nested ones.
    """

    begun: ClassVar[int] = 0
    first_batch: ClassVar[Callable[[Session, Any, ForwardBackward, ForwardOnly], None] | None] = None

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
        toolkit: str = "plain",
        facts: Mapping[str, Any] | None = None,
        on_action: Callable[[str, Alert], None] | None = None,
    ) -> None:
        forget_told()
        self.config = load_config(cfg)
        self.optimizer, self.scaler = optimizer, scaler
        self.alerts: list[Alert] = []
        self.step_index = 0
        self.meter = memory.PhaseMeter()
        self.effective = Effective()
        self._on_action = on_action or _tell_action
        self._amp = ("off", "")
        self._autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self.model = self._prepare_amp(model) if toolkit == "plain" else model
        self.switch = self._select_units()
        self._examination = self._new_examination()
        self.loop = MicroBatchLoop(
            self.bare_model,
            self.config.gradient_accumulation,
            parallel=self.model,
            on_oom=self.config.memory.on_oom,
            optimizer=optimizer,
        )
        self.writers = open_writers(self.config, logdir, name, writers)
        self._header = header(self.config, name, toolkit, facts)
        self._growth = memory.GrowthWatch()
        self._run_plan = (
            RunPlan(self.config, record_folder(self.config, logdir, name)) if RunPlan.wanted(self.config) else None
        )
        # before there is a scaler already, so that a state that is loaded early waits for it
        self._watch = self._new_watch()
        self._outcome: BatchOutcome | None = None
        self._memory: memory.StepMemory | None = None
        self._metrics: dict[str, float] = {}
        self._began = self._closed = False
        if self.scaler is not None:
            self.watch_scaler(self.scaler)

    @property
    def bare_model(self) -> paddle.nn.Layer:
        """The model without DataParallel around it."""
        return self.model._layers if isinstance(self.model, paddle.DataParallel) else self.model

    # ---- before the first step

    def attach_optimizer(self, optimizer: Any) -> None:
        """The optimizer that the toolkit has made."""
        self.optimizer = optimizer
        self.loop.attach(self.model, optimizer)

    def attach_parallel(self, model: paddle.nn.Layer) -> None:
        """The layer that the toolkit trains: the model, or DataParallel around it."""
        if model is not self.model:
            self.model = model
            self.loop.attach(model, self.optimizer)

    def watch_scaler(self, scaler: Any) -> None:
        """Watch a GradScaler that the toolkit made; a second one replaces the first."""
        self.scaler = scaler
        if self._watch is not None:
            self._watch.bind(scaler, self.optimizer)
            self._watch.attach()

    def apply_plan(self, plan: Plan) -> None:
        """Recompute the plan's units, in the plan's micro-batches, from the next batch on."""
        if self.switch is not None:
            self.switch.remove()
        self.switch = recompute_units(self.bare_model, plan.recompute).apply() if plan.recompute else None
        self._examination = self._new_examination()
        if plan.micro_batch_size is not None:
            self.loop.micro_batch_size = plan.micro_batch_size

    @property
    def watch(self) -> LossScaleWatch | None:
        """The watch on the GradScaler, for guards of LR schedules and EMA."""
        return self._watch

    def set_amp_text(self, active: str, note: str = "") -> None:
        """What the start line says of AMP where the toolkit has set it up."""
        self._amp = (active, note)

    def begin(self, *, step: int = 0, steps_per_epoch: int | None = None) -> None:
        """Switch recompute on and create the optimizer's moments. Does nothing when called again.

        Args:
            step: the step that a resumed run goes on from.
            steps_per_epoch: optimizer steps of one epoch, for the start line.
        """
        if self._began:
            return
        self._began = True
        Session.begun += 1
        self.step_index = step
        self.effective = Effective(steps_per_epoch=steps_per_epoch)
        if Session.first_batch is not None:
            # verify and plan stop before the first step: a record of theirs would stand before the run's own
            self.writers = WriterGroup([])
        self.writers.start(step, self._header)
        self._recording = WarningsToRecord(self._record_warning).__enter__()
        if self.switch is not None:
            self.switch.apply()
        if self.optimizer is not None:
            create_moments(self.optimizer)
        for note in self.config.notes():
            announce(note)

    # ---- a step

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
        self.begin()
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

    def run_batch(self, batch: Any, forward_backward: ForwardBackward, forward_only: ForwardOnly) -> BatchOutcome:
        """The batch in micro-batches: every forward and backward, and the batch's mean loss.

        Args:
            batch: as the loader gave it.
            forward_backward: ``(micro_batch, weight) -> loss``; runs the backward of ``weight * loss`` itself.
            forward_only: ``micro_batch -> loss``; used by the probe, under no_grad.
        """
        if self._outcome is None and Session.first_batch is not None:
            Session.first_batch(self, batch, forward_backward, forward_only)
        if self._outcome is None and self._run_plan is not None:
            self._run_plan.make(self, batch, forward_backward, forward_only)
        if self._examination is not None:
            self._examination.before_batch(self.step_index, batch, self.loop, forward_backward)
        self.meter.begin_step()
        if self._watch is not None:
            self._watch.before_step(self.step_index + 1)
        outcome = self.loop.run(batch, forward_backward, forward_only)
        first = self._outcome is None
        self._outcome = outcome
        if first:
            self._tell_start(outcome)
        return outcome

    def optimizer_phase(self) -> contextlib.AbstractContextManager[Any]:
        """The context that the optimizer's (or the scaler's) step runs in, for its peak."""
        return self.meter.phase("step")

    def after_optimizer(self) -> bool:
        """Call between the scaler's step and clear_grad: whether the step was skipped. Alerts are raised here."""
        if self._watch is None:
            return False
        try:
            verdict = self._watch.after_step(self.step_index + 1)
        except LossScaleError as error:
            for alert in error.verdict.alerts:
                self._raise(alert)
            raise
        for alert in verdict.alerts:
            self._raise(alert)
        return verdict.skipped

    def end_step(self, loss: Any = None, skipped: bool | None = None) -> dict[str, float]:
        """Call after clear_grad. Reads the counters, raises alerts, writes what is due.

        Args:
            loss: the batch's loss; read from the device only where metrics are due.
            skipped: what `after_optimizer` said; None where it was not called.

        Returns:
            The metrics that are due at this step, by tag; empty where none are.
        """
        if skipped is None:
            self.after_optimizer()
        self.step_index += 1
        self._memory = self.meter.end_step()
        if self._examination is not None:
            self._examination.after_step()
        if self._run_plan is not None and self._memory.peaks_measured:
            self._run_plan.after_step(self, self.step_index, self._memory.peak_bytes)
        if not self.config.memory.enable:
            return {}
        reading = memory.memory_reading()
        growth = self._growth.observe(self.step_index, reading.allocated_bytes)
        if growth is not None:
            self._raise(growth)
        due = self.step_index == 1 or self.step_index % self.config.memory.interval == 0
        self._metrics = self._collect(reading, due)
        if due and loss is not None:
            self._metrics["train/loss"] = float(primary(loss))
        self.writers.write(self.step_index, self._metrics)
        return dict(self._metrics) if due else {}

    def metrics(self) -> dict[str, float]:
        """The newest metrics by tag."""
        return dict(self._metrics)

    # ---- state and end

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain values: the step, the micro-batch size, the loss scale's state."""
        return {
            "step": self.step_index,
            "loop": self.loop.state_dict(),
            "loss_scale": self._watch.state_dict() if self._watch is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave. An empty loss-scale state says so and starts fresh."""
        self.step_index = int(state.get("step", 0))
        self.loop.load_state_dict(state.get("loop", {}))
        if self._watch is not None:
            self._watch.load_state_dict(state.get("loss_scale", {}))

    def close(self, reason: str = "finished") -> None:
        """End the run: recompute off, the scaler let go, the record's last line, files closed. May be called twice."""
        if self._closed:
            return
        self._closed = True
        summary: dict[str, Any] = {"reason": reason, "step": self.step_index, "alerts": len(self.alerts)}
        if self._watch is not None:
            summary["loss_scale"] = self._watch.summary()
            self._watch.detach()
        if self.switch is not None:
            self.switch.remove()
        if self._began:
            self._recording.__exit__()
            self.writers.finish(summary)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close("finished" if kind is None else f"{kind.__name__}: {error}"[:500])

    # ---- parts

    def _new_examination(self) -> RecomputeExamination | None:
        if self.switch is None:
            return None
        return RecomputeExamination(self.switch, self.bare_model, self.config.recompute, self.meter)

    def _new_watch(self) -> LossScaleWatch | None:
        section = self.config.loss_scale
        if not section.enable:
            return None
        return LossScaleWatch(None, self.optimizer, self.bare_model, section, on_action=self._on_action)

    def _select_units(self) -> RecomputeSwitch | None:
        section = self.config.recompute
        if not section.enable:
            return None
        chosen = select_units(
            self.bare_model, section.layers, every_n=section.every_n, first=section.first, last=section.last
        )
        for note in chosen.notes:
            announce(note)
        return recompute_units(self.bare_model, chosen.names)

    def _prepare_amp(self, model: paddle.nn.Layer) -> paddle.nn.Layer:
        if not self.config.amp.enable:
            return model
        accumulates = self.config.gradient_accumulation.enable
        prepared = prepare_amp(model, self.optimizer, self.config.amp, scaler=self.scaler, accumulates=accumulates)
        self.optimizer, self.scaler, self._autocast = prepared.optimizer, prepared.scaler, prepared.autocast
        self._amp = (prepared.active, prepared.note)
        if prepared.active == "off":
            warn_once("amp_off", prepared.note)
        return prepared.model

    def _optimizer_step(self) -> None:
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def _tell_start(self, outcome: BatchOutcome) -> None:
        budget = self.config.memory.budget
        self.effective = Effective(
            rows=outcome.rows,
            micro_batch_size=outcome.micro_batch_size,
            ranks=world_size(),
            steps_per_epoch=self.effective.steps_per_epoch,
            amp=self._amp[0],
            amp_note=self._amp[1],
            units=len(self.switch.names) if self.switch is not None else 0,
            units_found=max(len(find_units(self.bare_model)), len(self.switch.names) if self.switch is not None else 0),
            budget_bytes=budget if isinstance(budget, int) else None,
            weight=self.loop.describe(),
        )
        announce(self.effective.line())
        self.writers.describe(asdict(self.effective))

    def _collect(self, reading: memory.MemoryReading, due: bool) -> dict[str, float]:
        assert self._outcome is not None
        host_bytes = memory.host_rss_bytes() if due else None
        metrics = memory.memory_metrics(reading, self._memory, host_bytes)
        if self.effective.budget_bytes is not None:
            metrics["memory/budget_gib"] = self.effective.budget_bytes / memory.GIB
        if self._run_plan is not None and self._run_plan.plan is not None:
            metrics["memory/predicted_peak_gib"] = self._run_plan.plan.predicted_peak_bytes / memory.GIB
        metrics["memory/oom_count"] = float(self.loop.oom_count)
        metrics["accumulation/micro_batches"] = float(self._outcome.micro_batches)
        metrics["accumulation/micro_batch_size"] = float(self._outcome.micro_batch_size)
        metrics["recompute/units"] = float(self.effective.units)
        savings = self._examination.savings if self._examination is not None else None
        if savings is not None and savings.saved_bytes is not None:
            metrics["recompute/saved_gib"] = savings.saved_bytes / memory.GIB
        if self._watch is not None:
            metrics.update(self._watch.metrics())
        return metrics

    def _record_warning(self, text: str) -> None:
        self.writers.write_text(self.step_index, "alerts/warning", text)

    def _raise(self, alert: Alert) -> None:
        self.alerts.append(alert)
        raise_alert(alert)
        self.writers.write_text(alert.step, f"alerts/{alert.kind}", alert.text())


def _tell_action(action: str, alert: Alert) -> None:
    """A plain loop owns its checkpoints and its end, so the action is told."""
    warn(f"loss_scale asks for '{action}': {alert.message}. A plain loop does it itself: see session.alerts")
