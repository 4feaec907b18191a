"""Budgets that are not written as a number."""

from __future__ import annotations

import paddle

from paddle_memcallbacks import memory
from paddle_memcallbacks.planner.plan import size_text


def budget_bytes(budget: int | str, *, cpu_bytes: int | None = None) -> int:
    """Allocated bytes that a step may reach.

    ``auto`` on a GPU: what is free on the card plus what this process holds already; the plan's margin goes off that.
    On a CPU there is no such limit worth filling, so a size must be stated.

    Args:
        budget: bytes, or ``auto``.
        cpu_bytes: what ``auto`` means on a CPU.

    Raises:
        ValueError: ``auto`` on a CPU without a stated size.
    """
    if budget != "auto":
        return int(budget)
    free_bytes = free_device_bytes()
    if free_bytes is not None:
        return free_bytes + memory.memory_reading().reserved_bytes
    if cpu_bytes is not None:
        return cpu_bytes
    raise ValueError(
        "memory.budget is auto, and this device has no memory of its own to fill "
        f"({paddle.get_device()}): state a size, e.g. memory.budget: {size_text(4 * 2**30)}".replace(" GiB", "GiB")
    )


def free_device_bytes() -> int | None:
    """What is free on the current GPU now; None on other devices."""
    kind, _, index = paddle.get_device().partition(":")
    if kind != "gpu" or paddle.device.cuda.device_count() == 0:
        return None
    query = getattr(paddle.device.cuda, "mem_get_info", None)
    if query is not None:
        return int(query(int(index or 0))[0])
    total = memory.device_total_bytes()
    return None if total is None else total - memory.memory_reading().reserved_bytes
