"""One train() of a PaddleDetection Trainer, and the RunDriver that it drives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle
from ppdet.engine import callbacks as ppdet_callbacks

from paddle_memcallbacks.alerts import Alert, announce, warn
from paddle_memcallbacks.config import MemoryConfig
from paddle_memcallbacks.driver import RunDriver
from paddle_memcallbacks.loss_scale import guard_method, guard_scheduler, restore_scaler

from . import resume, watched
from .curves import own_vdl_callback, writers_for
from .forward import handed_back, run_sliced
from .prepare import Prepared, amp_text
from .stages import find_stages
from .talk import SILENT, talk_of

STEP_CHECKPOINT = "memcallbacks_step_{}"


class TrainingStopped(Exception):
    """A config's ``stop`` ends train(); it never leaves `Run.training`."""


class Run:
    """Stands between the Trainer's loop and a RunDriver while train() runs.

    Args:
        trainer: ppdet's Trainer, built.
        prepared: our keys, and what the Trainer was built with.
    """

    def __init__(self, trainer: Any, prepared: Prepared) -> None:
        self.trainer = trainer
        self.prepared = prepared
        self.session: RunDriver | None = None
        self.scaler: Any = None
        self.parallel: Any = None
        self.talk = SILENT
        self.resumed: dict[str, Any] | None = None
        self._stack = contextlib.ExitStack()
        self._outcome: Any = None
        self._actions: list[tuple[str, Alert]] = []

    # ---- around train()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Everything that stands in for Paddle's and PaddleDetection's objects, for as long as train() runs."""
        trainer = self.trainer
        reason = "finished"
        with self._stack as stack:
            stack.callback(lambda: self._close(reason))
            for owner, name, value in self._replacements():
                stack.enter_context(watched.replaced(owner, name, value))
            stack.enter_context(watched.called_through(trainer.model, self._forward))
            try:
                yield
            except TrainingStopped as stopped:
                reason = str(stopped)
                warn(f"training stopped: {reason}")
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"[:500]
                raise

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        trainer, amp = self.trainer, self.prepared.config.amp
        settings = {
            "incr_ratio": amp.incr_ratio,
            "decr_ratio": amp.decr_ratio,
            "incr_every_n_steps": amp.incr_every_n_steps,
            "decr_every_n_nan_or_inf": amp.decr_every_n_nan_or_inf,
            "use_dynamic_loss_scaling": amp.use_dynamic_loss_scaling,
        }
        scaler = watched.scaler_class(paddle.amp.GradScaler, settings, self._saw_scaler, self._step_phase)
        yield paddle.amp, "GradScaler", scaler
        yield paddle, "DataParallel", watched.parallel_class(paddle.DataParallel, self._saw_parallel)
        if amp.enable and amp.dtype != "float16":
            yield paddle.amp, "auto_cast", _with_dtype(paddle.amp.auto_cast, amp.dtype)
        save_model = resume.saving(ppdet_callbacks.save_model, self._extra_state)
        yield ppdet_callbacks, "save_model", save_model
        yield trainer.optimizer, "step", watched.stepping(trainer.optimizer.step, self._step_phase)

    def _saw_scaler(self, scaler: Any) -> None:
        self.scaler = scaler

    def _saw_parallel(self, parallel: Any) -> None:
        self.parallel = parallel

    @contextlib.contextmanager
    def _step_phase(self) -> Iterator[None]:
        if self.session is None:
            yield
            return
        with self.session.optimizer_phase():
            yield

    def _close(self, reason: str) -> None:
        if self.session is not None:
            self.session.close(reason)

    # ---- the loop's events

    def begin(self) -> None:
        """Before the first batch; the scaler and the parallel model are there by now."""
        trainer = self.trainer
        steps = len(trainer.loader)
        start = trainer.start_epoch * steps
        self.session = session = self._open_session()
        self.talk = talk_of(trainer.model) if trainer._nranks > 1 else SILENT
        if self.scaler is not None:
            session.watch_scaler(self.scaler)
            self._hold_schedules(session)
        if trainer.start_epoch > 0:
            self._resume(session)
        session.begin(step=start, steps_per_epoch=steps)
        vdl = own_vdl_callback(trainer)
        if vdl is not None:
            vdl.vdl_loss_step = start

    def _hold_schedules(self, session: RunDriver) -> None:
        """What counts optimizer steps does not move on a skipped one; the verdict comes before all of them."""
        trainer, watch = self.trainer, session.watch
        if watch is None:
            return
        guards = [guard_scheduler(trainer.lr, watch)]
        if trainer.use_ema:
            guards.append(guard_method(trainer.ema, "update", watch))
        if getattr(trainer, "pruner", None) is not None:
            guards.append(guard_method(trainer.pruner, "step", watch, "the pruner"))
        for guard in guards:
            self._stack.callback(guard.remove)
        verdict_first = watched.preceded(trainer.lr.step, session.after_optimizer)
        self._stack.enter_context(watched.replaced(trainer.lr, "step", verdict_first))

    def _forward(self, call: Callable[[Any], Any], data: Any) -> Any:
        if self.session is None:
            return call(data)
        self._outcome = run_sliced(self.session, call, data, self.scaler, self.talk)
        return handed_back(self._outcome)

    def step_end(self) -> None:
        """After clear_grad."""
        assert self.session is not None
        # the verdict was given before the LR schedule's step
        self.session.end_step(loss=self._outcome.mean_loss, skipped=False)
        actions, self._actions = self._actions, []
        for action, alert in actions:
            self._act(action, alert)

    def _act(self, action: str, alert: Alert) -> None:
        if action in ("checkpoint", "stop"):
            self._save_now()
        if action == "stop":
            raise TrainingStopped(alert.message)

    def _save_now(self) -> None:
        """A checkpoint in the middle of an epoch; a resume from it begins at the epoch's first batch."""
        trainer = self.trainer
        assert self.session is not None
        name = STEP_CHECKPOINT.format(self.session.step_index)
        weights = trainer.model.state_dict()
        ema = dict(trainer.ema.apply()) if trainer.use_ema else None
        epoch = trainer.status["epoch_id"]
        ppdet_callbacks.save_model(weights, trainer.optimizer, str(self._folder()), name, epoch, ema_model=ema)

    # ---- checkpoints

    def _extra_state(self) -> dict[str, Any]:
        state = self.session.state_dict() if self.session is not None else {}
        return resume.collect(self.trainer, state, self.scaler)

    def _resume(self, session: RunDriver) -> None:
        trainer, state = self.trainer, self.resumed
        resume.restart_loader(trainer.loader, trainer.start_epoch)
        if state is None:
            return
        session.load_state_dict(state["session"])
        if self.scaler is not None and session.watch is None:
            restore_scaler(self.scaler, state.get("scaler"))
        if trainer.use_ema and "ema" in state:
            resume.restore_ema(trainer.ema, state["ema"])
        if paddle.distributed.get_rank() == 0:
            resume.restore_generators(state["generators"])

    # ---- parts

    def _folder(self) -> Path:
        return Path(self.trainer.cfg.save_dir) / self.trainer.cfg.filename

    def _open_session(self) -> RunDriver:
        trainer = self.trainer
        session = RunDriver(
            self._session_config(),
            model=self.parallel if self.parallel is not None else trainer.model,
            optimizer=trainer.optimizer,
            logdir=self._folder(),
            name=trainer.cfg.filename,
            writers=writers_for(trainer, self.prepared.config, self._folder()),
            toolkit="paddledet",
            on_action=lambda action, alert: self._actions.append((action, alert)),
        )
        session.set_amp_text(*amp_text(trainer.cfg, self.prepared.config.amp))
        return session

    def _session_config(self) -> MemoryConfig:
        """Our keys as the session takes them: rows instead of steps, slices in order, stages instead of ``auto``."""
        config, size = self.prepared.config, self.prepared.micro_batch_size
        accumulation = config.gradient_accumulation
        if size is not None:
            values = {"steps": None, "micro_batch_size": size, "slice_by": "order"}
            accumulation = accumulation.model_copy(update=values)
        recompute, memory = config.recompute, config.memory
        # under a budget or a plan the planner chooses
        if recompute.enable and recompute.layers == "auto" and memory.budget is None and memory.plan is None:
            stages = find_stages(self.trainer.model)
            if stages:
                announce(f"recompute.layers is auto: the {len(stages)} stages {', '.join(stages)}")
                recompute = recompute.model_copy(update={"layers": stages})
        return config.model_copy(update={"gradient_accumulation": accumulation, "recompute": recompute})


def _with_dtype(auto_cast: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    def with_dtype(*args: Any, **kwargs: Any) -> Any:
        return auto_cast(*args, **({"dtype": dtype, **kwargs} if len(args) < 5 else kwargs))

    return with_dtype
