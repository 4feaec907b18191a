"""What a unit's layers hold besides tensors' contents: attributes, their containers, and which tensors they refer to.

The training flag is one such attribute, so the second pass runs under the flags of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle

from paddle_memcallbacks.recompute.nested import CONTAINERS, OnTensor, rebuild

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

Content = list[tuple[dict[str, Any], dict[str, Any]]]


class KeptAttributes:
    """The attributes of some layers before a first pass, to be given to them for the second one.

    Containers are kept as copies, and each second pass works on copies of these: what the layers and others hold is not
    touched. Tensors that a graph made are kept as leaves: a state that waits for backward must not hold the graph of
    the call before, which holds the state before that. Objects of other classes are kept by reference: what a forward
    changes inside those is not seen.
    """

    def __init__(self, layers: Sequence[paddle.nn.Layer]) -> None:
        self._content = _copied(_dicts_of(layers), _cut_from_graph)

    def put_back(self) -> None:
        """Give the layers the attributes from before the first pass."""
        _restore(_copied([(live, content) for live, content in self._content], _as_it_is))


class AttributesNow:
    """The attributes of some layers at this moment, to be put back as the very same objects."""

    def __init__(self, layers: Sequence[paddle.nn.Layer]) -> None:
        self._content: Content = [(live, dict(content)) for live, content in _dicts_of(layers)]

    def put_back(self) -> None:
        """Make the layers' attributes what they were."""
        _restore(self._content)


def _dicts_of(layers: Sequence[paddle.nn.Layer]) -> Content:
    found = []
    for layer in layers:
        own = layer.__dict__
        found.append((own, own))
        found.extend((own[key], own[key]) for key in _TENSOR_DICTS)
    return found


def _copied(dicts: Content, on_tensor: OnTensor) -> Content:
    memo: dict[int, Any] = {}
    return [
        (
            live,
            {
                key: rebuild(value, on_tensor, memo) if _is_changeable(key, value) else value
                for key, value in content.items()
            },
        )
        for live, content in dicts
    ]


def _is_changeable(key: str, value: Any) -> bool:
    return (type(value) in CONTAINERS and key not in _PADDLE_OWN) or isinstance(value, paddle.Tensor)


def _restore(contents: Content) -> None:
    for live, content in contents:
        for key in [key for key in live if key not in content]:
            del live[key]
        for key, value in content.items():
            if key not in live or live[key] is not value:
                live[key] = value
        if any(one != other for one, other in zip(live, content, strict=True)):
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
