"""A unit's inputs, kept for the second pass: fresh containers, and the versions of the tensors in them."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from typing import Any

import paddle
from paddle.base.framework import EagerParamBase


class KeptInputs:
    """The arguments of one call.

    The first pass gets the caller's own objects; what is kept are fresh containers, since a forward may pop from a
    dict or append its output to a list. Tensors are kept as leaves on the same storage, so that a hook which the
    forward registers on its input is not registered twice.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._versions: list[tuple[str, paddle.Tensor, int]] = []
        self._args = tuple(self._keep(f"argument {index}", arg) for index, arg in enumerate(args))
        self._kwargs = {name: self._keep(f"argument '{name}'", value) for name, value in kwargs.items()}

    def again(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for one more pass, in containers of their own."""
        return tuple(_fresh(arg) for arg in self._args), {name: _fresh(value) for name, value in self._kwargs.items()}

    def changed(self) -> str | None:
        """Which input was changed in place since the call, or None."""
        for where, tensor, version in self._versions:
            if tensor.inplace_version != version:
                return where
        return None

    def _keep(self, where: str, value: Any) -> Any:
        return rebuild(value, lambda tensor: self._keep_tensor(where, tensor))

    def _keep_tensor(self, where: str, tensor: paddle.Tensor) -> paddle.Tensor:
        self._versions.append((where, tensor, tensor.inplace_version))
        if tensor.stop_gradient or isinstance(tensor, EagerParamBase):
            return tensor
        leaf = tensor.detach()
        leaf.stop_gradient = False
        # the version is shared; watching the leaf does not hold the graph
        self._versions[-1] = (where, leaf, tensor.inplace_version)
        return leaf


def rebuild(value: Any, on_tensor: Callable[[paddle.Tensor], paddle.Tensor]) -> Any:
    """The same nested value in fresh lists, tuples and dicts, each tensor replaced by ``on_tensor(tensor)``.

    A UserDict (batch encodings) is copied; mappings of other classes are passed as they are, their tensors looked at.
    """
    kind = type(value)
    if isinstance(value, paddle.Tensor):
        return on_tensor(value)
    if kind is list:
        return [rebuild(item, on_tensor) for item in value]
    if kind is tuple:
        return tuple(rebuild(item, on_tensor) for item in value)
    if kind in (dict, OrderedDict):
        return kind((key, rebuild(item, on_tensor)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(rebuild(item, on_tensor) for item in value))
    if isinstance(value, Mapping):
        for item in value.values():
            rebuild(item, on_tensor)
        return copy.copy(value) if isinstance(value, UserDict) else value
    return value


def _fresh(value: Any) -> Any:
    return rebuild(value, lambda tensor: tensor)
