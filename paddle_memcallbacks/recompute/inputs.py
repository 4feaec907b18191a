"""A unit's inputs, kept for the second pass: fresh containers, and the versions of the tensors in them."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.base.framework import EagerParamBase

from paddle_memcallbacks.recompute.nested import rebuild


class KeptInputs:
    """The arguments of one call.

    The first pass gets the caller's own objects; what is kept are fresh containers, since a forward may pop from a
    dict or append its output to a list. Tensors are kept as leaves on the same storage, so that a hook which the
    forward registers on its input is not registered twice.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._versions: list[tuple[str, paddle.Tensor, int]] = []
        memo: dict[int, Any] = {}
        self._args = [self._keep(f"argument {index}", arg, memo) for index, arg in enumerate(args)]
        self._kwargs = {name: self._keep(f"argument '{name}'", value, memo) for name, value in kwargs.items()}

    def again(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for one more pass, in containers of their own."""
        memo: dict[int, Any] = {}
        return (
            [rebuild(arg, _as_it_is, memo) for arg in self._args],
            {name: rebuild(value, _as_it_is, memo) for name, value in self._kwargs.items()},
        )

    def changed(self) -> str | None:
        """Which input was changed in place since the call, or None."""
        for where, tensor, version in self._versions:
            if tensor.inplace_version != version:
                return where
        return None

    def _keep(self, where: str, value: Any, memo: dict[int, Any]) -> Any:
        return rebuild(value, lambda tensor: self._keep_tensor(where, tensor), memo)

    def _keep_tensor(self, where: str, tensor: paddle.Tensor) -> paddle.Tensor:
        version = tensor.inplace_version
        if not tensor.stop_gradient and not isinstance(tensor, EagerParamBase):
            # the leaf shares the version, and unlike the tensor it does not hold the graph before the unit
            leaf = tensor.detach()
            leaf.stop_gradient = False
            tensor = leaf
        self._versions.append((where, tensor, version))
        return tensor


def _as_it_is(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor
