"""The reader's batch: K micro-batches joined, also where the user's own loader fixes its size."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import paddle

from paddle_memcallbacks.alerts import announce
from paddle_memcallbacks.config import ConfigError


class _Joined:
    """Mixed in before a batch sampler's class: K consecutive batches of indices become one."""

    _join: int

    def __iter__(self) -> Iterator[list[Any]]:
        joined: list[Any] = []
        count = 0
        for indices in super().__iter__():  # type: ignore[misc]
            joined.extend(indices)
            count += 1
            if count == self._join:
                yield joined
                joined, count = [], 0
        if joined:
            yield joined

    def __len__(self) -> int:
        batches: int = super().__len__()  # type: ignore[misc]
        return math.ceil(batches / self._join)


def enlarge(loader: Any, factor: int, rows: int, where: str) -> Any:
    """The loader whose batches hold ``factor`` micro-batches.

    Args:
        loader: what the Trainer's get_train_dataloader returned, after its batch size argument was multiplied.
        factor: micro-batches of a step.
        rows: what a batch must hold: micro-batch x factor.
        where: the class whose loader it is, for the message.

    Raises:
        ConfigError: the loader has no batch sampler and yields another number of rows.
    """
    if factor == 1:
        return loader
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(sampler, "batch_size", None)
    if size == rows:
        return loader
    if isinstance(loader, paddle.io.DataLoader) and isinstance(sampler, paddle.io.BatchSampler):
        announce(
            f"the train loader of {where} fixes its batch size to {size}, not the {rows} rows of a step: "
            f"{factor} consecutive batches of it are joined."
        )
        joined_class: Any = type(type(sampler).__name__, (_Joined, type(sampler)), {})
        joined = joined_class.__new__(joined_class)
        joined.__dict__.update(sampler.__dict__, _join=factor)
        enlarged = copy.copy(loader)
        enlarged.batch_sampler = joined
        return enlarged
    if getattr(loader, "batch_size", None) == rows:
        return loader
    raise ConfigError(
        f"gradient_accumulation.steps: {factor} needs batches of {rows} rows, and the train loader of {where} has no "
        "batch sampler that can be enlarged. Build it with batch_size=args.per_device_train_batch_size, or use "
        "gradient_accumulation.micro_batch_size, which slices the batch that the loader gives."
    )
