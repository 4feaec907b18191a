from __future__ import annotations

from collections.abc import Callable, Iterator

import paddle
import pytest

from paddle_memcallbacks import memory
from tests.memory.fake_core import Allocator, core_with


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Allocator, Allocator]]]:
    """``host, device = fake("gpu:0", can_reset=True)``: that device's counters from now on."""

    def install(name: str, can_reset: bool = True, families: str = "host device") -> tuple[Allocator, Allocator]:
        host, device = Allocator(), Allocator()
        core = core_with(host if "host" in families else None, device if "device" in families else None, can_reset)
        monkeypatch.setattr(memory, "core", core)
        monkeypatch.setattr(paddle, "get_device", lambda: name)
        return host, device

    memory._counters_of.cache_clear()
    yield install
    memory._counters_of.cache_clear()
