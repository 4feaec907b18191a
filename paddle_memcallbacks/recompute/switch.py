"""Recompute on and off: a unit's class is swapped for one that runs its forward as a recomputed unit."""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import paddle

from paddle_memcallbacks.recompute.backward import hold_entries, release_entries
from paddle_memcallbacks.recompute.errors import RecomputeError, unit_error
from paddle_memcallbacks.recompute.names import is_inside, nearest_names
from paddle_memcallbacks.recompute.passes import may_recompute, run_unit
from paddle_memcallbacks.recompute.tensors import Learned, hooks_keep_storage
from paddle_memcallbacks.recompute.units import describe_layers, is_called

_MARK = "_memcallbacks_unit"
_PLAIN = "_memcallbacks_plain_class"
# what toolkits call their own recompute: PaddleNLP, and PaddleDetection's backbones
_OWN_RECOMPUTE = ("enable_recompute", "use_recompute", "use_checkpoint")


@dataclass
class _Mark:
    """What a switched layer carries; a deepcopy of the layer gets its own."""

    name: str
    instance_forward: Any = None
    calls: int = 0
    learned: Learned = field(default_factory=Learned)


class RecomputeSwitch:
    """Recompute for some layers of one model: a context manager, or `apply` and `remove`.

    State dict keys, parameter names, ``isinstance`` and the class's name stay as they are. A deepcopy made while it is
    on is recomputed too, with its own weights; `strip` makes it plain.

    Attributes:
        names: the units' names.
        active: whether recompute is on.
    """

    def __init__(self, model: paddle.nn.Layer, names: Sequence[str]) -> None:
        self._model = weakref.ref(model)
        self._units = _resolve(model, names)
        self._on: list[paddle.nn.Layer] = []
        self.active = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._units)

    def apply(self) -> RecomputeSwitch:
        """Turn recompute on. Does nothing where it is on.

        Raises:
            RecomputeError: another switch holds one of the layers, or a layer has a recompute of its own turned on.
        """
        if self.active:
            return self
        self._check(self._units)
        hooks_keep_storage()
        hold_entries()
        self.active = True
        for name, layer in self._units.items():
            _swap(layer, name)
            self._on.append(layer)
        return self

    def remove(self) -> None:
        """Turn recompute off: every layer has its own class again. Graphs made before still recompute."""
        if not self.active:
            return
        for layer in self._on:
            _unswap(layer)
        self._on = []
        self.active = False
        release_entries()

    def set(self, names: Sequence[str]) -> None:
        """Change the units; on stays on, and layers in both sets keep what is known of them."""
        model = self._model()
        if model is None:
            raise RecomputeError("recompute: the model is gone")
        units = _resolve(model, names)
        if self.active:
            self._check(units)
            wanted = {id(layer) for layer in units.values()}
            held = {id(layer) for layer in self._on}
            for layer in self._on:
                if id(layer) not in wanted:
                    _unswap(layer)
            self._on = [layer for layer in self._on if id(layer) in wanted]
            for name, layer in units.items():
                if id(layer) not in held:
                    _swap(layer, name)
                    self._on.append(layer)
        self._units = units

    def idle_units(self) -> tuple[str, ...]:
        """Units that have not run since they were switched on: their forward is never called, so they save nothing."""
        return tuple(
            name for name, layer in self._units.items() if _MARK in layer.__dict__ and not layer.__dict__[_MARK].calls
        )

    def __enter__(self) -> RecomputeSwitch:
        return self.apply()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _check(self, units: dict[str, paddle.nn.Layer]) -> None:
        """Refuse before anything is changed."""
        mine = {id(layer) for layer in self._on}
        model = self._model()
        for name, layer in units.items():
            if type(layer.__dict__.get("forward")).__name__.endswith("StaticFunction"):
                raise _refused(name, layer, "its forward was made static (paddle.jit)", "leave it out of recompute")
            if id(layer) not in mine and _MARK in layer.__dict__:
                raise _refused(name, layer, "another switch recomputes it already", "remove that one first")
            try:
                _recomputed_class(type(layer))
            except TypeError as error:
                raise _refused(name, layer, f"its class cannot be extended ({error})", "leave it out") from error
            own = _own_recompute(model, name, layer)
            if own is not None:
                raise _refused(
                    name,
                    layer,
                    f"the model recomputes by itself ({own} is on), and recompute cannot be nested",
                    "turn that off",
                )


def recompute_units(model: paddle.nn.Layer, names: Sequence[str]) -> RecomputeSwitch:
    """A switch that recomputes the named layers of ``model``; ``with`` it, or call ``apply`` and ``remove``.

    Args:
        names: dotted names of layers, e.g. from `find_units` or `select_units`. Between forward and backward a unit
            holds its inputs alone; it is run a second time in backward.

    Raises:
        RecomputeError: a name fits no layer, lies in another one's layer, or is of a container that is never called.
    """
    return RecomputeSwitch(model, names)


