"""One call of a unit: the first pass keeps no activations, the second makes them again when backward asks.

This is paddle's own hook variant (`recompute(use_reentrant=False)`), with the state of the unit put back for the second
pass, several second passes allowed (retain_graph), and every way in which it could be wrong refused by name.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import paddle

from paddle_memcallbacks.recompute.amp_state import AmpState
from paddle_memcallbacks.recompute.attributes import AttributesNow, KeptAttributes
from paddle_memcallbacks.recompute.backward import done, moved_on, remember_error
from paddle_memcallbacks.recompute.errors import RecomputeError, unit_error
from paddle_memcallbacks.recompute.inputs import KeptInputs
from paddle_memcallbacks.recompute.rng import RngState
from paddle_memcallbacks.recompute.tensors import Learned, TensorState

_NESTED_HOOKS = "only one pair of hooks"


class _Here(threading.local):
    inside_unit: bool = False
    second_pass: bool = False


_here = _Here()


def in_second_pass() -> bool:
    """Whether a unit is being run again in backward: forward hooks of the layers in it fire a second time then."""
    return _here.second_pass


def may_recompute() -> bool:
    """False where a unit must run plainly: no graph is being made, or it runs inside another unit."""
    return not _here.inside_unit and paddle.in_dynamic_mode() and paddle.is_grad_enabled()


def run_unit(
    layer: paddle.nn.Layer,
    name: str,
    learned: Learned,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run ``forward(*args, **kwargs)`` as a recomputed unit and return its outputs.

    Raises:
        RecomputeError: the forward changed an input or a weight in place, or uses saved-tensor hooks of its own.
    """
    return _Unit(layer, name, learned, forward, KeptInputs(args, kwargs)).first_pass(args, kwargs)


class _Saved:
    """Stands in the graph for one saved tensor; lives as long as the graph needs it."""

    __slots__ = ("__weakref__", "dtype", "shape", "tensor")

    def __init__(self, tensor: paddle.Tensor | None) -> None:
        self.shape = None if tensor is None else tensor.shape
        self.dtype = None if tensor is None else tensor.dtype
        self.tensor: Any = _MISSING

    def fits(self, tensor: paddle.Tensor | None) -> bool:
        if tensor is None:
            return self.shape is None
        return self.shape == tensor.shape and self.dtype == tensor.dtype


class _Missing:
    pass


_MISSING = _Missing()


@dataclass
class _Kept:
    """All that a unit keeps between its passes."""

    inputs: KeptInputs
    attributes: KeptAttributes
    tensors: TensorState
    rng: RngState
    amp: AmpState


