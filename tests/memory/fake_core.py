"""Paddle's memory counters, in our hands: for devices and versions that are not at hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Allocator:
    """Counters of one family (host or device). ``use(bytes)`` allocates, negative frees."""

    def __init__(self) -> None:
        self.current: dict[tuple[str, int], int] = {}
        self.peak: dict[tuple[str, int], int] = {}

    def use(self, size: int, index: int = 0, kind: str = "Allocated") -> None:
        key = kind, index
        self.current[key] = self.current.get(key, 0) + size
        self.peak[key] = max(self.peak.get(key, 0), self.current[key])

    def current_value(self, kind: str, index: int) -> int:
        return self.current.get((kind, index), 0)

    def peak_value(self, kind: str, index: int) -> int:
        return self.peak.get((kind, index), 0)

    def reset_peak_value(self, kind: str, index: int) -> None:
        self.peak[kind, index] = self.current.get((kind, index), 0)


def core_with(host: Allocator | None, device: Allocator | None, can_reset: bool = True) -> Any:
    """A stand-in for paddle.base.core: the families given, with a reset or (as in 2.6) without."""
    names = ["current_value", "peak_value", *(["reset_peak_value"] if can_reset else [])]
    functions = {
        f"{family}_memory_stat_{name}": getattr(allocator, name)
        for family, allocator in (("host", host), ("device", device))
        if allocator is not None
        for name in names
    }
    return SimpleNamespace(**functions)
