"""Training steps whose every number is kept, so that two runs can be compared bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import paddle
from paddle.base import core

from paddle_memcallbacks.recompute import recompute_units


def seed_all(seed: int = 7) -> None:
    paddle.seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def on_host(tensor: paddle.Tensor) -> np.ndarray:
    return np.array(tensor.detach().numpy())


def gradients(model: paddle.nn.Layer) -> dict[str, np.ndarray]:
    return {f"grad {name}": on_host(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def state(model: paddle.nn.Layer) -> dict[str, np.ndarray]:
    found = {f"parameter {name}": on_host(p) for name, p in model.named_parameters()}
    return {**found, **{f"buffer {name}": on_host(b) for name, b in model.named_buffers()}}


def random_draws() -> dict[str, np.ndarray]:
    return {
        "rng paddle": on_host(paddle.rand([4])),
        "rng numpy": np.random.rand(4),
        "rng python": np.array([random.random() for _ in range(4)]),
    }


def train(
    make: Callable[[], paddle.nn.Layer],
    loss_of: Callable[[paddle.nn.Layer], paddle.Tensor],
    units: Sequence[str] | None,
    steps: int = 3,
    between: Callable[[paddle.nn.Layer], None] | None = None,
    optimizer: Callable[..., Any] | None = None,
) -> list[dict[str, np.ndarray]]:
    """Losses, gradients, weights, buffers and the random numbers drawn after each step."""
    seed_all()
    with paddle.utils.unique_name.guard():
        model = make()
        model.train()
        stepper = (optimizer or paddle.optimizer.Adam)(learning_rate=1e-2, parameters=model.parameters())
    seen = []
    with recompute_units(model, units) if units is not None else nullcontext() as switch:
        for _ in range(steps):
            loss = loss_of(model)
            if between is not None:
                between(model)
            loss.backward()
            seen.append({"loss": on_host(loss), **gradients(model), **state(model), **random_draws()})
            stepper.step()
            stepper.clear_grad()
            model.train()
        if units is not None:
            assert switch.idle_units() == ()
    seen.append(state(model))
    return seen


def assert_same(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> None:
    assert len(one) == len(other)
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        assert list(a) == list(b), step
        differing = [name for name in a if a[name].tobytes() != b[name].tobytes()]
        assert not differing, (step, differing)


def allocated_bytes() -> int:
    return int(core.host_memory_stat_current_value("Allocated", 0))


def data(*shape: int, seed: int = 3) -> paddle.Tensor:
    return paddle.to_tensor(np.random.RandomState(seed).standard_normal(shape).astype("float32"))
