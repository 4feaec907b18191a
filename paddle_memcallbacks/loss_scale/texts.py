"""What the user reads about the loss scale. One function an alert; the decisions are in `states`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddle_memcallbacks.alerts import Alert

if TYPE_CHECKING:
    from paddle_memcallbacks.loss_scale.states import LossScaleState, Settings

STORM = "loss_scale_storm"
STORM_GOES_ON = "loss_scale_storm_goes_on"
FLOOR = "loss_scale_floor"
RECOVERED = "loss_scale_recovered"
SETTLING = "loss_scale_settling"
SETTLED = "loss_scale_settled"
SKIP = "loss_scale_skip"
HIGH = "loss_scale_high"
OFF = "loss_scaling_off"

# in a remedy, where the op itself takes its place once it is known
BLACK_LIST = "amp.custom_black_list"


def updates(count: int) -> str:
    return f"{count} update" if count == 1 else f"{count} updates"


def scale_text(scale: float | None) -> str:
    """65536 rather than 65536.0; a large one as a power of ten."""
    if scale is None:
        return "unknown"
    return f"{scale:.0f}" if 1 <= scale < 2**31 and scale == int(scale) else f"{scale:g}"


def held_text(settings: Settings) -> str:
    """What was done about the LR schedule and EMA."""
    if not settings.held:
        return "whether the LR schedule and EMA advanced on them is up to the training loop"
    return f"{' and '.join(settings.held)} did not advance on them"


def storm(state: LossScaleState, step: int, settings: Settings, *, in_a_row: bool) -> Alert:
    skipped = state.window.bit_count()
    if in_a_row:
        what = f"skipped {updates(state.streak)} in a row"
    else:
        what = f"skipped {skipped} of {state.window_length} updates ({100 * state.skip_rate:.0f} %)"
    return Alert(
        kind=STORM,
        severity="warning",
        step=step,
        message=f"{what} for non-finite gradients, {updates(state.lost)} lost since step {state.since}; the loss scale "
        f"is {scale_text(state.scale)}; {held_text(settings)}",
        remedy=_storm_remedy(state, settings),
        data=_data(state) | {"in_a_row": in_a_row},
    )


def _storm_remedy(state: LossScaleState, settings: Settings) -> str:
    scale = state.scale
    if scale is not None and scale > settings.settled_scale:
        return f"lower amp.init_loss_scaling (it is still {scale_text(scale)}); if the skips go on, amp.dtype: bfloat16"
    return (
        f"if it goes on: lower the learning rate, keep the overflowing op in fp32 ({BLACK_LIST}), under O2 set "
        "amp.master_weight: true, or take amp.dtype: bfloat16; a NaN in the data is none of these"
    )


def storm_goes_on(state: LossScaleState, step: int, settings: Settings) -> Alert:
    return Alert(
        kind=STORM_GOES_ON,
        severity="warning",
        step=step,
        message=f"still skipping: {updates(state.lost)} lost since step {state.since}, {state.streak} in a row; the "
        f"loss scale is {scale_text(state.scale)}; {held_text(settings)}",
        remedy=_storm_remedy(state, settings),
        data=_data(state),
    )


def floor(state: LossScaleState, step: int, settings: Settings) -> Alert:
    return Alert(
        kind=FLOOR,
        severity="warning",
        step=step,
        message="gradients were not finite although the loss scale stands at its floor "
        f"{scale_text(settings.min_loss_scale)} (min_loss_scale); {updates(state.lost)} lost "
        f"since step {state.since}; {held_text(settings)}",
        remedy="the scale is not the cause: look at the named layer, the data and the learning rate, or take "
        "amp.dtype: bfloat16; a lower loss_scale.min_loss_scale helps only if gradients are truly larger than 65504",
        data=_data(state),
    )


def recovered(state: LossScaleState, step: int) -> Alert:
    return Alert(
        kind=RECOVERED,
        severity="info",
        step=step,
        message=f"{state.good_streak} good steps in a row: the skipping that began at step {state.since} is over; it "
        f"cost {updates(state.lost)}; the loss scale is {scale_text(state.scale)}",
        data=_data(state),
    )


def settling(state: LossScaleState, step: int, settings: Settings, used: float | None, now: float | None) -> Alert:
    return Alert(
        kind=SETTLING,
        severity="info",
        step=step,
        message=f"gradients overflowed at loss scale {scale_text(used)}, now {scale_text(now)}: usual while the "
        f"initial scale settles; skipped updates are counted; {held_text(settings)}",
        data=_data(state),
    )


def settled(state: LossScaleState, step: int) -> Alert:
    return Alert(
        kind=SETTLED,
        severity="info",
        step=step,
        message=f"the loss scale settled at {scale_text(state.scale)} after {updates(state.skips)} skipped",
        data=_data(state),
    )


def skip(
    state: LossScaleState, step: int, settings: Settings, used: float | None, now: float | None, untold: int
) -> Alert:
    several = f" ({untold} since the last such line)" if untold > 1 else ""
    change = f"loss scale {scale_text(used)}, now {scale_text(now)}" if used != now else f"loss scale {scale_text(now)}"
    return Alert(
        kind=SKIP,
        severity="info",
        step=step,
        message=f"skipped an update for non-finite gradients{several}: {state.skips} of {state.steps} steps "
        f"so far; {change}; {held_text(settings)}",
        data=_data(state),
    )


def high(state: LossScaleState, step: int) -> Alert:
    return Alert(
        kind=HIGH,
        severity="warning",
        step=step,
        message=f"the loss scale has grown to {scale_text(state.scale)} without an overflow: the gradients are "
        "zero, or nothing is computed in float16",
        remedy="check that the loss reaches the parameters and that auto_cast is on; without float16 set amp.enable: "
        "false",
        data=_data(state),
    )


def off(step: int) -> Alert:
    return Alert(
        kind=OFF,
        severity="warning",
        step=step,
        message="the GradScaler switched itself off: the last auto_cast was not in float16; steps are neither "
        "scaled nor checked for inf and NaN any more",
        remedy="take the GradScaler away with bfloat16, or keep every auto_cast(dtype=...) at float16",
    )


def _data(state: LossScaleState) -> dict[str, object]:
    return {
        "loss_scale": state.scale,
        "lost": state.lost,
        "since": state.since,
        "consecutive": state.streak,
        "skipped_total": state.skips,
        "steps_total": state.steps,
        "skip_rate": state.skip_rate,
    }
