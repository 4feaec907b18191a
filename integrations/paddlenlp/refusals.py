"""What cannot be honoured is refused before step 1, by name."""

from __future__ import annotations

import types
from typing import Any

from paddle_memcallbacks.config import ConfigError


def refuse_unsupported(trainer: Any, base_class: type) -> None:
    """Refuse the Trainer's modes that count accumulation themselves, and a training_step that bypasses ours.

    Raises:
        ConfigError: names the setting or the override, and what to do.
    """
    args = trainer.args
    if args.pipeline_parallel_degree > 1:
        raise ConfigError(
            f"pipeline_parallel_degree={args.pipeline_parallel_degree}: pipeline parallel slices batches itself. "
            "Remove MemoryCallback, or train without pipeline parallel."
        )
    if len(args.sharding) > 0:
        names = " ".join(getattr(item, "value", str(item)) for item in args.sharding)
        raise ConfigError(
            f"sharding='{names}': this sharding counts accumulation steps itself, so micro-batches would be reduced "
            "twice. Remove MemoryCallback, or train with plain data parallel."
        )
    if getattr(args, "enable_auto_parallel", False):
        raise ConfigError(
            "enable_auto_parallel: the auto-parallel Trainer has a loop of its own. Remove MemoryCallback."
        )
    override = type(trainer).training_step
    if override is not base_class.training_step and not _may_reach_super(override):  # type: ignore[attr-defined]
        raise ConfigError(
            f"{type(trainer).__name__}.training_step never calls super().training_step(model, inputs), so the batch "
            "cannot be sliced there. Call super() for forward and backward, or override compute_loss instead."
        )


def refuse_bypassed_step(trainer: Any) -> None:
    """Called before the first optimizer step when no forward and backward went through ours.

    Raises:
        ConfigError: names the override.
    """
    raise ConfigError(
        f"{type(trainer).__name__} ran its forward and backward past Trainer.training_step, so nothing was sliced or "
        "measured, and the gradients are those of whatever it did. Override compute_loss instead, or call "
        "super().training_step(model, inputs)."
    )


def _may_reach_super(function: Any) -> bool:
    """Whether the code names ``training_step`` somewhere, as a call of super's must."""
    code = getattr(function, "__code__", None)
    return code is None or _names(code, "training_step")


def _names(code: types.CodeType, name: str) -> bool:
    if name in code.co_names:
        return True
    return any(_names(const, name) for const in code.co_consts if isinstance(const, types.CodeType))
