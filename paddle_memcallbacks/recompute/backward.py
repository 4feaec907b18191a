"""Brings an error of the second pass out of backward as it was raised.

Paddle turns whatever a saved-tensor hook raises into an OSError "(External) ..."; its class is lost. While units are
switched, paddle's two entries into backward raise the hook's own error instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from paddle.base import core

_ENTRIES = ("run_backward", "run_partial_grad")

_users = 0
_pending: list[BaseException] = []
_wrapped: dict[str, tuple[Any, Any]] = {}


def remember_error(error: BaseException) -> None:
    """Keep the error that is about to go through C++. Its traceback is dropped: it pins the frames' activations."""
    _pending[:] = [error.with_traceback(None)]


def hold_entries() -> None:
    """Wrap the entries into backward; each call is undone by one of `release_entries`."""
    global _users
    _users += 1
    if _users == 1:
        for name in _ENTRIES:
            original = getattr(core.eager, name)
            _wrapped[name] = (original, _translating(original))
            setattr(core.eager, name, _wrapped[name][1])


def release_entries() -> None:
    """Undo one `hold_entries`; the last one puts paddle's own functions back."""
    global _users
    _users -= 1
    if _users == 0:
        for name, (original, wrapper) in _wrapped.items():
            # someone may have wrapped ours since; theirs keeps working, and ours only passes errors on
            if getattr(core.eager, name) is wrapper:
                setattr(core.eager, name, original)
        _wrapped.clear()


def _translating(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        _pending.clear()
        try:
            return original(*args, **kwargs)
        except Exception as wrapped:
            if not _pending:
                raise
            raise _pending.pop() from wrapped.with_traceback(None)

    return run
