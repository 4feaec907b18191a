"""Keys that exclude each other, within a section and between sections. Pure functions over parsed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paddle_memcallbacks.config.errors import Complaint, describe

if TYPE_CHECKING:
    from paddle_memcallbacks.config.root import MemoryConfig
    from paddle_memcallbacks.config.sections import MemorySection, RecomputeConfig


def accumulation_contradictions(values: Mapping[str, Any]) -> list[Complaint]:
    """steps and micro_batch_size exclude each other, and one of them is needed; `values` holds the given keys."""
    steps, size = values.get("steps"), values.get("micro_batch_size")
    keys = ("gradient_accumulation.steps", "gradient_accumulation.micro_batch_size")
    if steps is not None and size is not None:
        return [
            _about(
                f"gradient_accumulation.steps ({steps}) and gradient_accumulation.micro_batch_size ({size}) exclude "
                "each other: steps multiplies the loader's batch, micro_batch_size slices it as it is. Remove one.",
                *keys,
            )
        ]
    if values.get("enable", True) and steps is None and size is None:
        return [
            _about(
                "gradient_accumulation is on, but neither gradient_accumulation.steps nor "
                "gradient_accumulation.micro_batch_size is given. Write for example 'steps: 4' or "
                "'micro_batch_size: 8' under it, or 'enable: false'.",
                *keys,
            )
        ]
    return []


def cross_contradictions(config: MemoryConfig) -> list[Complaint]:
    """What one section asks for and another makes impossible. A section that is off asks for nothing."""
    found = []
    if config.gradient_accumulation.enable and config.gradient_accumulation.micro_batch_size == "auto":
        found += _planner_needed(config.memory)
    if config.recompute.enable and config.memory.enable and config.memory.plan is not None:
        found += _chosen_twice(config.recompute, config.memory.plan)
    if config.amp.enable and config.loss_scale.enable and config.amp.dtype == "float16":
        found += _starts_below_floor(config)
    return found


def _planner_needed(memory: MemorySection) -> list[Complaint]:
    text = "gradient_accumulation.micro_batch_size is auto, so that the planner chooses it, but "
    keys = ("gradient_accumulation.micro_batch_size", "memory.budget", "memory.plan", "memory.enable")
    if not memory.enable:
        return [_about(f"{text}memory.enable is false. Turn memory on and set memory.budget.", *keys)]
    if memory.budget is None and memory.plan is None:
        return [
            _about(
                f"{text}neither memory.budget nor memory.plan is given. Set memory.budget, for example to 14GiB, or "
                "give a number of rows.",
                *keys,
            )
        ]
    return []


def _chosen_twice(recompute: RecomputeConfig, plan: str) -> list[Complaint]:
    neutral = {"layers": "auto", "every_n": 1, "first": None, "last": None}
    return [
        _about(
            f"memory.plan ({describe(plan)}) says which units are recomputed, and recompute.{key} "
            f"({describe(getattr(recompute, key))}) says it too. Remove one"
            f"{', or set recompute.layers to auto' if key == 'layers' else ''}.",
            f"recompute.{key}",
            "memory.plan",
        )
        for key, value in neutral.items()
        if getattr(recompute, key) != value
    ]


def _starts_below_floor(config: MemoryConfig) -> list[Complaint]:
    start, floor = config.amp.init_loss_scaling, config.loss_scale.min_loss_scale
    if start >= floor:
        return []
    start_default = "" if "init_loss_scaling" in config.amp.model_fields_set else ", the default"
    floor_default = "" if "min_loss_scale" in config.loss_scale.model_fields_set else ", the default"
    return [
        _about(
            f"amp.init_loss_scaling ({start:g}{start_default}) lies below loss_scale.min_loss_scale "
            f"({floor:g}{floor_default}): the loss scale would start under its floor. "
            "Raise the one or lower the other.",
            "amp.init_loss_scaling",
            "loss_scale.min_loss_scale",
        )
    ]


def _about(text: str, *keys: str) -> Complaint:
    return Complaint(keys[0], text, keys)
