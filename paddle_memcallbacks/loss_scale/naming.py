"""Names what was not finite in a skipped step: the parameters, and the layer where a traced step saw it arise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import paddle

from paddle_memcallbacks.alerts import Alert
from paddle_memcallbacks.loss_scale import texts
from paddle_memcallbacks.loss_scale.locate import (
    Cause,
    execution_order,
    locate,
    name_parameters,
    nearest_the_loss,
    show,
)
from paddle_memcallbacks.loss_scale.nonfinite import GradientCounts, count_nonfinite
from paddle_memcallbacks.loss_scale.record import Record
from paddle_memcallbacks.loss_scale.states import LossScaleState
from paddle_memcallbacks.loss_scale.trace import FirstNonFinite

if TYPE_CHECKING:
    from paddle_memcallbacks.config import LossScaleConfig

LAYER = "nonfinite_layer"
PARAMETERS = "nonfinite_parameters"

_DATA_PARAMETERS = 50
_TROUBLE = (texts.STORM, texts.FLOOR)


@dataclass(frozen=True)
class Finding:
    """What one skipped step's gradients and hooks said.

    Attributes:
        text: parameters, nearest layer, cause and layers near overflow, in words.
        layer: the cause's layer, or without a trace the layer nearest the loss; None where nothing is left to see.
        cause: None where the step was not traced.
        data: plain values for the record.
    """

    text: str
    layer: str | None
    cause: Cause | None
    data: dict[str, Any]

    def added_to(self, alert: Alert) -> Alert:
        """The alert with the names in its text, data and remedy."""
        remedies = [alert.remedy] if alert.remedy else []
        if self.cause is not None and self.cause.op:
            key = f"amp.custom_black_list: [{self.cause.op}]"
            if texts.BLACK_LIST in alert.remedy:
                remedies = [alert.remedy.replace(texts.BLACK_LIST, key)]
            else:
                remedies.insert(0, f"{key} keeps that op in fp32")
        if self.cause is not None and self.cause.kind == "data":
            remedies.insert(0, "look at the batch of this step: its values are not finite")
        return replace(
            alert, message=f"{alert.message}; {self.text}", remedy="; ".join(remedies), data=alert.data | self.data
        )

    def alert(self, step: int) -> Alert:
        """The finding as an alert of its own."""
        kind = LAYER if self.cause is not None else PARAMETERS
        return self.added_to(Alert(kind, "warning", step, "the step was skipped"))


class Namer:
    """Decides which steps are looked at, and holds a traced step's hooks and the counts taken before clipping."""

    def __init__(self, model: paddle.nn.Layer, config: LossScaleConfig, record: Record) -> None:
        self.record = record
        self._model = model
        self._config = config
        self._hooks = FirstNonFinite(model)
        self._early: GradientCounts | None = None
        self._named = False

    def count_if_likely(self, state: LossScaleState) -> None:
        """Count non-finite gradients before they are clipped, where a skip is likely or every skip is to be named.

        Clipping by a NaN norm makes every gradient NaN. The count stays on the device until it is needed.
        """
        likely = state.streak > 0 or state.window.bit_count() >= 2 or self._hooks.active
        if self._early is None and (likely or self._config.every_skip or self._config.max_consecutive_skips == 1):
            self._early = count_nonfinite(self._model)

    def add_names(self, alerts: list[Alert], step: int, state: LossScaleState) -> list[Alert]:
        """A skipped step's alerts with names where they are due; arms the hooks for the next step where they are.

        The step before a storm would begin arms them, so that the storm's own alert names the layer.
        """
        alerts = list(alerts)
        trouble = next((index for index, alert in enumerate(alerts) if alert.kind in _TROUBLE), None)
        if trouble is not None or self._hooks.active or self._config.every_skip:
            finding = self._name()
            self._named = finding.cause is not None
            if finding.cause is not None:
                self.record.add_layer(step, finding.cause.layer, finding.cause.kind)
            if trouble is not None:
                alerts[trouble] = finding.added_to(alerts[trouble])
            else:
                alerts.append(finding.alert(step))
        else:
            self.forget()
        told = trouble is not None or any(alert.kind == texts.STORM_GOES_ON for alert in alerts)
        near = not state.storming and state.stalled >= self._config.max_consecutive_skips - 1
        if near or self._config.every_skip or (told and not self._named):
            self._hooks.attach()
        return alerts

    def to_dict(self) -> dict[str, bool]:
        """Whether the next step is watched, so that a resumed run watches it too."""
        return {"tracing": self._hooks.active, "named": self._named}

    def load_dict(self, values: Mapping[str, bool]) -> None:
        """Put back what `to_dict` gave."""
        self._named = bool(values.get("named", False))
        if values.get("tracing", False):
            self._hooks.attach()
        else:
            self._hooks.discard()

    def forget(self) -> None:
        """The step is over and nothing is to be named."""
        self._early = None
        if self._hooks.active:
            self._hooks.discard()

    def _name(self) -> Finding:
        counts = self._early or count_nonfinite(self._model)
        self._early = None
        counted = counts.nonfinite()
        names = [one.name for one in counted]
        cause = None
        near: tuple[tuple[str, float], ...] = ()
        order: list[str] = []
        types: dict[str, str] = {}
        if self._hooks.active:
            trace = self._hooks.finish()
            types = dict(trace.types)
            order = execution_order(trace)
            near = trace.near_overflow[:5]
            cause = locate(trace, names, ranks=paddle.distributed.get_world_size())
        nearest = nearest_the_loss(names, order)
        layer = cause.layer if cause is not None else nearest
        parts = [] if cause is None else [cause.text]
        parts.append(name_parameters(counted, len(counts.names), layer, order))
        if nearest is not None and (cause is None or cause.layer != nearest):
            parts.append(f"nearest the loss among them: {show(nearest, types)}")
        if near:
            parts.append("near overflow in float16: " + ", ".join(f"`{name}` ({size:.0f})" for name, size in near))
        return Finding(
            text="; ".join(parts),
            layer=layer,
            cause=cause,
            data={
                "layer": layer,
                "cause": cause.kind if cause is not None else None,
                "nearest_layer": nearest,
                "parameters": {one.name: one.nonfinite for one in counted[:_DATA_PARAMETERS]},
                "near_overflow": dict(near),
            },
        )
