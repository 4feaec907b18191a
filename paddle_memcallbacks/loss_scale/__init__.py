"""The loss scale: nothing is skipped in silence, and the layer that did it is named."""

from paddle_memcallbacks.loss_scale.amp import AmpSupport, PreparedAmp, amp_support, prepare_amp
from paddle_memcallbacks.loss_scale.checkpoint import (
    load_scaler_state,
    restore_scaler,
    save_scaler_state,
    scaler_state,
)
from paddle_memcallbacks.loss_scale.guard import Guard, guard_callable, guard_method, guard_scheduler, release_found_inf
from paddle_memcallbacks.loss_scale.nonfinite import NonFinite, nonfinite_parameters
from paddle_memcallbacks.loss_scale.states import LossScaleState, Observation, Settings, observe
from paddle_memcallbacks.loss_scale.tap import found_inf
from paddle_memcallbacks.loss_scale.trace import FirstNonFinite
from paddle_memcallbacks.loss_scale.verdict import LossScaleError, StepVerdict
from paddle_memcallbacks.loss_scale.watch import LossScaleWatch

__all__ = [
    "AmpSupport",
    "FirstNonFinite",
    "Guard",
    "LossScaleError",
    "LossScaleState",
    "LossScaleWatch",
    "NonFinite",
    "Observation",
    "PreparedAmp",
    "Settings",
    "StepVerdict",
    "amp_support",
    "found_inf",
    "guard_callable",
    "guard_method",
    "guard_scheduler",
    "load_scaler_state",
    "nonfinite_parameters",
    "observe",
    "prepare_amp",
    "release_found_inf",
    "restore_scaler",
    "save_scaler_state",
    "scaler_state",
]
