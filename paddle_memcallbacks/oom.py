"""Recognising Paddle's out-of-memory errors, letting go of what they pin, and the report that ends in config keys."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

GIB = 2**30

# the allocators' texts: CPU ops; GPU since 2.3; GPU 2.0 to 2.2; 1.x; virtual and managed memory; streams and handles
_DEVICE_TEXTS = re.compile(
    r"\(ResourceExhausted\)|ResourceExhaustedError|Out of memory error on|memory::allocation::BadAlloc|Cannot malloc"
    r"|out of GPU memory|CUDA managed memory on GPU|CUDA error\(2\), out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_HOST_TEXTS = re.compile(r"Unable to allocate|Cannot allocate memory|std::bad_alloc", re.IGNORECASE)
# broken devices and libraries: memory may be mentioned in their hints, but a smaller micro-batch does not mend them
_NOT_MEMORY = re.compile(r"(?:CUDA|CUDNN) error\((?!2\))\d+\)|CUBLAS error\((?!3\))\d+\)", re.IGNORECASE)
# paddle raises these for its own errors; a ValueError that quotes an allocator is the user's own text
_CLASSES = (MemoryError, OSError, SystemError, RuntimeError)
_LONGEST_CHAIN = 16


class OutOfMemory(MemoryError):
    """Memory ran out and the batch could not be replayed; the message is the report."""


@dataclass(frozen=True)
class OomFacts:
    """What the report is made of.

    Attributes:
        error: the first telling line of Paddle's error.
        rows: rows of the batch.
        micro_batch_sizes: sizes that were tried, in order.
        allocated_bytes, peak_bytes: the allocator's reading when the error came, where there is one.
        why_stopped: why a smaller micro-batch was not tried.
        notes: lines handed in, e.g. the planner's figures.
        remedies: config lines to try, most useful first.
    """

    error: str
    rows: int
    micro_batch_sizes: tuple[int, ...]
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    why_stopped: str = ""
    notes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def classify(error: BaseException) -> Literal["device", "host"] | None:
    """Which memory ran out, from the classes and texts of an exception and of its causes; None: not memory.

    On a CPU the device is the host, and Paddle's own allocator counts as ``device``; ``host`` is numpy's and Python's.
    CUDA, CUDNN and CUBLAS errors are memory only with the number for it, whatever caused them.
    """
    link: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if link is None or _NOT_MEMORY.search(str(link)):
            return None
        kind = _classify_one(link)
        if kind is not None:
            return kind
        link = link.__cause__
    return None


def is_oom(error: BaseException) -> bool:
    """Whether the exception, or one that caused it, says that memory ran out."""
    return classify(error) is not None


def drop_traceback(error: BaseException) -> None:
    """Let go of the activations that an exception pins: the local variables of every finished frame in its chain.

    The lines of the traceback stay readable.
    """
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def error_line(error: BaseException) -> str:
    """The line of Paddle's long message that says what ran out."""
    for link in _chain(error):
        lines = [line for line in str(link).splitlines() if _DEVICE_TEXTS.search(line) or _HOST_TEXTS.search(line)]
        if lines:
            # the class's name comes first, the sentence with the sizes after it
            return " ".join(lines[-1].split())[:300]
    first = str(error).strip().splitlines()
    return first[0][:300] if first else type(error).__name__


def oom_report(facts: OomFacts) -> str:
    """What ran out, what was tried, and the keys to change, as text."""
    tried = ", ".join(str(size) for size in facts.micro_batch_sizes)
    lines = [f"out of memory: {facts.error}", f"the batch has {facts.rows} rows; micro-batch sizes tried: {tried}"]
    if facts.allocated_bytes is not None:
        peak = "" if facts.peak_bytes is None else f", peak {facts.peak_bytes / GIB:.2f} GiB"
        lines.append(f"allocated after letting go of the failed try: {facts.allocated_bytes / GIB:.2f} GiB{peak}")
    if facts.why_stopped:
        lines.append(facts.why_stopped)
    lines += facts.notes
    if facts.remedies:
        lines.append("what may help, most useful first:")
        lines += [f"  {remedy}" for remedy in facts.remedies]
    return "\n".join(lines)


def remedies_for(micro_batch_size: int, can_slice: bool, on_oom: str = "replay") -> tuple[str, ...]:
    """Config lines to try after an OOM at this micro-batch size.

    Args:
        micro_batch_size: the size that ran out.
        can_slice: whether smaller micro-batches are open to this run.
        on_oom: the config's ``memory.on_oom``.
    """
    lines: list[str] = []
    if can_slice and micro_batch_size > 1:
        lines.append(f"gradient_accumulation: {{micro_batch_size: {max(1, micro_batch_size // 2)}}}")
        if on_oom == "raise":
            lines.append("memory: {on_oom: replay}   # halve the micro-batch and repeat the batch by itself")
    lines += [
        "recompute: {layers: auto}   # the same gradients, bit for bit, for about a third more time",
        "amp: {level: O1, dtype: bfloat16}   # halves most activations; changes the arithmetic",
        "if weights, gradients and moments alone exceed the memory: LoRA, sharding or another optimizer",
    ]
    return tuple(lines)


def _classify_one(error: BaseException) -> Literal["device", "host"] | None:
    text = str(error)
    named = "EnforceNotMet" in type(error).__name__
    if not named and not isinstance(error, _CLASSES):
        return None
    if _DEVICE_TEXTS.search(text):
        return "device"
    if isinstance(error, MemoryError):
        return "host"
    return "host" if isinstance(error, OSError) and _HOST_TEXTS.search(text) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it was raised from, and what was being handled when it was raised."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__]
