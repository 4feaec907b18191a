"""Mixed precision for a plain loop: what the device can do, and the model, optimizer, scaler and autocast for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import paddle

if TYPE_CHECKING:
    from paddle_memcallbacks.config import AmpConfig

# Paddle's auto_cast turns itself off under these (paddle/amp/auto_cast.py); 7.0 brought Tensor Cores
_LEAST_CAPABILITY = {"float16": (7, 0), "bfloat16": (8, 0)}


@dataclass(frozen=True)
class AmpSupport:
    """Whether a dtype of mixed precision runs on a device.

    Attributes:
        supported: auto_cast has an effect there.
        reason: why not, or what is used, in one line.
    """

    supported: bool
    reason: str


@dataclass(frozen=True)
class PreparedAmp:
    """What a plain loop trains with.

    Attributes:
        autocast: a context for each forward.
        active: ``off``, or the level and dtype that are truly used.
        note: why it is off, or what the card brings; may be empty.
    """

    model: Any
    optimizer: Any
    scaler: Any
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]
    active: str
    note: str


def judge_support(kind: str, dtype: str, capability: tuple[int, int] | None = None) -> AmpSupport:
    """Whether ``dtype`` runs on a device of this kind; the decision of `amp_support`, on plain data.

    Args:
        kind: ``cpu``, ``gpu``, ``xpu`` or a custom device's name.
        capability: a GPU's compute capability, ``(major, minor)``.
    """
    if kind == "cpu":
        what = "fp16 loss scaling is" if dtype == "float16" else "bf16 is"
        return AmpSupport(False, f"{what} off on cpu; training in fp32")
    if kind != "gpu" or capability is None:
        return AmpSupport(True, f"{dtype} on {kind}")
    shown = f"{capability[0]}.{capability[1]}"
    least = _LEAST_CAPABILITY[dtype]
    if capability < least:
        reason = f"{dtype} needs compute capability {least[0]}.{least[1]}, this card has {shown}; training in fp32"
        return AmpSupport(False, reason)
    return AmpSupport(True, f"{dtype} on Tensor Cores (compute capability {shown})")


def amp_support(device: str | None = None, dtype: str = "float16") -> AmpSupport:
    """Whether ``dtype`` runs on a device.

    Args:
        device: as ``paddle.device.get_device()`` gives it (``cpu``, ``gpu:0``); None: the current one.
    """
    name = device if device is not None else paddle.device.get_device()
    kind, _, index = name.partition(":")
    capability = None
    if kind == "gpu" and paddle.device.cuda.device_count() > 0:
        capability = tuple(paddle.device.cuda.get_device_capability(int(index or 0)))
    return judge_support(kind, dtype, capability)


def prepare_amp(
    model: paddle.nn.Layer,
    optimizer: Any,
    amp_config: AmpConfig,
    device: str | None = None,
    *,
    scaler: Any = None,
    accumulates: bool = False,
) -> PreparedAmp:
    """Decorate model and optimizer for the ``amp`` section, and make the scaler and the autocast that belong to it.

    Args:
        device: as for `amp_support`.
        scaler: the user's own GradScaler; it is kept, and none is made.
        accumulates: a step has several micro-batches; ``master_grad: null`` then means true under O2.

    Raises:
        ValueError: O2 on a model that is wrapped in DataParallel already.
    """
    if not amp_config.enable:
        return PreparedAmp(model, optimizer, scaler, contextlib.nullcontext, "off", "")
    support = amp_support(device, amp_config.dtype)
    if not support.supported:
        return PreparedAmp(model, optimizer, scaler, contextlib.nullcontext, "off", support.reason)
    if amp_config.level == "O2":
        model, optimizer = _decorated(model, optimizer, amp_config, accumulates)

    def autocast() -> contextlib.AbstractContextManager[Any]:
        return paddle.amp.auto_cast(
            enable=True,
            custom_white_list=set(amp_config.custom_white_list) or None,
            custom_black_list=set(amp_config.custom_black_list) or None,
            level=amp_config.level,
            dtype=amp_config.dtype,
        )

    if scaler is None and amp_config.dtype == "float16":
        scaler = paddle.amp.GradScaler(
            init_loss_scaling=amp_config.init_loss_scaling,
            incr_ratio=amp_config.incr_ratio,
            decr_ratio=amp_config.decr_ratio,
            incr_every_n_steps=amp_config.incr_every_n_steps,
            decr_every_n_nan_or_inf=amp_config.decr_every_n_nan_or_inf,
            use_dynamic_loss_scaling=amp_config.use_dynamic_loss_scaling,
        )
    return PreparedAmp(model, optimizer, scaler, autocast, f"{amp_config.level} {amp_config.dtype}", support.reason)


def _decorated(model: Any, optimizer: Any, amp_config: AmpConfig, accumulates: bool) -> tuple[Any, Any]:
    if isinstance(model, paddle.DataParallel):
        raise ValueError(
            "amp.level: O2 casts the model's weights: hand over the model before paddle.DataParallel wraps it"
        )
    master_grad = accumulates if amp_config.master_grad is None else amp_config.master_grad
    arguments: dict[str, Any] = {
        "level": "O2",
        "dtype": amp_config.dtype,
        "master_weight": amp_config.master_weight,
        "master_grad": master_grad,
    }
    if optimizer is None:
        return paddle.amp.decorate(models=model, **arguments), None
    return paddle.amp.decorate(models=model, optimizers=optimizer, **arguments)
