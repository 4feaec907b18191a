"""Watches paddle's two entries into backward while units are switched.

An error of the second pass comes out as it was raised: paddle turns whatever a saved-tensor hook raises into an OSError
"(External) ...", and its class is lost. And a unit learns whether the graph is let go, so that it can let go of its
inputs as backward passes it: paddle keeps hooks, and all they hold, for as long as somebody keeps the loss.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from paddle.base import core

# the position of retain_graph among the entry's arguments
_ENTRIES = {"run_backward": 2, "run_partial_grad": 3}

_users = 0
_wrapped: dict[str, tuple[Any, Any]] = {}


class LetsGo(Protocol):
    """A unit that can drop what it kept for its second pass."""

    def let_go(self) -> None: ...


class _Run(threading.local):
    def __init__(self) -> None:
        self.lets_go: list[bool] = []
        self.done: list[LetsGo] = []
        self.error: BaseException | None = None


_run = _Run()


def remember_error(error: BaseException) -> None:
    """Keep the error that is about to go through C++. Its traceback is dropped: it pins the frames' activations."""
    if _run.lets_go:
        _run.error = error.with_traceback(None)


def done(unit: LetsGo) -> None:
    """All that ``unit`` saved has been used. It lets go as soon as backward has moved on, if the graph is not retained.

    Not at once: a PyLayer may ask twice for what it saved.
    """
    if _run.lets_go and _run.lets_go[-1] and not any(other is unit for other in _run.done):
        _run.done.append(unit)


def moved_on(to: LetsGo | None) -> None:
    """Backward has come to another unit, or to its end."""
    finished = [unit for unit in _run.done if unit is not to]
    _run.done = [unit for unit in _run.done if unit is to]
    for unit in finished:
        unit.let_go()


def hold_entries() -> None:
    """Wrap the entries into backward; each call is undone by one of `release_entries`."""
    global _users
    _users += 1
    if _users == 1:
        for name, retain_index in _ENTRIES.items():
            original = getattr(core.eager, name)
            _wrapped[name] = (original, _watched(original, retain_index))
            setattr(core.eager, name, _wrapped[name][1])


def release_entries() -> None:
    """Undo one `hold_entries`; the last one puts paddle's own functions back."""
    global _users
    _users -= 1
    if _users == 0:
        for name, (original, wrapper) in _wrapped.items():
            # where someone has wrapped ours since, theirs stays in force and ours only passes calls on
            if getattr(core.eager, name) is wrapper:
                setattr(core.eager, name, original)
        _wrapped.clear()


def _watched(original: Callable[..., Any], retain_index: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        retained = args[retain_index] if len(args) > retain_index else True
        _run.lets_go.append(not retained)
        _run.error = None
        try:
            result = original(*args, **kwargs)
        except Exception as wrapped:
            error, _run.error = _run.error, None
            _run.done.clear()
            if error is None:
                raise
            raise error from wrapped.with_traceback(None)
        finally:
            _run.lets_go.pop()
        if not _run.lets_go:
            moved_on(None)
        return result

    return run
