"""A step's start: random states, gradients and the model's own state, to go back to when a try fails."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle.base import core
from paddle.base.framework import _dygraph_tracer

# gradients that are looked at to see whether an earlier step left something in them
_SAMPLED_GRADIENTS = 3
_SMALL_ELEMENTS = 2**20
# elements up to which a piece of state is copied without a second thought
_SMALL_STATE = 2**16


class GradMode:
    """Whether gradients are recorded. An error inside a saved-tensor hook leaves Paddle's tracer with them off.

    That is where memory runs out in the second pass of a recomputed unit: every later forward would train nothing,
    without a word.
    """

    def __init__(self) -> None:
        self._on = bool(_dygraph_tracer()._has_grad)

    def restore(self) -> None:
        """Set it back."""
        _dygraph_tracer()._has_grad = self._on


class RandomState:
    """Every generator that a forward may draw from: paddle's (device, CPU, tensor parallel), numpy's, Python's."""

    def __init__(self) -> None:
        self._device = paddle.get_rng_state()
        # paddle.set_rng_state takes no device name on 2.6
        self._cpu = core.default_cpu_generator().get_state()
        self._numpy = np.random.get_state()
        self._python = random.getstate()
        tracker = _parallel_tracker()
        self._parallel = tracker.get_states_tracker() if tracker is not None and tracker.states_ else None

    def restore(self) -> None:
        """Set all of them back. May be called any number of times."""
        paddle.set_rng_state(self._device)
        core.default_cpu_generator().set_state(self._cpu)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._parallel is not None:
            _parallel_tracker().set_states_tracker(self._parallel)


@dataclass(frozen=True)
class _Slot:
    """Where a layer keeps a piece of state: ``layer._buffers[key]`` or ``layer._parameters[key]``."""

    name: str
    layer: paddle.nn.Layer
    store: str
    key: str

    @property
    def tensor(self) -> Any:
        return getattr(self.layer, self.store).get(self.key)


class ModelState:
    """Copies of a model's own state: buffers, and small parameters without a gradient (BatchNorm's statistics).

    Kernels write running statistics without counting an inplace version, so values are kept, not versions.
    """

    def __init__(self, slots: Sequence[_Slot]) -> None:
        with paddle.no_grad():
            self._kept = [(slot, slot.tensor, slot.tensor.clone()) for slot in slots if _holds_data(slot.tensor)]

    def restore(self) -> None:
        """Put every value back, into the tensors that held it."""
        with paddle.no_grad():
            for slot, tensor, value in self._kept:
                if slot.tensor is not tensor:
                    getattr(slot.layer, slot.store)[slot.key] = tensor
                paddle.assign(value, output=tensor)

    def moved(self) -> list[_Slot]:
        """The slots whose value is no longer the kept one. Waits for the device."""
        return [slot for slot, _, value in self._kept if not _same(slot.tensor, value)]


class StepSnapshot:
    """What a step began with: random states, the model's own state, and that its gradients were empty.

    Gradients are not copied (that would cost their memory in every step): `restore` empties them.

    Args:
        model: the bare model.
        parameters: those whose gradients belong to the step; None: the model's.
        state: copies of the model's state where they were made already.
    """

    def __init__(
        self,
        model: paddle.nn.Layer,
        parameters: Sequence[paddle.Tensor] | None = None,
        state: ModelState | None = None,
    ) -> None:
        trained = list(model.parameters() if parameters is None else parameters)
        self._grad_mode = GradMode()
        self._random = RandomState()
        self._state = ModelState(list(state_slots(model))) if state is None else state
        self._parameters = [(parameter, *_gradient_kinds(parameter)) for parameter in trained]
        with paddle.no_grad():
            # read only if a replay comes to it: nothing waits for the device here
            self._leftovers = [(gradient != 0).any() for gradient in _samples(trained)]

    def gradients_were_empty(self) -> bool:
        """Whether the step began with no gradients, or with zeros. Waits for the device."""
        return not any(bool(leftover) for leftover in self._leftovers)

    def restore(self) -> None:
        """Random states, the model's state, and empty gradients (zeros where there were some). Any number of times."""
        self._grad_mode.restore()
        for parameter, had_gradient, had_main_gradient in self._parameters:
            # set_to_zero; by keyword Paddle ignores it
            parameter.clear_gradient(had_gradient)
            main = getattr(parameter, "main_grad", None)
            if main is not None:
                parameter.main_grad = paddle.zeros_like(main) if had_main_gradient else None
        self._state.restore()
        self._random.restore()


