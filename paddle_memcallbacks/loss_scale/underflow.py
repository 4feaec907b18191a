"""Gradients that became exactly zero: the other end of the loss scale. Plain data, no paddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from paddle_memcallbacks.alerts import Alert
from paddle_memcallbacks.loss_scale.texts import scale_text

UNDERFLOW = "gradient_underflow"

BASELINE_SAMPLES = 3
# of the gradients that are not zero anyway (rows of an embedding, dead units), the share that must vanish
RISE = 0.25
CALM = 0.1
SAMPLES_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class ZeroCount:
    """Exactly zero elements of one parameter's gradient."""

    name: str
    zeros: int
    total: int


@dataclass(frozen=True, slots=True)
class UnderflowState:
    """``baseline`` is the mean share of the first three samples, 0 to 1; ``raised`` counts samples in a row over it."""

    baseline: float = 0.0
    samples: int = 0
    raised: int = 0
    told: bool = False
    share: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> UnderflowState:
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def observe_zeros(
    state: UnderflowState, step: int, counts: Sequence[ZeroCount], scale: float | None
) -> tuple[UnderflowState, list[Alert]]:
    """The state after one sample of all gradients, and an alert when the share of zeros has risen for two samples.

    Args:
        counts: of every parameter with a gradient.
        scale: the loss scale, for the text.
    """
    total = sum(count.total for count in counts)
    if not total:
        return state, []
    share = sum(count.zeros for count in counts) / total
    samples = state.samples + 1
    state = replace(state, samples=samples, share=share)
    if samples <= BASELINE_SAMPLES:
        return replace(state, baseline=state.baseline + (share - state.baseline) / samples), []
    vanished = (share - state.baseline) / (1 - state.baseline) if state.baseline < 1 else 0.0
    if vanished < RISE:
        return replace(state, raised=0, told=state.told and vanished > CALM), []
    state = replace(state, raised=state.raised + 1)
    if state.told or state.raised < SAMPLES_IN_A_ROW:
        return state, []
    return replace(state, told=True), [_alert(state, step, counts, scale)]


def _alert(state: UnderflowState, step: int, counts: Sequence[ZeroCount], scale: float | None) -> Alert:
    worst = sorted(counts, key=lambda count: (-count.zeros / max(1, count.total), -count.total))[:3]
    names = ", ".join(f"{count.name} ({100 * count.zeros / max(1, count.total):.0f} %)" for count in worst)
    return Alert(
        kind=UNDERFLOW,
        severity="warning",
        step=step,
        message=f"{100 * state.share:.0f} % of all gradient elements are exactly zero, {100 * state.baseline:.0f} % at "
        f"the start, at loss scale {scale_text(scale)}: small gradients vanish in float16; most in {names}",
        remedy="under O2 set amp.master_grad: true; raise amp.init_loss_scaling or lower amp.incr_every_n_steps; or "
        "take amp.dtype: bfloat16",
        data={
            "share": state.share,
            "baseline": state.baseline,
            "loss_scale": scale,
            "parameters": [count.name for count in worst],
        },
    )
