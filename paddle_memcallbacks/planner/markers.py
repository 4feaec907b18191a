"""Markers in a running step: where each unit's forward begins and ends and where its backward begins.

At every marker the allocator's current and peak bytes are read and the peak is reset, so that each stretch between two
markers has its own peak.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import paddle

FORWARD_BEGIN = "forward_begin"
FORWARD_END = "forward_end"
BACKWARD_BEGIN = "backward_begin"
STEP_BEGIN = "step_begin"
STEP_END = "step_end"
END = "end"


@dataclass(frozen=True)
class Marker:
    """One point of a step.

    Attributes:
        kind: one of the constants above.
        unit: the unit's name; empty for the step's own markers.
        call: which call of the unit (or of the optimizer) it belongs to, from 0.
        output: which of the call's outputs got its gradient; 0 for other markers.
        inside: the units whose forward runs at this call, outermost first, the unit itself last.
        held_bytes: allocated at the marker.
        peak_bytes: the highest allocation since the marker before.
        seconds: clock.
    """

    kind: str
    unit: str
    call: int
    inside: tuple[str, ...]
    held_bytes: int
    peak_bytes: int
    seconds: float
    output: int = 0

    @property
    def key(self) -> str:
        """The same in every run of the same step."""
        return f"{self.kind} {self.unit} {self.call}" + (f" {self.output}" if self.output else "")


@dataclass(frozen=True)
class Call:
    """One call of one unit: its place in the nest of running calls."""

    unit: str
    index: int


class Recorder:
    """Puts markers around units while it is open; a context manager.

    Args:
        layers: unit name -> layer.
        optimizer: its ``step`` and ``minimize`` are marked too.
        read: current and peak allocated bytes.
        reset: resets the peak.
        second_pass: whether a unit is being run again inside backward; those calls leave no marker.
        synchronize: waits for the device, so that the clock means something.
        watcher: told of each call's inputs and outputs.
    """

    def __init__(
        self,
        layers: dict[str, Any],
        optimizer: Any,
        *,
        read: Callable[[], tuple[int, int]],
        reset: Callable[[], None],
        second_pass: Callable[[], bool],
        synchronize: Callable[[], None],
        watcher: Any = None,
    ) -> None:
        self.markers: list[Marker] = []
        self.stack: list[Call] = []
        self._layers = layers
        self._optimizer = optimizer
        self._read, self._reset = read, reset
        self._second_pass, self._synchronize = second_pass, synchronize
        self._watcher = watcher
        self._calls: dict[str, int] = {}
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Recorder:
        for name, layer in self._layers.items():
            self._undo.append(_register_before(layer, self._before(name)).remove)
            self._undo.append(layer.register_forward_post_hook(self._after(name)).remove)
        for method in ("step", "minimize"):
            self._mark_method(method)
        self._reset()
        return self

    def __exit__(self, *exc: object) -> None:
        self._mark(END, "", 0)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _mark(self, kind: str, unit: str, call: int, inside: tuple[str, ...] = (), output: int = 0) -> None:
        self._synchronize()
        held_bytes, peak_bytes = self._read()
        self.markers.append(Marker(kind, unit, call, inside, held_bytes, peak_bytes, time.perf_counter(), output))
        self._reset()

    def _counts(self) -> bool:
        """Whether a call is part of the step: not a second pass, and not a probe or a teacher that keeps no graph."""
        return paddle.is_grad_enabled() and not self._second_pass()

    def _names(self) -> tuple[str, ...]:
        return tuple(call.unit for call in self.stack)

    def _before(self, name: str) -> Callable[..., None]:
        def hook(layer: Any, inputs: Any, named: Any = None) -> None:
            if not self._counts():
                return
            call = Call(name, self._next(name))
            self.stack.append(call)
            self._mark(FORWARD_BEGIN, name, call.index, self._names())
            if self._watcher is not None:
                self._watcher.inputs(call, (inputs, named or {}))

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(layer: Any, inputs: Any, outputs: Any) -> None:
            if not self._counts():
                return
            # a call that raised left its entry behind
            while self.stack[-1].unit != name:
                self.stack.pop()
            inside = self._names()
            call = self.stack.pop()
            self._mark(FORWARD_END, name, call.index, inside)
            self._hook_outputs(call, inside, outputs)
            if self._watcher is not None:
                self._watcher.outputs(call, outputs)

        return hook

    def _hook_outputs(self, call: Call, inside: tuple[str, ...], outputs: Any) -> None:
        for output, tensor in enumerate(tensors_in(outputs)):
            if not tensor.stop_gradient and not tensor.is_leaf:
                tensor.register_hook(self._first_gradient(call, inside, output))

    def _first_gradient(self, call: Call, inside: tuple[str, ...], output: int) -> Callable[[Any], None]:
        fired: list[bool] = []

        def hook(gradient: Any) -> None:
            if not fired:
                fired.append(True)
                self._mark(BACKWARD_BEGIN, call.unit, call.index, inside, output)

        return hook

    def _mark_method(self, method: str) -> None:
        original = getattr(self._optimizer, method, None)
        if original is None:
            return

        def marked(*args: Any, **kwargs: Any) -> Any:
            if depth:
                return original(*args, **kwargs)
            depth.append(method)
            call = self._next("optimizer")
            self._mark(STEP_BEGIN, "", call)
            try:
                return original(*args, **kwargs)
            finally:
                self._mark(STEP_END, "", call)
                depth.clear()

        depth = self._depth
        self._optimizer.__dict__[method] = marked
        self._undo.append(lambda: self._optimizer.__dict__.pop(method, None))

    @property
    def _depth(self) -> list[str]:
        # minimize may call step: only the outer one is marked
        return self.__dict__.setdefault("_running", [])

    def _next(self, name: str) -> int:
        self._calls[name] = self._calls.get(name, -1) + 1
        return self._calls[name]


def _register_before(layer: Any, hook: Callable[..., None]) -> Any:
    try:
        return layer.register_forward_pre_hook(hook, with_kwargs=True)
    except TypeError:
        # Paddle 3.0: hooks see positional arguments only
        return layer.register_forward_pre_hook(hook)


def tensors_in(value: Any) -> Iterator[Any]:
    """Every tensor in nested containers, dataclass-like outputs and mappings included."""
    if isinstance(value, paddle.Tensor):
        yield value
    elif isinstance(value, dict) or hasattr(value, "items"):
        for _, item in value.items():
            yield from tensors_in(item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:
            yield from tensors_in(item)
