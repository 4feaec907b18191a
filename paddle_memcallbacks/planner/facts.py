"""What a plan is made for, read from the model, the batch and the device."""

from __future__ import annotations

from typing import Any

import paddle

from paddle_memcallbacks import __version__
from paddle_memcallbacks.batches.slicing import array_fields
from paddle_memcallbacks.planner.plan import Facts


def facts_of(model: paddle.nn.Layer, batch: Any = None) -> Facts:
    """Device, model, batch shapes and versions, as they are now.

    Args:
        model: the layer that is trained, bare or in paddle.DataParallel.
        batch: one batch, the largest that is known.
    """
    bare = model._layers if isinstance(model, paddle.DataParallel) else model
    shapes = {} if batch is None else {p: tuple(int(n) for n in v.shape) for p, v in array_fields(batch).items()}
    return Facts(
        device=_device(),
        model=type(bare).__name__,
        parameters=sum(int(p.size) for p in bare.parameters() if not p.stop_gradient),
        shapes=shapes,
        versions={"paddle": paddle.__version__, "paddle_memcallbacks": __version__},
    )


def _device() -> str:
    name = paddle.get_device()
    kind, _, index = name.partition(":")
    if kind != "gpu" or paddle.device.cuda.device_count() == 0:
        return name
    return f"{name} {paddle.device.cuda.get_device_name(int(index or 0))}"
