"""The optimizer's moments, created before the first step, so that an OOM comes before any weight has moved."""

from __future__ import annotations

from typing import Any

import paddle

from paddle_memcallbacks.alerts import warn_once


def create_moments(optimizer: Any) -> bool:
    """Create the optimizer's accumulators (and master weights) for every trainable parameter.

    They get the values and names that Paddle itself would give them in the first step. State that was loaded from a
    checkpoint is taken up, as Paddle does. Optimizers that keep no accumulators, or wrap another, are left alone.

    Args:
        optimizer: a ``paddle.optimizer.Optimizer``.

    Returns:
        Whether accumulators stand now.
    """
    create = getattr(optimizer, "_create_accumulators", None)
    groups = getattr(optimizer, "_param_groups", None)
    if create is None or groups is None or getattr(optimizer, "_use_multi_tensor", False):
        return False
    if getattr(optimizer, "_accumulators", None):
        return True
    block = paddle.base.framework.default_main_program().global_block()
    try:
        for group in groups:
            members = group["params"] if isinstance(group, dict) else [group]
            trainable = [parameter for parameter in members if not parameter.stop_gradient]
            if isinstance(group, dict):
                create(block, {**group, "params": trainable})
            elif trainable:
                create(block, trainable)
    except Exception as error:
        warn_once(
            "moments",
            f"{type(optimizer).__name__}'s moments could not be created before the first step ({error}); an "
            "out-of-memory error in that step cannot be replayed.",
        )
        return False
    return bool(getattr(optimizer, "_accumulators", None))
