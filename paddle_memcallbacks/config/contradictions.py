"""Keys that exclude each other, and advice on keys that do nothing together. Pure functions over parsed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paddle_memcallbacks.config.errors import Complaint, describe

if TYPE_CHECKING:
    from paddle_memcallbacks.config.sections import (
        AccumulationConfig,
        AmpConfig,
        MemorySection,
        RecomputeConfig,
    )


def complaint(text: str, *keys: str) -> Complaint:
    """A complaint about several keys at once; it stands under the first."""
    return Complaint(keys[0], text, keys)


def accumulation_contradictions(values: Mapping[str, Any]) -> list[Complaint]:
    """steps and micro_batch_size exclude each other, and one of them is needed."""
    steps, size = values.get("steps"), values.get("micro_batch_size")
    keys = ("gradient_accumulation.steps", "gradient_accumulation.micro_batch_size")
    if steps is not None and size is not None:
        return [
            complaint(
                f"gradient_accumulation.steps ({steps}) and gradient_accumulation.micro_batch_size ({size}) exclude each "
                "other: steps multiplies the loader's batch, micro_batch_size slices it as it is. Remove one of them.",
                *keys,
            )
        ]
    if values.get("enable", True) and steps is None and size is None:
        return [
            complaint(
                "gradient_accumulation is on, but neither gradient_accumulation.steps nor "
                "gradient_accumulation.micro_batch_size is given. Write for example 'steps: 4' or "
                "'micro_batch_size: 8' under it, or 'enable: false'.",
                *keys,
            )
        ]
    return []


def cross_contradictions(
    accumulation: AccumulationConfig, recompute: RecomputeConfig, memory: MemorySection
) -> list[Complaint]:
    """What one section asks for and another makes impossible."""
    found = []
    if accumulation.enable and accumulation.micro_batch_size == "auto":
        found += _planner_needed(memory)
    if recompute.enable and memory.enable and memory.plan is not None:
        found += _chosen_twice(recompute, memory.plan)
    return found


def _planner_needed(memory: MemorySection) -> list[Complaint]:
    text = "gradient_accumulation.micro_batch_size is auto, so that the planner chooses it, but "
    keys = ("gradient_accumulation.micro_batch_size", "memory.budget", "memory.plan", "memory.enable")
    if not memory.enable:
        return [complaint(f"{text}memory.enable is false. Turn memory on and set memory.budget.", *keys)]
    if memory.budget is None and memory.plan is None:
        return [
            complaint(
                f"{text}neither memory.budget nor memory.plan is given. Set memory.budget, for example to 14GiB, or "
                "give a number of rows.",
                *keys,
            )
        ]
    return []


def _chosen_twice(recompute: RecomputeConfig, plan: str) -> list[Complaint]:
    chosen = [
        name
        for name, idle in (("layers", "auto"), ("every_n", 1), ("first", None), ("last", None))
        if getattr(recompute, name) != idle
    ]
    return [
        complaint(
            f"memory.plan ({describe(plan)}) says which units are recomputed, and recompute.{name} "
            f"({describe(getattr(recompute, name))}) says it too. Remove one of them"
            f"{', or set recompute.layers to auto' if name == 'layers' else ''}.",
            f"recompute.{name}",
            "memory.plan",
        )
        for name in chosen
    ]
