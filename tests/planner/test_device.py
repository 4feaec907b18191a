"""Budgets and what a plan was made for."""

from __future__ import annotations

import paddle
import pytest

from paddle_memcallbacks import memory
from paddle_memcallbacks.planner import budget_bytes, device, facts_of


def test_a_number_is_itself() -> None:
    assert budget_bytes(5 * 2**30) == 5 * 2**30


def test_auto_on_a_cpu_needs_a_stated_size() -> None:
    with pytest.raises(ValueError, match="state a size, e.g. memory.budget: 4.00GiB"):
        budget_bytes("auto")
    assert budget_bytes("auto", cpu_bytes=2**30) == 2**30


def test_auto_on_a_card_is_what_is_free_and_what_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_device_bytes", lambda: 10 * 2**30)
    reading = memory.MemoryReading(1, 2 * 2**30, 1, 1)
    monkeypatch.setattr(memory, "memory_reading", lambda: reading)
    assert budget_bytes("auto") == 12 * 2**30


def test_facts_name_device_model_shapes_and_versions() -> None:
    model = paddle.nn.Linear(3, 4)
    facts = facts_of(model, {"x": paddle.zeros([2, 3]), "y": [1, 2]})
    assert (facts.device, facts.model, facts.parameters) == ("cpu", "Linear", 16)
    assert facts.shapes == {"x": (2, 3)}
    assert facts.versions["paddle"] == paddle.__version__
