"""The state that the probe runs a model in: training mode without randomness, leaving no trace."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle.base import core
from paddle.base.framework import _dygraph_tracer
from paddle.nn.layer.norm import _BatchNormBase

from paddle_memcallbacks.microbatch.losses import autocast_off
from paddle_memcallbacks.microbatch.precision import HALF
from paddle_memcallbacks.microbatch.snapshot import ModelState, RandomState, state_slots

_DROPS = re.compile(r"drop(out|path|block|connect)|stochastic_?depth", re.IGNORECASE)
# functions that models call with `training=self.training` in the place of a Dropout layer
_RANDOM_FUNCTIONS = (
    "dropout",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
    "scaled_dot_product_attention",
)


class Quiet:
    """What holds while a model is probed; `rewind` before every forward makes all of them draw the same numbers."""

    def __init__(self, random_state: RandomState, state: ModelState) -> None:
        self._random = random_state
        self._state = state

    def rewind(self) -> None:
        """Random states and the model's own state as they were at the start."""
        self._random.restore()
        self._state.restore()

    def moved_state(self) -> list[str]:
        """Names of the state that the last forward changed."""
        return [slot.name for slot in self._state.moved()]


@contextlib.contextmanager
def quiet(model: paddle.nn.Layer) -> Iterator[Quiet]:
    """Train mode with dropout and BatchNorm layers alone in eval, no gradients, auto_cast off; all put back after.

    Buffers and random states after the block are those before it, bit for bit.
    """
    state = Quiet(RandomState(), ModelState(list(state_slots(model))))
    still = [layer for layer in model.sublayers(include_self=True) if layer.training and _is_still(layer)]
    hook = model.register_forward_pre_hook(_fp32_forward(model))
    try:
        for layer in still:
            layer.training = False
        with paddle.no_grad(), autocast_off(), _functions_without_dropout():
            yield state
    finally:
        hook.remove()
        for layer in still:
            layer.training = True
        state.rewind()


def half_precision_weights(model: paddle.nn.Layer) -> bool:
    """Whether any weight is fp16 or bf16 (AMP O2), so that losses agree to that precision only."""
    return any(parameter.dtype in HALF for parameter in model.parameters())


def _is_still(layer: paddle.nn.Layer) -> bool:
    if isinstance(layer, (_BatchNormBase, paddle.nn.BatchNorm)):
        return True
    return bool(_DROPS.search(type(layer).__name__)) and not layer.parameters()


def _fp32_forward(model: paddle.nn.Layer) -> Callable[..., None]:
    """A forward hook that leaves an auto_cast which the caller has opened: fp32 weights can be compared in fp32.

    The level comes back where that auto_cast ends.
    """
    weights_are_fp32 = not half_precision_weights(model)

    def leave_autocast(layer: paddle.nn.Layer, inputs: Any) -> None:
        if weights_are_fp32:
            _dygraph_tracer()._amp_level = core.AmpLevel.O0

    return leave_autocast


@contextlib.contextmanager
def _functions_without_dropout() -> Iterator[None]:
    functional = paddle.nn.functional
    before = {name: getattr(functional, name) for name in _RANDOM_FUNCTIONS if hasattr(functional, name)}
    try:
        for name, function in before.items():
            setattr(functional, name, _never_training(function))
        yield
    finally:
        for name, function in before.items():
            setattr(functional, name, function)


def _never_training(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def without_dropout(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["training"] = False
        return function(*bound.args, **bound.kwargs)

    return without_dropout
