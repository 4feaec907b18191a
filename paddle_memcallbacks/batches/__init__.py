"""Slicing batches, what their losses divide by, and trimming text. No paddle unless a batch holds its tensors."""

from paddle_memcallbacks.batches.slicing import BatchError, Slice, batch_rows, fresh, split_batch
from paddle_memcallbacks.batches.weights import Choice, Comparison, Measure, choose_weight, weights_for

__all__ = [
    "BatchError",
    "Choice",
    "Comparison",
    "Measure",
    "Slice",
    "batch_rows",
    "choose_weight",
    "fresh",
    "split_batch",
    "weights_for",
]