class _Unit:
    def __init__(
        self,
        layer: paddle.nn.Layer,
        name: str,
        learned: Learned,
        forward: Callable[..., Any],
        inputs: KeptInputs,
    ) -> None:
        self._layer = layer
        self._name = name
        self._forward = forward
        layers = layers_of(layer)
        self._kept: _Kept | None = _Kept(
            inputs, KeptAttributes(layers), TensorState(layers, learned), RngState.now(), AmpState.now()
        )
        self._saved: list[weakref.ref[_Saved]] = []
        self._waiting = 0
        self._first_pass_done = False

    def first_pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kept = self._must_keep()
        with self._hooks(self._pack, self._unpack), _marked(second_pass=False):
            outputs = self._forward(*args, **kwargs)
        changed = kept.inputs.changed()
        if changed is not None:
            raise self._error(
                f"its forward changes its input in place ({changed}), so the second pass would begin from other values",
                "use the operation that makes a new tensor, or leave this layer out of recompute",
            )
        moved = kept.tensors.settle()
        if moved is not None:
            raise self._error(
                f"its forward changes {self._tensor_name(moved)} in place, which is trained or too large to be copied "
                "unasked",
                "leave this layer out of recompute"
                if not moved.stop_gradient
                else "run the step again: from now on it is copied at every call",
            )
        self._first_pass_done = True
        return outputs

    def _pack(self, tensor: paddle.Tensor | None) -> _Saved:
        saved = _Saved(tensor)
        self._saved.append(weakref.ref(saved))
        return saved

    def _unpack(self, saved: _Saved) -> paddle.Tensor | None:
        if saved.tensor is _MISSING:
            try:
                kept = self._must_keep()
                moved_on(to=self)
                self._second_pass(kept)
            except BaseException as error:
                # paddle leaves gradients off when a hook raises, and every later backward would do nothing
                paddle.framework._dygraph_tracer()._has_grad = True
                remember_error(error)
                raise
        # given away: what backward has used is free again
        tensor, saved.tensor = saved.tensor, _MISSING
        self._waiting -= 1
        if self._waiting == 0:
            done(self)
        return tensor

    def let_go(self) -> None:
        """Drop what was kept for the second pass: backward has passed, and the graph is not retained."""
        self._kept = None

    def _must_keep(self) -> _Kept:
        if self._kept is None:
            raise self._error(
                "its graph has been let go by an earlier backward", "keep it with backward(retain_graph=True)"
            )
        return self._kept

    def _second_pass(self, kept: _Kept) -> None:
        self._refuse_what_moved(kept)
        count = 0
        misfit = None

        def refill(tensor: paddle.Tensor | None) -> None:
            nonlocal count, misfit
            saved = self._saved[count]() if count < len(self._saved) else None
            count += 1
            if saved is None or saved.tensor is not _MISSING:
                return
            if not saved.fits(tensor):
                misfit = misfit or f"{saved.dtype} {saved.shape}, then {_described(tensor)}"
                return
            saved.tensor = None if tensor is None else kept.tensors.without_graph(tensor)
            self._waiting += 1

        args, kwargs = kept.inputs.again()
        with (
            self._as_before_first_pass(kept),
            _marked(second_pass=True),
            paddle.set_grad_enabled(True),
            kept.amp.put_back(),
            self._hooks(refill, _refuse_unpack),
        ):
            self._forward(*args, **kwargs)
        if count != len(self._saved) or misfit is not None:
            why = misfit or f"{len(self._saved)} tensors saved in the first pass, {count} in the second"
            raise self._error(
                f"its second pass did not do what the first did ({why})",
                "its forward depends on something outside the layer (a global, a cache); leave it out of recompute",
            )

    def _refuse_what_moved(self, kept: _Kept) -> None:
        if not self._first_pass_done:
            raise self._error(
                "its forward takes gradients of what it has just computed", "leave this layer out of recompute"
            )
        changed = kept.inputs.changed()
        if changed is not None:
            raise self._error(
                f"its input ({changed}) was changed in place between forward and backward",
                "use the operation that makes a new tensor, or leave this layer out of recompute",
            )
        moved = kept.tensors.moved()
        if moved is not None:
            raise self._error(
                f"{self._tensor_name(moved)} was changed in place between forward and backward",
                "change it after backward, or leave this layer out of recompute",
            )

    @contextmanager
    def _as_before_first_pass(self, kept: _Kept) -> Iterator[None]:
        """The unit's state and the random numbers of the first pass; today's after it."""
        rng = RngState.now()
        attributes = AttributesNow(layers_of(self._layer))
        kept.attributes.put_back()
        undo_tensors = kept.tensors.put_back()
        kept.rng.put_back()
        try:
            yield
        finally:
            rng.put_back()
            undo_tensors()
            attributes.put_back()

    @contextmanager
    def _hooks(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> Iterator[None]:
        try:
            with paddle.autograd.saved_tensors_hooks(pack, unpack):
                yield
        except ValueError as error:
            if _NESTED_HOOKS not in str(error):
                raise
            raise self._error(
                "it uses recompute or saved-tensor hooks of its own, or runs inside some, and paddle allows one pair",
                "turn the other one off (enable_recompute, use_checkpoint), or leave this layer out of recompute",
            ) from error

    def _error(self, what: str, remedy: str) -> RecomputeError:
        return unit_error(self._name, type(self._layer).__name__, what, remedy)

    def _tensor_name(self, tensor: paddle.Tensor) -> str:
        for path, layer in self._layer.named_sublayers(include_self=True):
            for tensors in (layer._parameters, layer._buffers):
                for name, own in tensors.items():
                    if own is tensor:
                        return f"'{path}.{name}'" if path else f"'{name}'"
        return "a tensor of its state"


def layers_of(layer: paddle.nn.Layer) -> list[paddle.nn.Layer]:
    """The layer and all inside it, each once."""
    found = {id(layer): layer}
    waiting = [layer]
    while waiting:
        for child in waiting.pop()._sub_layers.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())


@contextmanager
def _marked(second_pass: bool) -> Iterator[None]:
    before = _here.inside_unit, _here.second_pass
    _here.inside_unit, _here.second_pass = True, second_pass
    try:
        yield
    finally:
        _here.inside_unit, _here.second_pass = before


def _refuse_unpack(_: Any) -> None:
    raise RecomputeError("a layer takes gradients inside its own forward; it cannot be a recompute unit")


def _described(tensor: paddle.Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {tensor.shape}"
