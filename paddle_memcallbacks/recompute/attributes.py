"""What a unit's layers hold besides tensors' contents: attributes, which tensors they refer to, and their containers.

The training flag is one such attribute, so the second pass runs under the flags of the first.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle

# containers whose contents a forward may change; of a subclass it is not known how to put contents back
_CHANGEABLE = frozenset((list, dict, OrderedDict, defaultdict, set, deque, np.ndarray))
_MAX_DEPTH = 4
_TENSOR_DICTS = ("_buffers", "_parameters", "_sub_layers")
# what paddle keeps in a layer: hooks and names, which a forward has no business with
_PADDLE_OWN = frozenset(
    (
        *_TENSOR_DICTS,
        "_customized_attrs",
        "_forward_post_hooks",
        "_forward_post_hooks_always_called",
        "_forward_post_hooks_with_kwargs_flag",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs_flag",
        "_loaddict_holder",
        "_non_persistable_buffer_names_set",
        "_op_recorder",
        "_state_dict_hooks",
    )
)


class Attributes:
    """The attributes of some layers at one moment, to the depth that a forward usually changes them.

    Attributes that are objects of other classes are kept by reference: what changes inside those is not seen.

    Args:
        layers: the layers, a unit's own and all inside it.
        cut: keep tensors that a graph made as leaves. A state that waits for backward must not hold the graph of the
            call before, which holds the state before that; a state that is put back at once must be the same objects.
    """

    def __init__(self, layers: Sequence[paddle.nn.Layer], cut: bool) -> None:
        self._kept: list[tuple[Any, Any]] = []
        self._value = _cut_from_graph if cut else _as_it_is
        seen: set[int] = set()
        for layer in layers:
            own = layer.__dict__
            self._kept.append((own, dict(own)))
            for key in _TENSOR_DICTS:
                self._kept.append((own[key], self._mapping(own[key])))
            for key, value in own.items():
                if type(value) in _CHANGEABLE and key not in _PADDLE_OWN:
                    self._keep(value, seen, _MAX_DEPTH)

    def put_back(self) -> None:
        """Make the layers' attributes what they were; what has not changed is not touched."""
        for live, content in self._kept:
            _RESTORE.get(type(live), _restore_mapping)(live, content)

    def _keep(self, value: Any, seen: set[int], depth: int) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        kind = type(value)
        if kind is np.ndarray:
            if value.flags.writeable:
                self._kept.append((value, value.copy()))
            return
        is_mapping = isinstance(value, dict)
        self._kept.append((value, self._mapping(value) if is_mapping else [self._value(item) for item in value]))
        if depth > 1:
            for item in value.values() if is_mapping else value:
                if type(item) in _CHANGEABLE:
                    self._keep(item, seen, depth - 1)

    def _mapping(self, values: dict[Any, Any]) -> dict[Any, Any]:
        return {key: self._value(value) for key, value in values.items()}


def _as_it_is(value: Any) -> Any:
    return value


def _cut_from_graph(value: Any) -> Any:
    """A leaf on the same storage, with ``stop_gradient`` as before: a forward over it records the same operations."""
    if not isinstance(value, paddle.Tensor) or value.is_leaf:
        return value
    cut = value.detach()
    cut.stop_gradient = value.stop_gradient
    return cut


def _restore_mapping(live: dict[Any, Any], content: dict[Any, Any]) -> None:
    if len(live) == len(content) and all(a is b and live[b] is content[b] for a, b in zip(live, content, strict=True)):
        return
    for key in [key for key in live if key not in content]:
        del live[key]
    for key, value in content.items():
        live[key] = value


def _restore_list(live: Any, content: list[Any]) -> None:
    if len(live) != len(content) or any(a is not b for a, b in zip(live, content, strict=True)):
        live.clear()
        live.extend(content)


def _restore_set(live: set[Any], content: list[Any]) -> None:
    live.clear()
    live.update(content)


def _restore_array(live: np.ndarray, content: np.ndarray) -> None:
    live[...] = content


_RESTORE: dict[type, Callable[[Any, Any], None]] = {
    list: _restore_list,
    deque: _restore_list,
    set: _restore_set,
    np.ndarray: _restore_array,
}