class StateKeeper:
    """Knows which large state of a model never moves (masks, rotary tables), so that it is not copied in every step.

    What is small is always copied: ``set_value`` and many kernels change state without counting an inplace version.
    """

    def __init__(self, model: paddle.nn.Layer) -> None:
        self._slots = list(state_slots(model))
        self._looked = False
        self._still: dict[int, int] = {}

    def keep(self) -> ModelState:
        """Copies of what may move in this step."""
        return ModelState([slot for index, slot in enumerate(self._slots) if self._may_move(index, slot)])

    def learn(self, kept: ModelState) -> None:
        """After the first finished step: large state that has not moved is only watched. Waits for the device."""
        if self._looked:
            return
        self._looked = True
        moved = {id(slot) for slot in kept.moved()}
        for index, slot in enumerate(self._slots):
            tensor = slot.tensor
            if _holds_data(tensor) and tensor.size > _SMALL_STATE and id(slot) not in moved:
                self._still[index] = tensor.inplace_version

    def _may_move(self, index: int, slot: _Slot) -> bool:
        version = self._still.get(index)
        if version is None:
            return True
        if _holds_data(slot.tensor) and slot.tensor.inplace_version == version:
            return False
        del self._still[index]
        return True


def state_slots(model: paddle.nn.Layer) -> Iterable[_Slot]:
    """Buffers, and parameters of at most one axis without gradient; larger frozen weights do not move in forward."""
    seen: set[int] = set()
    for prefix, layer in model.named_sublayers(include_self=True):
        for store in ("_buffers", "_parameters"):
            for key, tensor in getattr(layer, store).items():
                is_state = store == "_buffers" or (tensor is not None and tensor.stop_gradient and tensor.ndim <= 1)
                if tensor is not None and is_state and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield _Slot(f"{prefix}.{key}" if prefix else key, layer, store, key)


def gradient_of(parameter: paddle.Tensor) -> Any:
    """The gradient where the run keeps it: fp32 ``main_grad`` where there is one, else ``grad``; None without."""
    main = getattr(parameter, "main_grad", None)
    return main if main is not None else parameter.grad


def _samples(parameters: Sequence[paddle.Tensor]) -> list[paddle.Tensor]:
    """A few gradients to look at; small ones, where the look costs nothing."""
    held = [gradient for gradient in map(gradient_of, parameters) if gradient is not None and gradient.is_dense()]
    small = [gradient for gradient in held if gradient.size <= _SMALL_ELEMENTS] or held
    return small[:: max(1, len(small) // _SAMPLED_GRADIENTS)][:_SAMPLED_GRADIENTS]


def _gradient_kinds(parameter: paddle.Tensor) -> tuple[bool, bool]:
    return parameter.grad is not None, getattr(parameter, "main_grad", None) is not None


def _holds_data(tensor: Any) -> bool:
    return tensor is not None and tensor._is_initialized()


def _same(tensor: Any, value: paddle.Tensor) -> bool:
    return _holds_data(tensor) and list(tensor.shape) == list(value.shape) and bool((tensor == value).all())


def _parallel_tracker() -> Any:
    """Tensor parallelism's named generators; None where this Paddle has none."""
    try:
        from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker
    except ImportError:
        return None
    return get_rng_state_tracker()
