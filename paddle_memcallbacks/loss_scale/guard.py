"""What must not happen around a skipped step: a scale out of its bounds, a sticky flag, a schedule that moves on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import paddle

# the inverse of a larger float32 is subnormal, and Paddle's unscale turns every gradient into zero without a skip
MAX_LOSS_SCALE = 2.0**126


class SkipSource(Protocol):
    """What a guard asks: `LossScaleWatch`."""

    @property
    def skipped(self) -> bool:
        """The newest optimizer step was skipped."""

    @property
    def skips(self) -> int:
        """Optimizer steps skipped so far."""

    def hold(self, what: str) -> None:
        """Say in alerts that this does not advance on skipped steps."""

    def release(self, what: str) -> None: ...


def bounded_scale(scale: float, minimum: float) -> float:
    """The scale within ``minimum`` and 2**126. A NaN becomes the minimum."""
    if not scale >= minimum:
        return minimum
    return min(scale, max(minimum, MAX_LOSS_SCALE))


def set_scale(scaler: Any, scale: float) -> None:
    """Give a GradScaler this scale, as its own update would: a new tensor, so that state_dict() saves it."""
    scaler._scale = paddle.to_tensor(np.array([scale]).astype(np.float32))


def release_found_inf(optimizer: Any) -> None:
    """Clear the flag that a skipped step leaves on the optimizer: without a scaler it would never step again."""
    set_variable = getattr(optimizer, "_set_auxiliary_var", None)
    if set_variable is not None:
        set_variable("found_inf", False)


class _OncePerSkip:
    """Each skipped step cancels one call, so that a flag that nobody renews cannot hold a schedule for ever."""

    def __init__(self, watch: SkipSource) -> None:
        self._watch = watch
        self._used = watch.skips

    def cancels(self) -> bool:
        if not self._watch.skipped or self._watch.skips == self._used:
            return False
        self._used = self._watch.skips
        return True


class Guard:
    """One method that is not called once after each skipped step. `remove` gives the object its own method back.

    Attributes:
        ignored: how many calls were left out.
    """

    def __init__(
        self,
        owner: Any,
        method: str,
        watch: SkipSource,
        what: str,
        *,
        passes: Callable[..., bool] | None = None,
    ) -> None:
        self.ignored = 0
        self._passes = passes
        self._owner, self._method, self._watch, self._what = owner, method, watch, what
        self._once = _OncePerSkip(watch)
        self._had_own = method in vars(owner)
        self._original = getattr(owner, method)
        setattr(owner, method, self._call)
        watch.hold(what)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        passes = self._passes is not None and self._passes(*args, **kwargs)
        if not passes and self._once.cancels():
            self.ignored += 1
            return None
        return self._original(*args, **kwargs)

    def remove(self) -> None:
        """Put the method back. May be called twice."""
        if vars(self._owner).get(self._method) != self._call:
            return
        if self._had_own:
            setattr(self._owner, self._method, self._original)
        else:
            delattr(self._owner, self._method)
        self._watch.release(self._what)


def guard_scheduler(scheduler: Any, watch: SkipSource, what: str = "the LR schedule") -> Guard:
    """``scheduler.step()`` does nothing after a skipped step. For schedules that step once an optimizer step.

    Args:
        scheduler: a ``paddle.optimizer.lr.LRScheduler``; ``step(epoch)`` with a number always goes through.
        watch: whose newest step is asked.
    """
    return Guard(scheduler, "step", watch, what, passes=_sets_epoch)


def _sets_epoch(epoch: int | None = None) -> bool:
    return epoch is not None


def guard_method(owner: Any, method: str, watch: SkipSource, what: str = "EMA") -> Guard:
    """``owner.method(...)`` does nothing after a skipped step: ``guard_method(ema, "update", watch)``."""
    return Guard(owner, method, watch, what)


def guard_callable(function: Callable[..., Any], watch: SkipSource, what: str = "EMA") -> Callable[..., Any]:
    """``function`` wrapped so that the call after a skipped step does nothing and returns None."""
    once = _OncePerSkip(watch)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return None if once.cancels() else function(*args, **kwargs)

    watch.hold(what)
    return guarded
