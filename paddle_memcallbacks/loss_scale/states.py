"""The state machine over a GradScaler's steps: warm-up, normal, storm, floor. Plain data in, alerts out, no paddle.

What counts as what (the numbers are `Settings`):

* *warm-up* lasts until the first ``recovery_steps`` good steps in a row. In it, a skip at a scale above
  ``settled_scale`` is a high initial scale on its way down: information, and left out of the skip rate. It counts
  towards a storm only when the scale has stopped falling.
* *storm*: ``max_consecutive_skips`` skips in a row, or more than ``max_skip_rate`` of the last ``window_steps`` steps.
  A rate needs evidence: 20 steps and 3 skips, and a window shorter than 50 steps is counted as 50, so that one skip
  among the first ten is no rate, nor three among the first twenty.
* *floor*: a step was skipped although its scale stood at ``min_loss_scale`` already.
* Storm and floor end with ``recovery_steps`` good steps in a row; the next storm needs twice as many to end, so that a
  run that flaps between the two is told a logarithmic number of times.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from paddle_memcallbacks.alerts import Alert
from paddle_memcallbacks.loss_scale import texts

Phase = Literal["warm_up", "normal", "storm", "floor"]

EVIDENCE_STEPS = 20
SHORTEST_WINDOW_STEPS = 50
EVIDENCE_SKIPS = 3
# no more doublings of recovery_steps than this
MOST_DOUBLINGS = 6
LONGEST_GAP_STEPS = 1600


@dataclass(frozen=True)
class Settings:
    """What the machine judges by; the first three are config keys of the ``loss_scale`` section.

    Attributes:
        held: what does not advance on a skipped step, in words (``("LR schedule", "EMA")``); only for the texts.
        settled_scale: Paddle's own default initial scale; a start above it is expected to come down.
        high_scale: a scale that grew to this is told: nothing overflows any more, so nothing is scaled for.
    """

    min_loss_scale: float = 1.0
    max_consecutive_skips: int = 5
    max_skip_rate: float = 0.1
    held: tuple[str, ...] = ()
    window_steps: int = 100
    settled_scale: float = 2.0**16
    high_scale: float = 2.0**40

    @property
    def recovery_steps(self) -> int:
        """Good steps in a row that end a storm: enough that the rate they show is under ``max_skip_rate``."""
        if self.max_skip_rate <= 0:
            return self.window_steps
        return min(self.window_steps, max(EVIDENCE_STEPS, round(1 / self.max_skip_rate)))


@dataclass(frozen=True, slots=True)
class Observation:
    """One optimizer step under a GradScaler.

    Attributes:
        step: the optimizer step's number.
        found_inf: the scaler left the step out.
        scale: the loss scale after the step's update; None where it is the same as before.
    """

    step: int
    found_inf: bool
    scale: float | None = None


@dataclass(frozen=True, slots=True)
class LossScaleState:
    """Everything the machine remembers. ``scale`` is the scale that the next step uses.

    ``streak`` counts skips in a row, ``stalled`` those of them that count towards a storm; ``lost`` counts the skips
    of the trouble that is going on, since ``since``; ``window`` holds one bit a step, the newest lowest.
    """

    scale: float | None = None
    steps: int = 0
    skips: int = 0
    streak: int = 0
    stalled: int = 0
    good_streak: int = 0
    window: int = 0
    window_length: int = 0
    settled: bool = False
    storming: bool = False
    at_floor: bool = False
    storms: int = 0
    lost: int = 0
    since: int = 0
    remind_at: int = 0
    untold: int = 0
    told_step: int | None = None
    gap_steps: int = 0
    high_told: bool = False

    @property
    def phase(self) -> Phase:
        if self.at_floor:
            return "floor"
        if self.storming:
            return "storm"
        return "normal" if self.settled else "warm_up"

    @property
    def skip_rate(self) -> float:
        """Share of skipped steps among the last ``window_steps``, 0 to 1."""
        return self.window.bit_count() / self.window_length if self.window_length else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LossScaleState:
        """The state that `to_dict` wrote. Fields of another version of this library are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def observe(state: LossScaleState, observation: Observation, settings: Settings) -> tuple[LossScaleState, list[Alert]]:
    """The state after one step, and what the user must be told of it."""
    used = state.scale
    now = used if observation.scale is None else observation.scale
    alerts: list[Alert] = []
    state = _count(state, observation, settings)
    if observation.found_inf:
        state = _judge_floor(state, observation, settings, used, alerts)
        state = _judge_storm(state, observation, settings, alerts)
        if not alerts:
            state = _tell_skip(state, observation, settings, used, now, alerts)
    else:
        state = _judge_recovery(state, observation, settings, alerts)
        state = _judge_growth(state, observation, settings, alerts)
    return state, alerts


