"""Fresh copies of nested containers, their tensors looked at one by one."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle

OnTensor = Callable[[paddle.Tensor], paddle.Tensor]

# containers that are made anew; of other classes it is not known how
CONTAINERS = frozenset((list, tuple, dict, OrderedDict, defaultdict, set, deque, np.ndarray))
_ATOMS = frozenset((int, float, bool, str, bytes, type(None)))


def rebuild(value: Any, on_tensor: OnTensor, memo: dict[int, Any] | None = None) -> Any:
    """The same nested value in containers of its own, each tensor replaced by ``on_tensor(tensor)``.

    What is one container twice stays one container within a ``memo``. A tuple in which nothing is replaced is itself. A
    UserDict (batch encodings) is copied; mappings of other classes (model outputs) are passed as they are, their
    tensors looked at.
    """
    if isinstance(value, paddle.Tensor):
        return on_tensor(value)
    kind = type(value)
    if kind in _ATOMS:
        return value
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)][0]
    if kind is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
        made = _rebuild_tuple(value, on_tensor, memo)
    elif kind in CONTAINERS:
        return _rebuild_container(value, on_tensor, memo)
    elif isinstance(value, (Mapping, UserDict)):
        for item in value.values():
            rebuild(item, on_tensor, memo)
        made = copy.copy(value) if isinstance(value, UserDict) else value
    else:
        return value
    _remember(memo, value, made)
    return made


def _remember(memo: dict[int, Any], value: Any, made: Any) -> None:
    # the original is held beside: an id may not be given to another object meanwhile
    memo[id(value)] = (made, value)


def _rebuild_tuple(value: Any, on_tensor: OnTensor, memo: dict[int, Any]) -> Any:
    items = [rebuild(item, on_tensor, memo) for item in value]
    if all(one is other for one, other in zip(items, value, strict=True)):
        return value
    return tuple(items) if type(value) is tuple else type(value)(*items)


def _rebuild_container(value: Any, on_tensor: OnTensor, memo: dict[int, Any]) -> Any:
    # copied first and filled then: a container may hold itself
    made = value.copy()
    _remember(memo, value, made)
    if isinstance(value, dict):
        if not _only_atoms(value.values()):
            for key, item in value.items():
                made[key] = rebuild(item, on_tensor, memo)
    elif isinstance(value, (list, deque)) and not _only_atoms(value):
        for index, item in enumerate(value):
            made[index] = rebuild(item, on_tensor, memo)
    return made


def _only_atoms(items: Any) -> bool:
    return _ATOMS.issuperset(map(type, items))
