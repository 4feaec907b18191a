"""One train() of the Trainer: the settings that hold for it, and the RunDriver it drives."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle

from paddle_memcallbacks.alerts import Alert, announce, warn
from paddle_memcallbacks.config import ConfigError, MemoryConfig
from paddle_memcallbacks.driver import RunDriver
from paddle_memcallbacks.microbatch import detached, primary

from .arguments_view import overlay
from .curves import Curves
from .layout import Layout, check_resume
from .loader import enlarge
from .precision import apply_amp, decide_amp
from .refusals import refuse_bypassed_step, refuse_unsupported
from .takeover import Accumulation, decide_accumulation, decide_recompute

STATE_FILE = "memcallbacks_state.json"


class Run:
    """Settles the Trainer's settings and ours, then turns the Trainer's events into a RunDriver's calls.

    Args:
        config: our keys.
        trainer: PaddleNLP's Trainer.
        base_class: the class whose methods are wrapped.
        resume_from: the checkpoint's folder, or None.

    Raises:
        ConfigError: keys contradict each other or the Trainer's mode; before anything was built.
    """

    def __init__(self, config: MemoryConfig, trainer: Any, base_class: type, resume_from: str | None) -> None:
        refuse_unsupported(trainer, base_class)
        args = trainer.args
        given = config.model_fields_set
        self.trainer = trainer
        self.resume_from = resume_from
        self.users_steps: int = args.gradient_accumulation_steps
        self.users_batch: int = args.per_device_train_batch_size
        self.accumulation = decide_accumulation(
            config.gradient_accumulation, "gradient_accumulation" in given, self.users_steps, self.users_batch
        )
        recompute, notes = decide_recompute(config.recompute, "recompute" in given, bool(args.recompute))
        self.notes = self.accumulation.notes + notes
        self.amp_arguments = decide_amp(config.amp, "amp" in given, args)
        self.was_wrapped = bool(args.fp16 or args.bf16)
        self.config = config.model_copy(update={"recompute": recompute})
        self.in_slice = False
        self.curves = Curves(trainer, self.config)
        self.session = self._open_session(self.accumulation)
        self._phase = contextlib.ExitStack()
        self._reached = True
        self._losses: list[tuple[int, Any]] = []
        self._actions: list[str] = []

    # ---- around train()

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """The Trainer with whole batches, our recompute and settled AMP; everything as it was afterwards."""
        trainer, args = self.trainer, self.trainer.args
        for note in self.notes:
            announce(note)
        rows = self.users_batch * self.accumulation.factor
        values = {
            **self.amp_arguments,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": 1,
            "recompute": False,
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(_native_recompute_off(trainer.model, bool(args.recompute)))
            stack.enter_context(overlay(args, **values))
            stack.enter_context(self.curves.guarded())
            self.session.set_amp_text(*apply_amp(trainer, self.config.amp, self.was_wrapped))
            stack.enter_context(self._enlarged_loader(rows))
            yield

    @contextlib.contextmanager
    def _enlarged_loader(self, rows: int) -> Iterator[None]:
        trainer = self.trainer
        get_loader = trainer.get_train_dataloader

        def get_train_dataloader() -> Any:
            return enlarge(get_loader(), self.accumulation.factor, rows, type(trainer).__name__)

        trainer.__dict__["get_train_dataloader"] = get_train_dataloader
        try:
            yield
        finally:
            trainer.__dict__.pop("get_train_dataloader", None)

    def close(self, reason: str) -> None:
        """The run is over; may come in the middle of anything."""
        self._phase.close()
        self.session.close(reason)

    # ---- the Trainer's events

    def begin(self, state: Any, optimizer: Any) -> None:
        """Before the first step; the optimizer holds what a checkpoint gave it."""
        layout = self._layout()
        if layout.steps_per_epoch == 0:
            raise ConfigError(
                f"the train loader gives no batch: a step takes {layout.batch_rows} rows, and drop_last drops "
                "what is less. Use smaller batches or fewer accumulation steps, or turn dataloader_drop_last off."
            )
        if self.resume_from is not None and state.global_step > 0:
            self._resume(state.global_step, layout)
        self.session.attach_optimizer(optimizer)
        if self.trainer.do_grad_scaling:
            self.session.watch_scaler(self.trainer.scaler)
            if self.session.watch is not None:
                # the Trainer's own loop steps the schedule only where the optimizer ran
                self.session.watch.hold("the LR schedule")
        self.session.begin(step=state.global_step, steps_per_epoch=layout.steps_per_epoch)

    def expect_step(self) -> None:
        """A step begins: its forward and backward must reach `training_step`."""
        self._reached = False

    def training_step(self, original: Callable[..., Any], model: Any, inputs: Any) -> Any:
        """The Trainer's own training_step, micro-batch by micro-batch."""
        self._reached = True
        session = self.session
        session.attach_parallel(model)
        model.train()

        def forward_backward(micro_batch: Any, weight: Any) -> Any:
            return self._slice(original, model, micro_batch, weight)

        outcome = session.run_batch(inputs, forward_backward, lambda micro_batch: self._forward(model, micro_batch))
        self._losses.append((self.trainer.state.global_step + 1, outcome.mean_loss))
        return outcome.mean_loss

    def _slice(self, original: Callable[..., Any], model: Any, micro_batch: Any, weight: Any) -> Any:
        """One micro-batch through the Trainer's training_step, whose loss is weighted between forward and backward."""
        trainer, meter = self.trainer, self.session.meter
        compute_loss = trainer.compute_loss
        seen: list[Any] = []
        with contextlib.ExitStack() as phase:

            def weighted(model: Any, inputs: Any, **kwargs: Any) -> Any:
                with meter.phase("forward"):
                    loss = compute_loss(model, inputs, **kwargs)
                seen.append(detached(loss))
                phase.enter_context(meter.phase("backward"))
                return primary(loss) * weight

            trainer.__dict__["compute_loss"] = weighted
            self.in_slice = True
            try:
                original(trainer, model, micro_batch)
            finally:
                self.in_slice = False
                trainer.__dict__.pop("compute_loss", None)
        return seen[-1]

    def _forward(self, model: Any, micro_batch: Any) -> Any:
        # not model.train(): the probe holds dropout layers in eval
        trainer = self.trainer
        inputs = trainer._prepare_inputs(micro_batch)
        with trainer.autocast_smart_context_manager():
            return trainer.compute_loss(model, inputs)

    def optimizer_begin(self, scaler: Any) -> None:
        """Between backward and the optimizer's step."""
        if not self._reached:
            refuse_bypassed_step(self.trainer)
        self._phase.enter_context(self.session.optimizer_phase())

    def optimizer_end(self) -> None:
        """After clear_grad."""
        self._phase.close()

    def step_end(self, control: Any) -> Any:
        """The step is over: what is due is written, and actions that the config names are taken."""
        loss = self._losses[-1][1] if self._losses else None
        self.session.end_step(loss=loss)
        for action in self._actions:
            control.should_save = control.should_save or action in ("checkpoint", "stop")
            control.should_training_stop = control.should_training_stop or action == "stop"
        self._actions.clear()
        return control

    def explain_loss(self, logs: dict[str, float]) -> None:
        """Name the steps whose loss was not finite; the Trainer logs only their sum."""
        if "loss" in logs and not math.isfinite(logs["loss"]):
            bad = [step for step, loss in self._losses if not math.isfinite(float(loss))]
            if bad:
                warn(
                    f"non-finite loss in {len(bad)} step(s): {', '.join(map(str, bad[:10]))}. The steps after them are "
                    "logged with their own loss."
                )
        if "loss" in logs:
            self._losses.clear()

    # ---- checkpoints

    def save(self, folder: Path) -> None:
        """Write the layout and the session's state beside the Trainer's checkpoint (rank 0)."""
        if not self.trainer.args.should_save or not folder.is_dir():
            return
        state = {"layout": self._layout().as_dict(), "session": self.session.state_dict()}
        try:
            (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        except OSError as error:
            warn(f"{folder / STATE_FILE} could not be written ({error}); a resume reads the Trainer's own files only")

    def _resume(self, step: int, layout: Layout) -> None:
        file = Path(str(self.resume_from)) / STATE_FILE
        if file.is_file():
            state = json.loads(file.read_text(encoding="utf-8"))
            saved, by = Layout(**state["layout"]), "this library"
            self.session.load_state_dict(state["session"])
        else:
            saved, by = self._native_layout(layout), "the Trainer's own accumulation"
        if not self.trainer.args.ignore_data_skip:
            announce(check_resume(step, saved, layout, by))

    def _native_layout(self, now: Layout) -> Layout:
        """The layout of a checkpoint that the Trainer wrote without this library, from its saved arguments."""
        file = Path(str(self.resume_from)) / "training_args.bin"
        if not file.is_file():
            return now
        args = paddle.load(str(file))
        micro = args.per_device_train_batch_size * max(args.dataset_world_size, 1)
        steps = args.gradient_accumulation_steps
        length = self._micro_batches_per_epoch(micro)
        return Layout(micro * steps, None if length is None else max(length // steps, 1))

    def _micro_batches_per_epoch(self, micro_rows: int) -> int | None:
        dataset = self.trainer.train_dataset
        return -(-len(dataset) // micro_rows) if hasattr(dataset, "__len__") else None

    def _layout(self) -> Layout:
        args = self.trainer.args
        loader = self.trainer.callback_handler.train_dataloader
        try:
            steps: int | None = len(loader)
        except (TypeError, ValueError):
            # an iterable dataset has no length: TypeError by Python, ValueError by paddle
            steps = None
        return Layout(args.train_batch_size * args.dataset_world_size, steps)

    # ---- parts

    def _open_session(self, accumulation: Accumulation) -> RunDriver:
        args = self.trainer.args
        session = RunDriver(
            self.config,
            model=self.trainer.model,
            logdir=args.output_dir,
            name=Path(args.output_dir).name,
            writers=self.curves.writers(Path(args.output_dir)),
            toolkit="paddlenlp",
            on_action=self._on_action,
        )
        session.loop.micro_batch_size = accumulation.micro_batch_size
        return session

    def _on_action(self, action: str, alert: Alert) -> None:
        self._actions.append(action)


@contextlib.contextmanager
def _native_recompute_off(model: Any, native: bool) -> Iterator[None]:
    """The layers that the Trainer's ``--recompute`` has switched on are off while ours does the work."""
    layers = [
        layer
        for layer in model.sublayers(include_self=True)
        if native and getattr(layer, "enable_recompute", False) is True
    ]
    for layer in layers:
        layer.enable_recompute = False
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_recompute = True