def _count(state: LossScaleState, observation: Observation, settings: Settings) -> LossScaleState:
    used = state.scale
    now = used if observation.scale is None else observation.scale
    if not observation.found_inf:
        window, length = _pushed(state, 0, settings)
        return replace(
            state,
            scale=now,
            steps=state.steps + 1,
            streak=0,
            stalled=0,
            good_streak=state.good_streak + 1,
            window=window,
            window_length=length,
        )
    coming_down = not state.settled and used is not None and used > settings.settled_scale
    fell = now is not None and used is not None and now < used
    window, length = (state.window, state.window_length) if coming_down else _pushed(state, 1, settings)
    return replace(
        state,
        scale=now,
        steps=state.steps + 1,
        skips=state.skips + 1,
        streak=state.streak + 1,
        stalled=0 if coming_down and fell else state.stalled + 1,
        good_streak=0,
        window=window,
        window_length=length,
        lost=state.lost + 1,
        since=state.since if state.lost else observation.step,
    )


def _pushed(state: LossScaleState, bit: int, settings: Settings) -> tuple[int, int]:
    window = (state.window << 1 | bit) & ((1 << settings.window_steps) - 1)
    return window, min(state.window_length + 1, settings.window_steps)


def _judge_floor(
    state: LossScaleState,
    observation: Observation,
    settings: Settings,
    used: float | None,
    alerts: list[Alert],
) -> LossScaleState:
    if state.at_floor or used is None or used > settings.min_loss_scale:
        return state
    alerts.append(texts.floor(state, observation.step, settings))
    return replace(state, at_floor=True, remind_at=max(state.remind_at, 2 * state.lost))


def _judge_storm(
    state: LossScaleState, observation: Observation, settings: Settings, alerts: list[Alert]
) -> LossScaleState:
    if state.storming:
        if state.lost < state.remind_at:
            return state
        alerts.append(texts.storm_goes_on(state, observation.step, settings))
        return replace(state, remind_at=2 * state.lost)
    in_a_row = state.stalled >= settings.max_consecutive_skips
    skipped = state.window.bit_count()
    too_often = (
        state.window_length >= EVIDENCE_STEPS
        and skipped >= EVIDENCE_SKIPS
        and skipped > settings.max_skip_rate * max(state.window_length, SHORTEST_WINDOW_STEPS)
    )
    if not in_a_row and not too_often:
        return state
    alerts.append(texts.storm(state, observation.step, settings, in_a_row=in_a_row))
    return replace(state, storming=True, storms=state.storms + 1, remind_at=2 * max(state.lost, EVIDENCE_SKIPS))


def _tell_skip(
    state: LossScaleState,
    observation: Observation,
    settings: Settings,
    used: float | None,
    now: float | None,
    alerts: list[Alert],
) -> LossScaleState:
    """Information on a skip that is no trouble: the first of the warm-up, and later ones at growing distances."""
    if state.storming or state.at_floor:
        return state
    untold = state.untold + 1
    if not state.settled:
        if state.skips == 1:
            alerts.append(texts.settling(state, observation.step, settings, used, now))
        return state
    if state.told_step is not None and observation.step - state.told_step < state.gap_steps:
        return replace(state, untold=untold)
    alerts.append(texts.skip(state, observation.step, settings, used, now, untold))
    gap_steps = min(LONGEST_GAP_STEPS, max(settings.window_steps, 2 * state.gap_steps))
    return replace(state, untold=0, told_step=observation.step, gap_steps=gap_steps)


def _judge_recovery(
    state: LossScaleState, observation: Observation, settings: Settings, alerts: list[Alert]
) -> LossScaleState:
    needed = settings.recovery_steps * 2 ** min(MOST_DOUBLINGS, max(0, state.storms - 1))
    if state.storming or state.at_floor:
        if state.good_streak < needed:
            return state
        alerts.append(texts.recovered(state, observation.step))
        return replace(
            state, settled=True, storming=False, at_floor=False, lost=0, remind_at=0, window=0, window_length=0
        )
    if state.good_streak < settings.recovery_steps:
        return state
    if not state.settled:
        if state.skips:
            alerts.append(texts.settled(state, observation.step))
        return replace(state, settled=True, lost=0)
    return replace(state, lost=0) if state.lost else state


def _judge_growth(
    state: LossScaleState, observation: Observation, settings: Settings, alerts: list[Alert]
) -> LossScaleState:
    if state.scale is None or state.high_told or state.scale < settings.high_scale:
        return state
    alerts.append(texts.high(state, observation.step))
    return replace(state, high_told=True)
