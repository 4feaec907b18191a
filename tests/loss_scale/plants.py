"""Plants a fault at a layer of any model, so that a test can ask whether it is named. Reusable on toolkit models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import paddle


@dataclass(frozen=True)
class Plant:
    """``forward``: the layer's output is multiplied by inf or NaN. ``backward``: the gradient of its output is, and
    forward stays finite."""

    layer: str
    how: str
    value: float


def _first_tensor(output):
    if isinstance(output, paddle.Tensor):
        return output
    for item in output.values() if hasattr(output, "values") else output:
        if isinstance(item, paddle.Tensor):
            return item
    return None


@contextmanager
def planted(model: paddle.nn.Layer, plant: Plant, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """The fault is there inside the block, at every call of the layer for which ``when()`` is true."""
    layer = dict(model.named_sublayers(include_self=True))[plant.layer]

    def forward(_layer, _inputs, output):
        if not when():
            return None
        bad = lambda x: x * plant.value + plant.value
        if isinstance(output, paddle.Tensor):
            return bad(output)
        if isinstance(output, tuple):
            return (bad(output[0]), *output[1:])
        raise TypeError(f"{plant.layer} returns a {type(output).__name__}")

    def backward(_layer, _inputs, output):
        if not when():
            return
        _first_tensor(output).register_hook(lambda gradient: gradient * plant.value + plant.value)

    handle = layer.register_forward_post_hook(forward if plant.how == "forward" else backward)
    try:
        yield
    finally:
        handle.remove()


def plantable(model: paddle.nn.Layer, run: Callable[[], paddle.Tensor]) -> dict[str, list[str]]:
    """Layers where a fault can be planted, with the ways: those that run once and whose output gets a gradient.

    Args:
        run: one forward in train mode; returns the loss.
    """
    calls: dict[str, list] = {}
    reached: set[str] = set()

    def watch(name):
        def hook(_layer, _inputs, output):
            calls.setdefault(name, []).append(output)
            tensor = _first_tensor(output) if isinstance(output, (paddle.Tensor, tuple)) else None
            if tensor is not None and not tensor.stop_gradient:
                tensor.register_hook(lambda _gradient: reached.add(name))

        return hook

    handles = [
        layer.register_forward_post_hook(watch(name)) for name, layer in model.named_sublayers(include_self=True)
    ]
    try:
        run().backward()
    finally:
        for handle in handles:
            handle.remove()
    model.clear_gradients()
    once = [name for name, outputs in calls.items() if len(outputs) == 1 and name]
    return {name: ["forward", "backward"] for name in once if name in reached}


def random_plants(ways: dict[str, list[str]], count: int, seed: int) -> list[Plant]:
    """``count`` plants at random layers, both ways, with inf and NaN. Repeats a layer only when there are too few."""
    generator = random.Random(seed)
    pool = [(name, how) for name, hows in sorted(ways.items()) for how in hows]
    chosen = generator.sample(pool, count) if len(pool) >= count else generator.choices(pool, k=count)
    return [Plant(name, how, generator.choice([float("inf"), float("nan")])) for name, how in chosen]
