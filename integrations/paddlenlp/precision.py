"""fp16 and bf16 keys: consumed in the Trainer's ``__init__``, so settled before train() builds anything."""

from __future__ import annotations

from typing import Any

import paddle

from paddle_memcallbacks.alerts import warn_once
from paddle_memcallbacks.config import AmpConfig, ConfigError

# the Trainer's arguments that AMP touches
ARGUMENTS = (
    "fp16",
    "bf16",
    "fp16_opt_level",
    "scale_loss",
    "amp_master_grad",
    "amp_custom_white_list",
    "amp_custom_black_list",
)


def decide_amp(section: AmpConfig, explicit: bool, args: Any) -> dict[str, Any]:
    """The Trainer's AMP arguments for the run, from our keys and its own.

    Args:
        section: our keys.
        explicit: whether the user wrote the section at all.
        args: the Trainer's arguments; read only.

    Returns:
        A value for each of `ARGUMENTS`.

    Raises:
        ConfigError: our keys and the Trainer's arguments contradict each other; both are named.
    """
    values = {name: getattr(args, name, None) for name in ARGUMENTS}
    native = "float16" if args.fp16 else "bfloat16" if args.bf16 else None
    flag = "fp16" if args.fp16 else "bf16"
    if not section.enable:
        if native and explicit:
            raise ConfigError(f"amp.enable: false contradicts {flag}=True of the Trainer's arguments. Set only one.")
        return values
    given = section.model_fields_set
    if native and "dtype" in given and section.dtype != native:
        raise ConfigError(f"amp.dtype: {section.dtype} contradicts {flag}=True of the Trainer's arguments. Set one.")
    if native and "level" in given and section.level != args.fp16_opt_level:
        raise ConfigError(f"amp.level: {section.level} contradicts fp16_opt_level={args.fp16_opt_level}. Set one.")
    dtype = native or section.dtype
    values.update(fp16=dtype == "float16", bf16=dtype == "bfloat16")
    if not native or "level" in given:
        values["fp16_opt_level"] = section.level
    if not native or "init_loss_scaling" in given:
        values["scale_loss"] = float(section.init_loss_scaling)
    if section.master_weight is False and values["fp16_opt_level"] == "O2":
        raise ConfigError("amp.master_weight: false cannot be honoured: PaddleNLP's Trainer keeps them under O2.")
    if section.master_grad is not None:
        values["amp_master_grad"] = section.master_grad
    if section.custom_white_list:
        values["amp_custom_white_list"] = list(section.custom_white_list)
    if section.custom_black_list:
        values["amp_custom_black_list"] = list(section.custom_black_list)
    return values


def apply_amp(trainer: Any, section: AmpConfig, was_wrapped: bool) -> tuple[str, str]:
    """Set the Trainer up for its arguments' AMP, or for fp32 where the device cannot, with one warning.

    Args:
        trainer: its arguments already hold what `decide_amp` gave.
        section: our keys, for the scaler.
        was_wrapped: the Trainer's ``__init__`` has consumed fp16 or bf16 already.

    Returns:
        What is active (``off``, ``float16 O1``, ...) and why it is not what was asked for.
    """
    args = trainer.args
    if not (args.fp16 or args.bf16):
        return "off", ""
    if not was_wrapped:
        trainer._wrap_amp_model(args, trainer.model)
    scaler = getattr(trainer, "scaler", None)
    if section.enable and scaler is not None and scaler.is_enable():
        _set_scaler_keys(scaler, section)
    device = paddle.get_device().split(":")[0]
    scaling_off = args.fp16 and (scaler is None or not scaler.is_enable())
    if not scaling_off and not (args.bf16 and device == "cpu"):
        return f"{'float16' if args.fp16 else 'bfloat16'} {args.fp16_opt_level}", ""
    return "off", _train_in_fp32(trainer, device)


def _train_in_fp32(trainer: Any, device: str) -> str:
    args = trainer.args
    note = (
        f"fp16 loss scaling is off on {device}; training in fp32"
        if args.fp16
        else f"bf16 autocast has no effect on {device}; training in fp32"
    )
    warn_once("nlp_amp_off", note)
    trainer.do_grad_scaling = False
    trainer.enable_autocast_context_manager = False
    args.fp16 = args.bf16 = args.amp_master_grad = False
    args.fp16_opt_level = "O1"
    if any(parameter.dtype in (paddle.float16, paddle.bfloat16) for parameter in trainer.model.parameters()):
        trainer.model.to(dtype="float32")
    return note


def _set_scaler_keys(scaler: Any, section: AmpConfig) -> None:
    scaler.set_init_loss_scaling(float(section.init_loss_scaling))
    scaler.set_incr_ratio(section.incr_ratio)
    scaler.set_decr_ratio(section.decr_ratio)
    scaler.set_incr_every_n_steps(section.incr_every_n_steps)
    scaler.set_decr_every_n_nan_or_inf(section.decr_every_n_nan_or_inf)
    scaler._use_dynamic_loss_scaling = section.use_dynamic_loss_scaling
