"""The Trainer's arguments while a run is taken over: the loop sees whole batches, files show the user's values.

The arguments keep their identity (callbacks and scripts hold them); only their class is swapped for the run.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
from collections.abc import Iterator
from typing import Any

_USERS = "_memcallbacks_users_values"


class _UsersValues:
    """Mixed in before the arguments' own class: what is saved, logged or pickled shows the user's values."""

    def to_dict(self) -> dict[str, Any]:
        return _original(self).to_dict()

    def to_json_string(self) -> str:
        return _original(self).to_json_string()

    def to_sanitized_dict(self) -> dict[str, Any]:
        # protobuf 7 refuses a bool in VisualDL's add_hparams, so bools go as text
        values = _original(self).to_sanitized_dict()
        return {key: str(value) if isinstance(value, bool) else value for key, value in values.items()}

    def __reduce_ex__(self, protocol: Any) -> Any:
        original = _original(self)
        # not object's own: its __newobj__ insists on the class that this object has now
        return copyreg._reconstructor, (type(original), object, None), original.__dict__  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(_original(self), memo)

    def __copy__(self) -> Any:
        return _original(self)


def _original(args: Any) -> Any:
    """A copy of the arguments with the class and the values that the user gave them."""
    state = dict(args.__dict__)
    users = state.pop(_USERS)
    restored: Any = object.__new__(type(args).__mro__[2])
    restored.__dict__.update({**state, **users})
    return restored


@contextlib.contextmanager
def overlay(args: Any, **values: Any) -> Iterator[None]:
    """Set ``values`` on ``args`` for the duration; everything that writes the arguments down shows the former ones."""
    own_class = type(args)
    users = {name: getattr(args, name) for name in values}
    args.__dict__[_USERS] = users
    args.__class__ = type(own_class.__name__, (_UsersValues, own_class), {"__module__": own_class.__module__})
    for name, value in values.items():
        args.__dict__[name] = value
    try:
        yield
    finally:
        args.__class__ = own_class
        args.__dict__.pop(_USERS, None)
        args.__dict__.update(users)
