"""The thin layer on Paddle's GradScaler: sees every step, keeps the scale in its bounds, names what was not finite.

It reads the skip flag that Paddle has read from the device itself, and the scale only when its tensor object changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import paddle

from paddle_memcallbacks.alerts import Alert, announce, warn_once
from paddle_memcallbacks.loss_scale import checkpoint, texts
from paddle_memcallbacks.loss_scale.guard import bounded_scale, release_found_inf, set_scale
from paddle_memcallbacks.loss_scale.naming import Namer
from paddle_memcallbacks.loss_scale.record import Record
from paddle_memcallbacks.loss_scale.states import LossScaleState, Observation, Settings, observe
from paddle_memcallbacks.loss_scale.tap import ScalerTap, found_inf
from paddle_memcallbacks.loss_scale.underflow import UnderflowState
from paddle_memcallbacks.loss_scale.verdict import StepVerdict, act, with_actions
from paddle_memcallbacks.loss_scale.zeros import ZeroSampler

if TYPE_CHECKING:
    from paddle_memcallbacks.config import LossScaleConfig


class LossScaleWatch:
    """Watches one GradScaler.

    Two ways to drive it. With `attach` every ``step``/``update``/``minimize`` of the scaler is seen, whoever calls it;
    `after_step` then hands over the verdict, or ``attach(auto=True)`` does all of it inside the scaler's own call.
    Without `attach`, call `after_step` after ``scaler.step()`` and ``scaler.update()`` and before ``clear_grad()``.

    Args:
        scaler: a ``paddle.amp.GradScaler``; None where the toolkit makes it later (`bind`).
        optimizer: the optimizer it steps.
        model: whose parameters and layers are named.
        config: the ``loss_scale`` section.
        on_action: called with ``checkpoint`` or ``stop`` and the alert that asks for it.
        on_alert: called with every alert as its verdict is given.
    """

    def __init__(
        self,
        scaler: Any,
        optimizer: Any,
        model: paddle.nn.Layer,
        config: LossScaleConfig,
        *,
        on_action: Callable[[str, Alert], None] | None = None,
        on_alert: Callable[[Alert], None] | None = None,
    ) -> None:
        self.config = config
        self.optimizer = optimizer
        self.scaler: Any = None
        self.state = LossScaleState()
        self.record = Record()
        self._model = model
        self._settings = Settings(config.min_loss_scale, config.max_consecutive_skips, config.max_skip_rate)
        self._on_action, self._on_alert = on_action, on_alert
        self._namer = Namer(model, config, self.record)
        self._zeros = ZeroSampler(model)
        self._tap: ScalerTap | None = None
        self._auto = False
        self._step = 0
        self._skipped = False
        self._seen_scale: Any = None
        self._optimizers: list[Any] = []
        self._found = False
        self._pending = StepVerdict()
        self._was_enabled = False
        self._saved: Mapping[str, Any] | None = None
        if scaler is not None:
            self.bind(scaler)

    # ---- whose scaler

    @property
    def enabled(self) -> bool:
        """There is a scaler and it scales. On a CPU, and under bfloat16, Paddle's scaler turns itself off."""
        return self.scaler is not None and bool(getattr(self.scaler, "_enable", False))

    @property
    def skipped(self) -> bool:
        """The newest optimizer step was skipped."""
        return self._skipped

    @property
    def skips(self) -> int:
        """Optimizer steps skipped so far."""
        return self.state.skips

    @property
    def loss_scale(self) -> float | None:
        """The scale that the next step uses, as last read; None where nothing is scaled."""
        return self.state.scale if self.enabled else None

    def bind(self, scaler: Any, optimizer: Any = None) -> None:
        """Watch this scaler from now on; a saved state that came before it is loaded into it."""
        was_attached, auto = self._tap is not None, self._auto
        if self.scaler is not None and self.scaler is not scaler:
            self.detach()
        self.scaler = scaler
        self.optimizer = optimizer if optimizer is not None else self.optimizer
        if self._saved is not None:
            checkpoint.restore_scaler(scaler, self._saved)
            self._saved = None
        self._meet_scale()
        if was_attached:
            self.attach(auto=auto)

    def attach(self, *, auto: bool = False) -> None:
        """See every step of the scaler without a change to the loop.

        Args:
            auto: give the verdict inside the scaler's own call: alerts go to ``on_alert``, gradients are cleared after
                a skip, actions run there.

        Raises:
            RuntimeError: another watch is on this scaler.
        """
        self._auto = auto
        if self._tap is None and self.scaler is not None:
            tap = ScalerTap(self.scaler, self)
            tap.attach()
            self._tap = tap

    def detach(self) -> None:
        """Let the scaler go: its methods, the hooks on the model, and the flag that a skip leaves on the optimizer."""
        if self._tap is not None:
            self._tap.detach()
            self._tap = None
        self._namer.forget()
        self._zeros.forget()
        for optimizer in [self.optimizer, *self._optimizers]:
            release_found_inf(optimizer)

    def hold(self, what: str) -> None:
        """Say in alerts that this does not advance on skipped steps (`guard_scheduler` calls it)."""
        self._settings = replace(self._settings, held=tuple(dict.fromkeys([*self._settings.held, what])))

    def release(self, what: str) -> None:
        """Say it no more."""
        self._settings = replace(self._settings, held=tuple(name for name in self._settings.held if name != what))

    # ---- a step

    def before_step(self, step: int | None = None) -> None:
        """Optional: the number of the optimizer step that comes, where it does not simply follow the last one."""
        if step is not None:
            self._step = step - 1

    def after_step(self, step: int | None = None) -> StepVerdict:
        """The verdict on the step that just ended. Call it before ``clear_grad()``; after a skip it clears them itself.

        Args:
            step: the optimizer step's number; None counts on.

        Raises:
            LossScaleError: ``on_storm`` or ``on_floor`` is ``raise``, and it happened.
        """
        if self._tap is None and self.enabled:
            self.before_step(step)
            self.on_stepped(self.optimizer, found_inf(self.scaler))
            self._end_step()
        self._tell_if_off()
        verdict, self._pending = with_actions(self._pending, self.config), StepVerdict()
        if step is not None and verdict.updates and self._step != step:
            self._step = step
            verdict = replace(verdict, alerts=[replace(alert, step=step) for alert in verdict.alerts])
        if verdict.updates > 1:
            warn_once(
                "several_scaler_updates",
                f"the GradScaler stepped {verdict.updates} times in one step of the training loop: a batch's gradients "
                "are to be unscaled once and the scale updated once",
            )
        if verdict.skipped:
            for optimizer in self._optimizers:
                optimizer.clear_grad()
        act(verdict, self.record, self._on_alert, self._on_action)
        return verdict

    def on_unscaled(self) -> None:
        """Gradients are unscaled and not clipped yet: count now where a skip is likely, as clipping spreads a NaN."""
        self._namer.count_if_likely(self.state)

    def on_stepped(self, optimizer: Any, found: bool) -> None:
        """One optimizer's step ran, or was skipped."""
        self._found = self._found or found
        if not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        if found:
            release_found_inf(optimizer)

    def on_updated(self) -> None:
        """The scaler has updated its scale."""
        self._end_step()
        if self._auto:
            self.after_step()

    def on_disabled(self, optimizer: Any) -> None:
        """The scaler is off: a skip from before must not stop this optimizer for ever."""
        self._skipped = False
        release_found_inf(optimizer)

    def _end_step(self) -> None:
        self._step += 1
        found, self._found = self._found, False
        self._skipped = found
        self.state, alerts = observe(self.state, Observation(self._step, found, self._read_scale()), self._settings)
        alerts = self._zeros.read(self._step, self.state.scale) + alerts
        if found:
            self.record.add_skip(self._step)
            alerts = self._namer.add_names(alerts, self._step, self.state)
        else:
            self._namer.forget()
            if self.state.steps % self.config.sample_interval == 0:
                self._zeros.take()
        pending = self._pending
        self._pending = StepVerdict(pending.skipped or found, pending.alerts + alerts, pending.updates + 1)

    def _read_scale(self) -> float | None:
        """The scale where its tensor is a new one, put back into its bounds; None where nothing changed."""
        if not self.enabled or self.scaler._scale is self._seen_scale:
            return None
        scale = self.scaler._scale.item()
        bounded = bounded_scale(scale, self.config.min_loss_scale)
        if bounded != scale and self.scaler._use_dynamic_loss_scaling:
            set_scale(self.scaler, bounded)
            scale = bounded
        self._seen_scale = self.scaler._scale
        self.record.add_scale(self._step, scale)
        return scale

    def _meet_scale(self) -> None:
        """Take over the scale of a scaler that is new, or newly loaded."""
        self._was_enabled = self._was_enabled or self.enabled
        self._seen_scale = None
        before = self.scaler._scale.item() if self.enabled else None
        scale = self._read_scale()
        self.state = replace(self.state, scale=scale)
        if before != scale:
            announce(
                f"the loss scale was {texts.scale_text(before)}, outside of what can work: it starts at "
                f"{texts.scale_text(scale)} (loss_scale.min_loss_scale, or 2**126)"
            )

    def _tell_if_off(self) -> None:
        if not self._was_enabled or self.enabled:
            return
        self._was_enabled = self._skipped = False
        for optimizer in self._optimizers:
            release_found_inf(optimizer)
        pending = self._pending
        self._pending = replace(pending, alerts=[*pending.alerts, texts.off(self._step + 1)])

    # ---- figures and state

    def metrics(self) -> dict[str, float]:
        """The ``amp/*`` tags; empty where nothing is scaled. Reads nothing from the device."""
        if not self.enabled:
            return {}
        values = {
            "amp/skipped_steps_total": float(self.state.skips),
            "amp/skipped_steps_consecutive": float(self.state.streak),
            "amp/skip_rate_pct": 100.0 * self.state.skip_rate,
        }
        if self.state.scale is not None:
            values["amp/loss_scale"] = self.state.scale
        if self._zeros.state.samples:
            values["amp/zero_gradients_pct"] = 100.0 * self._zeros.state.share
        return values

    def summary(self) -> dict[str, Any]:
        """The run's record: scale history, skips by step, layers named, actions taken. Plain values (JSON)."""
        state = self.state
        return {
            "enabled": self.enabled,
            "steps": state.steps,
            "skipped_steps": state.skips,
            "phase": state.phase,
            "loss_scale": state.scale,
            "held": list(self._settings.held),
            "zero_gradients_share": self._zeros.state.share if self._zeros.state.samples else None,
            **self.record.to_dict(),
        }

    def state_dict(self) -> dict[str, Any]:
        """The scaler, its counters, the state machine and the record as plain values (JSON)."""
        return {
            "version": checkpoint.VERSION,
            "step": self._step,
            "scaler": checkpoint.scaler_state(self.scaler),
            "machine": self.state.to_dict(),
            "underflow": self._zeros.state.to_dict(),
            "naming": self._namer.to_dict(),
            "record": self.record.to_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Put back what `state_dict` gave. An empty or missing state says so and starts fresh.

        Without a scaler yet, the scaler's part waits for `bind`.
        """
        if not state:
            announce("no saved loss-scale state: the loss scale and its counters start fresh")
            return
        self._step = int(state.get("step", 0))
        self.state = LossScaleState.from_dict(state.get("machine", {}))
        self._zeros.state = UnderflowState.from_dict(state.get("underflow", {}))
        self.record = self._namer.record = Record.from_dict(state.get("record", {}))
        self._namer.load_dict(state.get("naming", {}))
        saved = state.get("scaler", {})
        if self.scaler is None:
            self._saved = saved
            return
        checkpoint.restore_scaler(self.scaler, saved)
        self._meet_scale()
