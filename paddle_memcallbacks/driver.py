"""What toolkit integrations drive: a run's parts, called in the order of a step.

It owns no mechanism: it holds the parts (recompute switch, micro-batch loop, phase meter, loss-scale watch, plan) and
tells the user what they found. `Session` adds the plain loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import paddle

from paddle_memcallbacks import memory
from paddle_memcallbacks.alerts import Alert, announce, forget_told, warn
from paddle_memcallbacks.config import MemoryConfig, load_config
from paddle_memcallbacks.effective import Effective
from paddle_memcallbacks.examine import RecomputeExamination
from paddle_memcallbacks.loss_scale import LossScaleError, LossScaleWatch
from paddle_memcallbacks.metrics import RunFacts, run_metrics
from paddle_memcallbacks.microbatch import BatchOutcome, MicroBatchLoop, primary, world_size
from paddle_memcallbacks.moments import create_moments
from paddle_memcallbacks.opening import header, open_writers, rank_0, record_folder
from paddle_memcallbacks.per_layer import held_by_unit, held_table, held_text
from paddle_memcallbacks.planner import Plan
from paddle_memcallbacks.planning import RunPlan
from paddle_memcallbacks.recompute import RecomputeSwitch, find_units, recompute_units, select_units
from paddle_memcallbacks.telling import Telling
from paddle_memcallbacks.writers import Writer, WriterGroup

ForwardBackward = Callable[[Any, Any], Any]
ForwardOnly = Callable[[Any], Any]


class RunDriver:
    """Holds a run's parts and drives them, step by step.

    The order: `attach_optimizer`, `watch_scaler`, `begin`; then for each batch `run_batch`, `optimizer_phase`,
    `after_optimizer` before the gradients are cleared, `end_step` after; at last `close`.

    Args:
        cfg: a `MemoryConfig`, a mapping of the keys, or the path of a YAML or JSON file.
        model: the layer that is trained; may be wrapped in ``paddle.DataParallel``.
        optimizer: may come later, by `attach_optimizer`.
        logdir: where the run's record and curves go.
        name: the run's name in VisualDL and in reports.
        writers: replaces the writers that the config would open.
        toolkit: who drives, for the record.
        on_action: takes ``checkpoint`` or ``stop`` when the config asks for it; None tells the user.

    Attributes:
        first_batch: called with (driver, batch, forward_backward, forward_only) before a run's first batch; the
            commands ``verify`` and ``plan`` set it, and nothing is recorded then.
        begun: how many runs have begun in this process.

    Raises:
        ConfigError: a key is wrong.
        RecomputeError: a pattern matches no layer, or nested ones.
    """

    begun: ClassVar[int] = 0
    first_batch: ClassVar[Callable[[RunDriver, Any, ForwardBackward, ForwardOnly], None] | None] = None

    def __init__(
        self,
        cfg: MemoryConfig | Mapping[str, Any] | str | Path,
        *,
        model: paddle.nn.Layer,
        optimizer: Any = None,
        logdir: str | Path | None = None,
        name: str | None = None,
        writers: Sequence[Writer] | None = None,
        toolkit: str = "plain",
        on_action: Callable[[str, Alert], None] | None = None,
    ) -> None:
        forget_told()
        self.config = load_config(cfg)
        self.model, self.optimizer = model, optimizer
        self.scaler: Any = None
        self.step_index = 0
        self.meter = memory.PhaseMeter()
        self.effective = Effective()
        self.switch = self._select_units()
        self._examination = self._new_examination()
        self.loop = MicroBatchLoop(
            self.bare_model,
            self.config.gradient_accumulation,
            parallel=model,
            on_oom=self.config.memory.on_oom,
            optimizer=optimizer,
        )
        self.loop.oom_notes = self._oom_notes
        folder = record_folder(self.config, logdir, name)
        opened = open_writers(self.config, folder, name=name) if writers is None else rank_0(writers)
        self.telling = Telling(WriterGroup(opened), header(self.config, name, toolkit))
        self.watch = self._new_watch(on_action or _tell_action)
        self._run_plan = RunPlan(self.config, folder) if RunPlan.wanted(self.config) else None
        self._growth = memory.GrowthWatch()
        self._amp = ("off", "")
        self._outcome: BatchOutcome | None = None
        self._memory: memory.StepMemory | None = None
        self._metrics: dict[str, float] = {}
        self._began = self._closed = self._told_layers = False

    @property
    def bare_model(self) -> paddle.nn.Layer:
        """The model without DataParallel around it."""
        return self.model._layers if isinstance(self.model, paddle.DataParallel) else self.model

    @property
    def alerts(self) -> list[Alert]:
        """Every alert so far."""
        return self.telling.alerts

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
        if self.watch is not None:
            self.watch.bind(scaler, self.optimizer)
            self.watch.attach()

    def apply_plan(self, plan: Plan) -> None:
        """Recompute the plan's units, in the plan's micro-batches, from the next batch on."""
        if self.switch is not None:
            self.switch.remove()
        self.switch = recompute_units(self.bare_model, plan.recompute).apply() if plan.recompute else None
        self._examination = self._new_examination()
        if plan.micro_batch_size is not None:
            self.loop.micro_batch_size = plan.micro_batch_size

    def set_amp_text(self, active: str, note: str = "") -> None:
        """What the start line says of AMP where the toolkit has set it up."""
        self._amp = (active, note)

    def begin(self, *, step: int = 0, steps_per_epoch: int | None = None) -> None:
        """Switch recompute on and create the optimizer's moments. Does nothing when called again.

        Args:
            step: the step that a resumed run goes on from.
            steps_per_epoch: optimizer steps of one epoch, for the start line.

        Raises:
            RuntimeError: the run is closed.
        """
        if self._closed:
            raise RuntimeError("this run is closed: its recompute is off and its record has ended. Begin a new one")
        if self._began:
            return
        self._began = True
        RunDriver.begun += 1
        self.step_index = step
        self.effective = Effective(steps_per_epoch=steps_per_epoch)
        # verify and plan stop before the first step: a record of theirs would stand before the run's own
        self.telling.start(step, recorded=self.first_batch is None)
        if self.switch is not None:
            self.switch.apply()
        if self.optimizer is not None:
            create_moments(self.optimizer)
        for note in self.config.notes():
            announce(note)

    # ---- a step

    def run_batch(self, batch: Any, forward_backward: ForwardBackward, forward_only: ForwardOnly) -> BatchOutcome:
        """The batch in micro-batches: every forward and backward, and the batch's mean loss.

        Args:
            batch: as the loader gave it.
            forward_backward: ``(micro_batch, weight) -> loss``; runs the backward of ``weight * loss`` itself.
            forward_only: ``micro_batch -> loss``; used by the probe, under no_grad.
        """
        self.begin()
        first = self._outcome is None
        examine = type(self).first_batch
        if first and examine is not None:
            examine(self, batch, forward_backward, forward_only)
        if first and self._run_plan is not None:
            self._run_plan.make(self, batch, forward_backward, forward_only)
        if self._examination is not None:
            self._examination.before_batch(self.step_index, batch, self.loop, forward_backward)
        self.meter.begin_step()
        if self.watch is not None:
            self.watch.before_step(self.step_index + 1)
        with self._by_layer():
            outcome = self.loop.run(batch, forward_backward, forward_only)
        self._outcome = outcome
        if first:
            self._tell_start(outcome)
        return outcome

    def optimizer_phase(self) -> contextlib.AbstractContextManager[Any]:
        """The context that the optimizer's (or the scaler's) step runs in, for its peak."""
        return self.meter.phase("step")

    def after_optimizer(self) -> bool:
        """Call between the scaler's step and clear_grad: whether the step was skipped. Alerts are raised here."""
        if self.watch is None:
            return False
        try:
            verdict = self.watch.after_step(self.step_index + 1)
        except LossScaleError as error:
            for alert in error.verdict.alerts:
                self.telling.alert(alert)
            raise
        for alert in verdict.alerts:
            self.telling.alert(alert)
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
            self.telling.alert(growth)
        due = self.step_index == 1 or self.step_index % self.config.memory.interval == 0
        self._metrics = self._collect(reading, due)
        if due and loss is not None:
            self._metrics["train/loss"] = float(primary(loss))
        self.telling.metrics(self.step_index, self._metrics)
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
            "loss_scale": self.watch.state_dict() if self.watch is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave. An empty loss-scale state says so and starts fresh."""
        self.step_index = int(state.get("step", 0))
        self.loop.load_state_dict(state.get("loop", {}))
        if self.watch is not None:
            self.watch.load_state_dict(state.get("loss_scale", {}))

    def close(self, reason: str = "finished") -> None:
        """End the run: recompute off, the scaler let go, the record's last line, files closed. May be called twice."""
        if self._closed:
            return
        self._closed = True
        summary: dict[str, Any] = {"reason": reason, "step": self.step_index}
        if self.watch is not None:
            summary["loss_scale"] = self.watch.summary()
            self.watch.detach()
        if self.switch is not None:
            self.switch.remove()
        self.telling.finish(summary)

    # ---- parts

    def _new_examination(self) -> RecomputeExamination | None:
        if self.switch is None:
            return None
        return RecomputeExamination(self.switch, self.bare_model, self.config.recompute, self.meter)

    def _new_watch(self, on_action: Callable[[str, Alert], None]) -> LossScaleWatch | None:
        section = self.config.loss_scale
        if not section.enable:
            return None
        # before there is a scaler already, so that a state that is loaded early waits for it
        return LossScaleWatch(None, self.optimizer, self.bare_model, section, on_action=on_action)

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

    @contextlib.contextmanager
    def _by_layer(self) -> Iterator[None]:
        """In the second step, once: what each unit holds. The first step also creates what later ones reuse."""
        section = self.config.memory
        if self._outcome is None or self._told_layers or not (section.enable and section.per_layer):
            yield
            return
        self._told_layers = True
        with held_by_unit(self.bare_model, find_units(self.bare_model)) as held:
            yield
        if any(held.values()):
            announce(held_text(held))
            self.telling.text("memory/per_layer", held_table(held))

    def _tell_start(self, outcome: BatchOutcome) -> None:
        budget = self.config.memory.budget
        units = len(self.switch.names) if self.switch is not None else 0
        self.effective = replace(
            self.effective,
            rows=outcome.rows,
            micro_batch_size=outcome.micro_batch_size,
            ranks=world_size(),
            amp=self._amp[0],
            amp_note=self._amp[1],
            units=units,
            units_found=max(len(find_units(self.bare_model)), units),
            budget_bytes=budget if isinstance(budget, int) else None,
            weight=self.loop.describe(),
        )
        announce(self.effective.line())
        self.telling.describe(asdict(self.effective))

    def _collect(self, reading: memory.MemoryReading, due: bool) -> dict[str, float]:
        assert self._outcome is not None
        plan = self._run_plan.plan if self._run_plan is not None else None
        savings = self._examination.savings if self._examination is not None else None
        facts = RunFacts(
            micro_batches=self._outcome.micro_batches,
            micro_batch_size=self._outcome.micro_batch_size,
            units=len(self.switch.names) if self.switch is not None else 0,
            oom_count=self.loop.oom_count,
            budget_bytes=self.effective.budget_bytes,
            predicted_peak_bytes=plan.predicted_peak_bytes if plan is not None else None,
            saved_bytes=savings.saved_bytes if savings is not None else None,
        )
        host_bytes = memory.host_rss_bytes() if due else None
        scaled = self.watch.metrics() if self.watch is not None else {}
        return {**memory.memory_metrics(reading, self._memory, host_bytes), **run_metrics(facts), **scaled}

    def _oom_notes(self) -> list[str]:
        """The planner's figures for the out-of-memory report."""
        plan = self._run_plan.plan if self._run_plan is not None else None
        return [f"the plan was: {plan.text()}"] if plan is not None else []


def _tell_action(action: str, alert: Alert) -> None:
    """A plain loop owns its checkpoints and its end, so the action is told."""
    warn(f"loss_scale asks for '{action}': {alert.message}. A plain loop does it itself: see session.alerts")
