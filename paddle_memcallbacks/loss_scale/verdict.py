"""What a step came to, and what the config asks to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from paddle_memcallbacks.alerts import Alert
from paddle_memcallbacks.loss_scale import texts
from paddle_memcallbacks.loss_scale.record import Record

if TYPE_CHECKING:
    from paddle_memcallbacks.config import LossScaleConfig


@dataclass(frozen=True)
class StepVerdict:
    """What one optimizer step came to.

    Attributes:
        skipped: GradScaler left the step out.
        alerts: what the user must be told, in order.
        updates: optimizer steps seen since the last verdict: 1, or 0 where none ran.
    """

    skipped: bool = False
    alerts: list[Alert] = field(default_factory=list)
    updates: int = 0


class LossScaleError(RuntimeError):
    """``on_storm`` or ``on_floor`` is ``raise``, and it happened.

    Attributes:
        alert: the one that asked for it.
        verdict: of the step, with all its alerts; they have not been told to anybody else.
    """

    def __init__(self, alert: Alert, verdict: StepVerdict) -> None:
        super().__init__(alert.text())
        self.alert = alert
        self.verdict = verdict


def with_actions(verdict: StepVerdict, config: LossScaleConfig) -> StepVerdict:
    """The verdict with each alert's action in its data; what stops the run is an error."""
    asked = {texts.STORM: config.on_storm, texts.FLOOR: config.on_floor}
    alerts = []
    for alert in verdict.alerts:
        action = asked.get(alert.kind)
        if action is not None:
            severity = "error" if action in ("stop", "raise") else alert.severity
            alert = replace(alert, severity=severity, data=alert.data | {"action": action})
        alerts.append(alert)
    return replace(verdict, alerts=alerts)


def act(
    verdict: StepVerdict,
    record: Record,
    on_alert: Callable[[Alert], None] | None,
    on_action: Callable[[str, Alert], None] | None,
) -> None:
    """Tell each alert and start its action.

    Raises:
        LossScaleError: an alert's action is ``raise``; after all others were told.
    """
    raising: Alert | None = None
    for alert in verdict.alerts:
        action = alert.data.get("action")
        if action is not None:
            record.add_action(alert.step, action, alert.kind)
        if on_alert is not None:
            on_alert(alert)
        if action in ("checkpoint", "stop") and on_action is not None:
            on_action(action, alert)
        if action == "raise" and raising is None:
            raising = alert
    if raising is not None:
        raise LossScaleError(raising, verdict)
