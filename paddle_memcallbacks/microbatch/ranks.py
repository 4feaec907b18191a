"""Several data-parallel ranks: no synchronisation while slices run, then one agreement and one gradient reduction.

Every rank averages its own batch, and the ranks' means are averaged, as paddle.DataParallel does. Nothing is exchanged
while slices run, so ranks may take different numbers of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import paddle
import paddle.distributed as dist

from paddle_memcallbacks.microbatch.errors import MicroBatchError
from paddle_memcallbacks.microbatch.snapshot import gradient_of

CHUNK_BYTES = 64 * 2**20


class Verdict(IntEnum):
    """How a rank's try ended; the largest of all ranks' counts."""

    DONE = 0
    REPLAY = 1
    STOP = 2


def world_size() -> int:
    """Ranks of this run; 1 where paddle.distributed was not started."""
    return int(dist.get_world_size()) if dist.is_initialized() else 1


class Ranks:
    """The run's ranks, as far as the slice loop needs them.

    Args:
        parallel: the layer that the toolkit trains; gradients are reduced here only where it is paddle.DataParallel,
            since other strategies reduce in their own optimizers.
    """

    def __init__(self, parallel: paddle.nn.Layer) -> None:
        self._parallel = parallel if isinstance(parallel, paddle.DataParallel) else None
        self._group = getattr(parallel, "group", None) if self._parallel is not None else None

        self._anywhere: list[int] = []

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return world_size() > 1

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """While it is open, backward leaves gradients local."""
        if self._parallel is None or not self.several:
            return contextlib.nullcontext()
        return self._parallel.no_sync()

    def agree(self, mine: Verdict, parameters: Sequence[paddle.Tensor]) -> Verdict:
        """The worst of all ranks' verdicts.

        The same small all-reduce tells which parameters have a gradient on any rank.
        """
        if not self.several:
            return mine
        have = [int(gradient_of(parameter) is not None) for parameter in parameters]
        flags = paddle.to_tensor([int(mine), *have], dtype="int32")
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        worst, *self._anywhere = flags.tolist()
        return Verdict(worst)

    def reduce_gradients(self, parameters: Sequence[paddle.Tensor]) -> None:
        """Average the gradients over the ranks, in chunks of at most `CHUNK_BYTES` (or one larger gradient).

        Comes after `agree` with the same parameters. A parameter that has a gradient on some ranks only counts as zero
        on the others; without one anywhere it keeps none.

        Raises:
            MicroBatchError: a gradient is sparse.
        """
        if self._parallel is None or not self.several:
            return
        with paddle.no_grad():
            for parameter, anywhere in zip(parameters, self._anywhere, strict=True):
                if anywhere and gradient_of(parameter) is None:
                    parameter.grad = paddle.zeros_like(parameter)
            gradients = [gradient for gradient in map(gradient_of, parameters) if gradient is not None]
            for chunk in chunks_of(gradients, CHUNK_BYTES):
                self._average(chunk)

    def _average(self, gradients: Sequence[paddle.Tensor]) -> None:
        share = 1.0 / (self._group.nranks if self._group is not None else world_size())
        if len(gradients) == 1:
            gradients[0].scale_(share)
            dist.all_reduce(gradients[0], group=self._group)
            return
        flat = paddle.concat([gradient.flatten() for gradient in gradients])
        flat.scale_(share)
        dist.all_reduce(flat, group=self._group)
        start = 0
        for gradient in gradients:
            size = int(gradient.size)
            paddle.assign(flat[start : start + size].reshape(gradient.shape), output=gradient)
            start += size


def chunks_of(gradients: Iterable[paddle.Tensor], most_bytes: int) -> list[list[paddle.Tensor]]:
    """Gradients of one dtype each, in order, at most so many bytes together; a larger one stands alone.

    Raises:
        MicroBatchError: a gradient is sparse.
    """
    chunks: list[list[paddle.Tensor]] = []
    room: dict[Any, int] = {}
    open_chunks: dict[Any, list[paddle.Tensor]] = {}
    for gradient in gradients:
        if not gradient.is_dense():
            raise MicroBatchError(
                f"the gradient {gradient.name} is sparse, and is not averaged over ranks in micro-batches; "
                "build its embedding with sparse=False"
            )
        size = int(gradient.size) * gradient.element_size()
        chunk = open_chunks.get(gradient.dtype)
        if chunk is None or size > room[gradient.dtype]:
            chunk = open_chunks[gradient.dtype] = []
            room[gradient.dtype] = most_bytes
            chunks.append(chunk)
        chunk.append(gradient)
        room[gradient.dtype] -= size
    return chunks
