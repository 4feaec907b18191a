"""Micro-batches inside a step: slices, weights that are found, replay after an out-of-memory error, ranks."""

from paddle_memcallbacks.microbatch.errors import MicroBatchError
from paddle_memcallbacks.microbatch.loop import BatchOutcome, MicroBatchLoop
from paddle_memcallbacks.microbatch.losses import autocast_off, detached, dummy_leaf, primary, weighted_backward
from paddle_memcallbacks.microbatch.ranks import world_size
from paddle_memcallbacks.microbatch.snapshot import GradMode, StepSnapshot
from paddle_memcallbacks.microbatch.step import release_cached_memory
from paddle_memcallbacks.microbatch.weighting import WeightChoice

__all__ = [
    "BatchOutcome",
    "GradMode",
    "MicroBatchError",
    "MicroBatchLoop",
    "StepSnapshot",
    "WeightChoice",
    "autocast_off",
    "detached",
    "dummy_leaf",
    "primary",
    "release_cached_memory",
    "weighted_backward",
    "world_size",
]
