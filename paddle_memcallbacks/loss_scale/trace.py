"""Hooks that watch one step for the layer where the first inf or NaN arose. Flags stay on the device until the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import paddle

from paddle_memcallbacks.alerts import warn_once
from paddle_memcallbacks.loss_scale.locate import NEAR_OVERFLOW, Event, GradientEvent, Trace
from paddle_memcallbacks.loss_scale.nonfinite import bare, without_autocast


def _never() -> bool:
    return False


def _second_pass() -> Callable[[], bool]:
    """Recompute runs a unit's hooks a second time in backward; those events are no news."""
    try:
        from paddle_memcallbacks.recompute import in_second_pass
    except ImportError:
        return _never
    return in_second_pass


class FirstNonFinite:
    """Forward hooks on every layer and gradient hooks on their outputs, for the steps between `attach` and `finish`.

    Only forwards in train mode count. A failing hook ends the watching with one warning, never the training.
    """

    def __init__(self, model: paddle.nn.Layer) -> None:
        self._model = bare(model)
        self._handles: list[Any] = []
        self._in_second_pass: Callable[[], bool] = _never
        self._clear()

    @property
    def active(self) -> bool:
        return bool(self._handles)

    def attach(self) -> None:
        """Put the hooks in; they see what runs from now on."""
        if self.active:
            return
        self._clear()
        self._in_second_pass = _second_pass()
        for name, layer in self._model.named_sublayers(include_self=True):
            self._types[name] = type(layer).__name__
            after = layer.register_forward_post_hook(self._guarded(self._after, name))
            before = _register_pre_hook(layer, self._last_in_line(layer, after, self._guarded(self._before, name)))
            self._handles += [before, after]

    def remove(self) -> None:
        """Take the hooks out; what was seen is kept for `finish`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def discard(self) -> None:
        """Take the hooks out and forget what they saw, unread."""
        self.remove()
        self._clear()

    def finish(self) -> Trace:
        """Take the hooks out and read what they saw: one synchronisation."""
        self.remove()
        finite = _read(self._flags)
        largest = _read(list(self._largest.values()))
        near = [(name, float(size)) for name, size in zip(self._largest, largest, strict=True) if size > NEAR_OVERFLOW]
        trace = Trace(
            events=tuple(
                Event(layer, kind, bool(finite[flag]), parent, tensors)
                for layer, kind, flag, parent, tensors in self._events
            ),
            gradients=tuple(
                GradientEvent(layer, bool(finite[flag]), tensor) for layer, flag, tensor in self._gradients
            ),
            types=dict(self._types),
            near_overflow=tuple(sorted(near, key=lambda pair: -pair[1])),
        )
        self._clear()
        return trace

    def _clear(self) -> None:
        self._flags: list[paddle.Tensor] = []
        self._events: list[tuple[str, Any, int, str | None, tuple[str, ...]]] = []
        self._gradients: list[tuple[str, int, str]] = []
        self._largest: dict[str, paddle.Tensor] = {}
        self._types: dict[str, str] = {}
        self._running: list[str] = []

    def _last_in_line(self, layer: Any, after: Any, hook: Callable[..., None]) -> Callable[..., None]:
        """``hook``, which first moves our post hook behind those that came later: they may change the output."""

        def before(*seen: Any) -> None:
            if self.active:
                layer._forward_post_hooks.move_to_end(after._hook_id)
            hook(*seen)

        return before

    def _guarded(self, hook: Callable[[str, Any], None], name: str) -> Callable[..., None]:
        def guarded(layer: Any, *seen: Any) -> None:
            if not self.active or not self._model.training or self._in_second_pass():
                return
            try:
                with paddle.no_grad(), without_autocast():
                    # a post hook gets (inputs, outputs), a pre hook (inputs,) or (inputs, kwargs)
                    hook(name, seen)
            except Exception as error:
                self.remove()
                warn_once("first_nonfinite_hook", f"the search for the first non-finite layer ended early: {error}")

        return guarded

    def _before(self, name: str, seen: tuple[Any, ...]) -> None:
        tensors = list(_tensors(seen))
        parent = self._running[-1] if self._running and name else None
        self._running.append(name)
        if tensors:
            # -inf is what an attention mask is made of
            flags = [paddle.logical_or(paddle.isfinite(x), x == float("-inf")).all() for x in tensors]
            self._add_event(name, "input", flags, parent, tensors)

    def _after(self, name: str, seen: tuple[Any, ...]) -> None:
        while self._running and self._running.pop() != name:
            pass
        tensors = list(_tensors(seen[1]))
        if not tensors:
            return
        parent = self._running[-1] if self._running else None
        self._add_event(name, "output", [paddle.isfinite(x).all() for x in tensors], parent, tensors)
        for tensor in tensors:
            if tensor.dtype == paddle.float16:
                largest = _largest_magnitude(tensor)
                before = self._largest.get(name)
                self._largest[name] = largest if before is None else paddle.maximum(before, largest)
            if not tensor.stop_gradient:
                tensor.register_hook(self._gradient_hook(name, tensor.name))

    def _add_event(
        self, name: str, kind: str, flags: list[paddle.Tensor], parent: str | None, tensors: list[paddle.Tensor]
    ) -> None:
        flag = flags[0] if len(flags) == 1 else paddle.stack(flags).all()
        self._events.append((name, kind, len(self._flags), parent, tuple(x.name for x in tensors)))
        self._flags.append(flag)

    def _gradient_hook(self, name: str, tensor: str) -> Callable[[paddle.Tensor], None]:
        def on_gradient(gradient: paddle.Tensor) -> None:
            if not self.active:
                return
            with paddle.no_grad(), without_autocast():
                self._gradients.append((name, len(self._flags), tensor))
                self._flags.append(paddle.isfinite(gradient).all())

        return on_gradient


def _register_pre_hook(layer: paddle.nn.Layer, hook: Callable[..., None]) -> Any:
    try:
        return layer.register_forward_pre_hook(hook, with_kwargs=True)
    except TypeError:
        # paddle 2.6 shows a pre-hook the positional inputs only
        return layer.register_forward_pre_hook(hook)


def _tensors(value: Any) -> Iterator[paddle.Tensor]:
    """The floating-point tensors in nested tuples, lists and mappings."""
    if isinstance(value, paddle.Tensor):
        if paddle.is_floating_point(value) and value._is_initialized() and value.size:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "values") and callable(value.values):
        for item in value.values():
            yield from _tensors(item)


def _largest_magnitude(tensor: paddle.Tensor) -> paddle.Tensor:
    # the CPU has no float16 kernels for these
    wide = tensor.astype("float32") if tensor.place.is_cpu_place() else tensor
    return paddle.maximum(wide.max(), -wide.min()).astype("float32")


def _read(values: list[paddle.Tensor]) -> list[Any]:
    if not values:
        return []
    try:
        return paddle.stack(values).numpy().tolist()
    except Exception:
        # parts of the model on different devices
        return [value.item() for value in values]
