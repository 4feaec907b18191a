"""Losses that talk to the other ranks inside forward: PicoDet, PP-YOLOE and others all-reduce what they divide by.

A batch that goes through whole does so as ever. Slices do not: ranks may take different numbers of them (the probe, a
replay after an out-of-memory error), and a rank that waits for one which has none left would wait for ever. So each
slice divides by what it assigned itself, as it does on one rank.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import paddle

from . import watched

_CALLS = ("distributed.all_reduce(", "dist.all_reduce(")


class RankStopped(BaseException):
    """Memory ran out on this rank while others may wait for it inside forward; the process must end, or all would wait.

    Not an Exception, so that nothing on the way asks the other ranks what to do next.
    """


@dataclass(frozen=True)
class Talk:
    """What talks to the other ranks inside forward.

    Attributes:
        losses: something calls ``paddle.distributed.all_reduce``.
        norms: SyncBatchNorm, which talks in every forward, of slices too.
    """

    losses: bool = False
    norms: bool = False


SILENT = Talk()


def talk_of(model: paddle.nn.Layer) -> Talk:
    """What the code of the model's layers, and of the losses that they hold, says."""
    modules: set[str] = set()
    norms = False
    for layer in model.sublayers(include_self=True):
        norms = norms or isinstance(layer, paddle.nn.SyncBatchNorm)
        modules |= {type(value).__module__ for value in (layer, *vars(layer).values())}
    own = [name for name in modules if not name.startswith(("paddle.", "builtins", "numpy"))]
    return Talk(losses=any(_all_reduces(name) for name in own), norms=norms)


def _all_reduces(module_name: str) -> bool:
    try:
        source = inspect.getsource(sys.modules[module_name])
    except (OSError, TypeError, KeyError):
        return False
    return any(call in source for call in _CALLS)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Forward as on one rank: `paddle.distributed` counts one process and reduces nothing."""
    with (
        watched.replaced(paddle.distributed, "get_world_size", lambda *args, **kwargs: 1),
        watched.replaced(paddle.distributed, "all_reduce", lambda tensor, *args, **kwargs: None),
    ):
        yield


def stop_text(rows: int) -> str:
    """What a rank says that ran out of memory in a forward that talks."""
    rank = paddle.distributed.get_rank()
    return (
        f"out of memory with {rows} rows on rank {rank}. This model's forward all-reduces over the ranks, so the batch "
        "cannot be replayed on one of them alone -> gradient_accumulation: "
        f"{{micro_batch_size: {max(rows // 2, 1)}}}, or recompute: true"
    )
