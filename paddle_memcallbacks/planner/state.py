"""Training state kept on the host while steps are measured: everything a step changes is put back as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import paddle

from paddle_memcallbacks.recompute.rng import RngState

# attributes of optimizers and scalers that hold further objects with state
_INNER = ("_learning_rate", "_inner_opt", "_inner_optimizer", "_optim", "_scaler")


class TrainingState:
    """Weights, gradients, buffers, optimizer state, LR schedule, scaler, random numbers and generated names.

    Values lie in numpy arrays, so the copies cost the host's memory, not the device's.

    Args:
        model: its parameters and buffers, frozen ones included.
        keepers: optimizers, scalers and LR schedules.
    """

    def __init__(self, model: paddle.nn.Layer, keepers: Sequence[Any]) -> None:
        self._parameters = list({id(p): p for p in (*model.parameters(), *_optimized(keepers))}.values())
        buffers = [buffer for _, buffer in model.named_buffers()]
        owners = list(_owners(keepers))
        held = [tensor for owner in owners for tensor in _tensors(owner.__dict__)]
        kept = {id(t): t for t in (*self._parameters, *buffers, *held) if t._is_initialized()}
        self._values = [(tensor, np.array(tensor.numpy())) for tensor in kept.values()]
        self._gradients = [(p, _host(p.grad), _host(getattr(p, "main_grad", None))) for p in self._parameters]
        self._containers = [_frozen(owner.__dict__) for owner in owners]
        self._buffer_slots = [(layer._buffers, dict(layer._buffers)) for layer in model.sublayers(include_self=True)]
        self._names = dict(paddle.base.unique_name.generator.ids)
        self._rng = RngState.now()

    def rewind(self) -> None:
        """Values and random numbers as they were; optimizer state and gradients that came since stay allocated."""
        with paddle.no_grad():
            for tensor, value in self._values:
                tensor.set_value(value)
        self._rng.put_back()

    def restore(self) -> None:
        """Everything as it was: what came since is gone too."""
        for frozen in self._containers:
            frozen.thaw()
        for buffers, before in self._buffer_slots:
            buffers.clear()
            buffers.update(before)
        self.rewind()
        for parameter, gradient, main_gradient in self._gradients:
            _restore_gradient(parameter, gradient)
            if getattr(parameter, "main_grad", None) is not None:
                parameter.main_grad = None if main_gradient is None else paddle.to_tensor(main_gradient)
        ids = paddle.base.unique_name.generator.ids
        ids.clear()
        ids.update(self._names)


def optimizers_of(model: paddle.nn.Layer) -> list[Any]:
    """The live optimizers that hold one of the model's parameters."""
    mine = {id(parameter) for parameter in model.parameters()}
    found = [o for o in gc.get_objects() if isinstance(o, paddle.optimizer.Optimizer)]
    return [o for o in found if any(id(parameter) in mine for parameter in _optimized([o]))]


def _optimized(keepers: Sequence[Any]) -> Iterator[Any]:
    for keeper in keepers:
        for entry in getattr(keeper, "_parameter_list", None) or ():
            yield from entry["params"] if isinstance(entry, dict) else (entry,)


def _owners(keepers: Sequence[Any]) -> Iterator[Any]:
    """The keepers and the objects with state inside them, each once."""
    seen: set[int] = set()
    waiting = [keeper for keeper in keepers if keeper is not None]
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen or not hasattr(owner, "__dict__"):
            continue
        seen.add(id(owner))
        yield owner
        waiting.extend(owner.__dict__[name] for name in _INNER if name in owner.__dict__)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, paddle.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class _frozen:
    """A container's items now, and those of the plain containers in it; thawed into the same objects."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._items: Any = container.copy()
        values = container.values() if isinstance(container, dict) else container
        self._inner = [_frozen(value) for value in values if isinstance(value, (dict, list, set))]

    def thaw(self) -> None:
        self._container.clear()
        if isinstance(self._container, list):
            self._container.extend(self._items)
        else:
            self._container.update(self._items)
        for frozen in self._inner:
            frozen.thaw()


def _host(tensor: Any) -> np.ndarray | None:
    if tensor is None or not tensor._is_initialized() or not tensor.is_dense():
        return None
    return np.array(tensor.numpy())


def _restore_gradient(parameter: Any, gradient: np.ndarray | None) -> None:
    if gradient is None:
        if parameter.grad is not None:
            # the keyword is ignored by Paddle 3.3: only the position counts
            parameter.clear_gradient(False)
    elif parameter.grad is not None:
        parameter.grad.set_value(gradient)
    else:
        parameter.grad = paddle.to_tensor(gradient)
