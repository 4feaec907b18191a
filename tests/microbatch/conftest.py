"""Small models and loops that every test of this room shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_memcallbacks.config import AccumulationConfig
from paddle_memcallbacks.microbatch import MicroBatchLoop, detached, weighted_backward

ComputeLoss = Callable[[Any], Any]


class Runner:
    """A model, its loss on a batch, and a loop; `gradients` of whole and sliced runs can be compared."""

    def __init__(self, model: paddle.nn.Layer, compute_loss: ComputeLoss) -> None:
        self.model = model
        self.compute_loss = compute_loss

    def loop(self, micro_batch_size: int | None = None, on_oom: str = "replay", **keys: Any) -> MicroBatchLoop:
        config = AccumulationConfig(enable=False)
        if micro_batch_size is not None or keys:
            config = AccumulationConfig(micro_batch_size=micro_batch_size, **keys)
        return MicroBatchLoop(self.model, config, on_oom=on_oom)

    def forward_backward(self, micro_batch: Any, weight: float) -> Any:
        loss = self.compute_loss(micro_batch)
        weighted_backward(loss, weight)
        return detached(loss)

    def run(self, loop: MicroBatchLoop, batch: Any) -> Any:
        return loop.run(batch, self.forward_backward, self.compute_loss)

    def native(self, batch: Any) -> float:
        """One plain forward and backward of the whole batch."""
        loss = self.compute_loss(batch)
        value = loss["loss"] if isinstance(loss, dict) else loss
        value.backward()
        return float(value)

    def take_gradients(self) -> dict[str, np.ndarray]:
        """The gradients by parameter's name; they are cleared."""
        named = dict(self.model.named_parameters())
        found = {name: p.grad.numpy().copy() for name, p in named.items() if p.grad is not None}
        self.model.clear_gradients()
        for parameter in self.model.parameters():
            parameter.clear_gradient(False)
        return found

    def state(self) -> dict[str, np.ndarray]:
        """Weights and buffers."""
        return {name: value.numpy().copy() for name, value in self.model.state_dict().items()}


def relative_error(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Relative L2 distance over all gradients."""
    assert found.keys() == expected.keys()
    difference = sum(float(((found[key].astype("f8") - expected[key]) ** 2).sum()) for key in expected)
    return (difference / sum(float((expected[key].astype("f8") ** 2).sum()) for key in expected)) ** 0.5


def same_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)


def random_states() -> tuple[Any, ...]:
    """What paddle, numpy and Python would draw next, without drawing it."""
    import random

    before = paddle.get_rng_state()
    drawn = paddle.rand([4]).numpy().tolist()
    paddle.set_rng_state(before)
    return drawn, np.random.get_state()[1].tolist(), np.random.get_state()[2], random.getstate()


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    paddle.seed(7)
    np.random.seed(7)
    yield
    paddle.set_default_dtype("float32")
