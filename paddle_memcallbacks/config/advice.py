"""Advice on keys that are allowed, but do nothing together or are seldom wise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle_memcallbacks.config.root import MemoryConfig
    from paddle_memcallbacks.config.section import Section

# more micro-batches than this leave the device idle between small kernels
MANY_STEPS = 16

_SCALER_KEYS = (
    "init_loss_scaling",
    "incr_ratio",
    "decr_ratio",
    "incr_every_n_steps",
    "decr_every_n_nan_or_inf",
    "use_dynamic_loss_scaling",
)
_DYNAMIC_KEYS = ("incr_ratio", "decr_ratio", "incr_every_n_steps", "decr_every_n_nan_or_inf")


def advice(config: MemoryConfig) -> Iterator[str]:
    """One sentence for each piece of advice."""
    if config.amp.enable:
        yield from _on_amp(config)
    if config.gradient_accumulation.enable:
        yield from _on_accumulation(config)
    if config.memory.plan is not None:
        yield from _on_plan(config)
    if config.memory.budget is not None and not config.memory.enable:
        yield "memory.budget does nothing: memory.enable is false."


def _on_amp(config: MemoryConfig) -> Iterator[str]:
    amp = config.amp
    idle = _given(amp, *_SCALER_KEYS)
    if amp.dtype == "bfloat16" and idle:
        yield f"bfloat16 needs no loss scale: {_listed('amp', idle)} can be left out."
    fixed = _given(amp, *_DYNAMIC_KEYS)
    if amp.dtype == "float16" and not amp.use_dynamic_loss_scaling and fixed:
        yield f"amp.use_dynamic_loss_scaling is false, so {_listed('amp', fixed)} changes nothing."
    masters = [key for key in ("master_weight", "master_grad") if getattr(amp, key)]
    if amp.level == "O1" and masters:
        yield f"AMP level O1 keeps weights and gradients in fp32: {_listed('amp', masters)} works under O2 only."
    accumulates = config.gradient_accumulation.enable and config.gradient_accumulation.steps != 1
    if amp.level == "O2" and amp.master_grad is False and accumulates:
        yield f"amp.master_grad is false, so micro-batches are added up in {amp.dtype}, which rounds; set it to true."


def _on_accumulation(config: MemoryConfig) -> Iterator[str]:
    steps = config.gradient_accumulation.steps
    if steps == 1:
        yield "gradient_accumulation.steps is 1: the batch is not sliced."
    if steps is not None and steps > MANY_STEPS:
        yield (
            f"gradient_accumulation.steps is {steps}, above {MANY_STEPS}: the learning rate must fit so large a batch, "
            "and small micro-batches leave the device idle; recompute allows larger ones."
        )


def _on_plan(config: MemoryConfig) -> Iterator[str]:
    if not config.memory.enable:
        yield "memory.plan does nothing: memory.enable is false."
    elif "recompute" in config.model_fields_set and not config.recompute.enable:
        yield "recompute is off, so the units that memory.plan lists are not recomputed, and its peak does not hold."


def _given(section: Section, *keys: str) -> list[str]:
    return [key for key in keys if key in section.model_fields_set]


def _listed(section: str, keys: list[str]) -> str:
    return ", ".join(f"{section}.{key}" for key in keys)
