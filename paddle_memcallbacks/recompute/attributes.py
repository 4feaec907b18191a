"""What a unit's layers hold besides tensors' contents: attributes, their containers, and which tensors they refer to.

The training flag is one such attribute, so the second pass runs under the flags of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle

from paddle_memcallbacks.recompute.nested import CONTAINERS, rebuild

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
        "_original_funcs",
        "_state_dict_hooks",
    )
)

Content = list[tuple[dict[str, Any], dict[str, Any]]]


class KeptAttributes:
    """The attributes of some layers before a first pass, to be given to them for the second one.

    Containers are kept as copies, and each second pass works on copies of these: what the layers and others hold is not
    touched. Tensors that a graph made are kept as leaves: a state that waits for backward must not hold the graph of
    the call before, which holds the state before that. Objects of other classes are kept by reference: what a forward
    changes inside those is not seen.
    """

    def __init__(self, layers: Sequence[paddle.nn.Layer]) -> None:
        self._content = _content_of(layers)
        self._changeable: list[tuple[dict[str, Any], str, Any]] = []
        memo: dict[int, Any] = {}
        for live, content in self._content:
            for key, value in live.items():
                if (type(value) in CONTAINERS and key not in _PADDLE_OWN) or (
                    isinstance(value, paddle.Tensor) and not value.is_leaf
                ):
                    content[key] = rebuild(value, _cut_from_graph, memo)
                    self._changeable.append((live, key, content[key]))

    def put_back(self) -> None:
        """Give the layers the attributes from before the first pass."""
        _restore(self._content)
        memo: dict[int, Any] = {}
        for live, key, kept in self._changeable:
            # copies for this pass alone; what is kept stays for a third one
            live[key] = rebuild(kept, _as_it_is, memo)


class AttributesNow:
    """The attributes of some layers at this moment, to be put back as the very same objects."""

    def __init__(self, layers: Sequence[paddle.nn.Layer]) -> None:
        self._content = _content_of(layers)

    def put_back(self) -> None:
        """Make the layers' attributes what they were."""
        _restore(self._content)


def _content_of(layers: Sequence[paddle.nn.Layer]) -> Content:
    found = []
    for layer in layers:
        own = layer.__dict__
        found.append((own, dict(own)))
        found.extend((own[key], dict(own[key])) for key in _TENSOR_DICTS)
    return found


def _restore(contents: Content) -> None:
    for live, content in contents:
        is_reordered = False
        for key in [key for key in live if key not in content]:
            del live[key]
        for key, value in content.items():
            if key not in live:
                is_reordered = True
                live[key] = value
            elif live[key] is not value:
                live[key] = value
        if is_reordered:
            # named_buffers and state_dict go by this order
            live.clear()
            live.update(content)


def _as_it_is(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor


def _cut_from_graph(tensor: paddle.Tensor) -> paddle.Tensor:
    """A leaf on the same storage, with ``stop_gradient`` as before: a forward over it records the same operations."""
    if tensor.is_leaf:
        return tensor
    leaf = tensor.detach()
    leaf.stop_gradient = tensor.stop_gradient
    return leaf