def strip(model: paddle.nn.Layer) -> tuple[str, ...]:
    """Make every switched layer of ``model`` plain, whoever switched it (a deepcopy has no switch). Their names."""
    found = [(name, layer) for name, layer in model.named_sublayers(include_self=True) if _MARK in layer.__dict__]
    for _, layer in found:
        _unswap(layer)
    return tuple(name for name, _ in found)


def _resolve(model: paddle.nn.Layer, names: Sequence[str]) -> dict[str, paddle.nn.Layer]:
    if isinstance(names, str):
        names = (names,)
    units: dict[str, paddle.nn.Layer] = {}
    for name in names:
        layer = _find(model, name)
        if layer is None or not name:
            near = nearest_names((info for info in describe_layers(model) if info.name), name)
            raise RecomputeError(
                f"recompute: '{name}' is no layer of {type(model).__name__}"
                + (f" -> did you mean {' or '.join(repr(other) for other in near)}?" if near else "")
            )
        if not is_called(layer):
            raise _refused(name, layer, "it is a container whose forward is never called", "name the layers in it")
        if not any(layer is other for other in units.values()):
            units[name] = layer
    for name in units:
        outer = next((other for other in units if is_inside(name, other)), None)
        if outer is not None:
            raise RecomputeError(
                f"recompute: '{name}' lies inside '{outer}'; units cannot be nested -> name one of them"
            )
    return units


def _find(model: paddle.nn.Layer, name: str) -> paddle.nn.Layer | None:
    layer: Any = model
    for part in name.split("."):
        layer = layer._sub_layers.get(part)
        if layer is None:
            return None
    return layer


def _own_recompute(model: paddle.nn.Layer | None, name: str, unit: paddle.nn.Layer) -> str | None:
    """The attribute by which the unit, a layer in it or a layer around it recomputes by itself; None if none does."""
    around: list[tuple[str, Any]] = []
    layer: Any = model
    for index, part in enumerate(name.split(".")):
        around.append((".".join(name.split(".")[:index]), layer))
        layer = layer._sub_layers[part] if layer is not None else None
    inside = [(f"{name}.{path}" if path else name, inner) for path, inner in unit.named_sublayers(include_self=True)]
    for path, other in (*around, *inside):
        for key in _OWN_RECOMPUTE:
            if other is not None and other.__dict__.get(key) is True:
                return f"{path}.{key}" if path else key
    return None


def _refused(name: str, layer: paddle.nn.Layer, what: str, remedy: str) -> RecomputeError:
    return unit_error(name, type(layer).__name__, what, remedy)


def _swap(layer: paddle.nn.Layer, name: str) -> None:
    layer.__class__ = _recomputed_class(type(layer))
    # an attribute of the instance would hide the class's forward
    layer.__dict__[_MARK] = _Mark(name, layer.__dict__.pop("forward", None))


def _unswap(layer: paddle.nn.Layer) -> None:
    mark = layer.__dict__.pop(_MARK, None)
    plain = getattr(type(layer), _PLAIN, None)
    if plain is not None:
        layer.__class__ = plain
    if mark is not None and mark.instance_forward is not None:
        layer.__dict__.setdefault("forward", mark.instance_forward)


_classes: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()
_classes_lock = threading.Lock()


def _recomputed_class(plain: type) -> type:
    with _classes_lock:
        made = _classes.get(plain)
        recomputed = made() if made is not None else None
        if recomputed is None:
            recomputed = _make_class(plain)
            # a strong reference from plain's value back to plain would keep both for ever
            _classes[plain] = weakref.ref(recomputed)
        return recomputed


def _make_class(plain: Any) -> type:
    # keeps forward's signature: toolkits read the arguments' names from it
    @functools.wraps(plain.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark = self.__dict__.get(_MARK)
        run = functools.partial(plain.forward, self)
        if mark is None:
            return run(*args, **kwargs)
        if mark.instance_forward is not None:
            run = mark.instance_forward
        mark.calls += 1
        if not may_recompute():
            return run(*args, **kwargs)
        return run_unit(self, mark.name, mark.learned, run, args, kwargs)

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        own = getattr(plain, "__deepcopy__", None)
        if own is not None:
            other = own(self, memo)
            other.__dict__.setdefault(_MARK, copy.deepcopy(self.__dict__.get(_MARK), memo))
        else:
            other = plain.__new__(plain)
            memo[id(self)] = other
            other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        other.__class__ = type(self)
        return other

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        # a pickle finds classes by name, which is the plain one's
        return (_rebuild, (plain, _plain_attributes(self.__dict__)))

    body = {
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "forward": forward,
        "__deepcopy__": __deepcopy__,
        "__reduce_ex__": __reduce_ex__,
        _PLAIN: plain,
    }
    metaclass: Any = type(plain)
    return metaclass(plain.__name__, (plain,), body)


def _rebuild(plain: Any, attributes: dict[str, Any]) -> Any:
    layer = plain.__new__(plain)
    layer.__dict__.update(attributes)
    return layer


def _plain_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in attributes.items() if name != _MARK}
    mark = attributes.get(_MARK)
    if mark is not None and mark.instance_forward is not None:
        plain["forward"] = mark.instance_forward
    return plain
