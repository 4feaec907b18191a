"""What stands in for Paddle's and PaddleDetection's objects while train() runs, and is gone after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import paddle

OptimizerPhase = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` for a while. On an instance the class's own attribute is seen again afterwards."""
    own = vars(owner)
    had, former = name in own, own.get(name)
    setattr(owner, name, value) if isinstance(owner, type) or had else own.__setitem__(name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, former)
        else:
            del own[name]


@contextlib.contextmanager
def called_through(layer: paddle.nn.Layer, call: Callable[[Callable[..., Any], Any], Any]) -> Iterator[None]:
    """While it trains, ``layer(inputs)`` becomes ``call(own_call, inputs)``; in evaluation it stays as it is.

    The instance's class is swapped, so that a static graph, a deepcopy or ``DataParallel`` sees a layer as ever.
    """
    original = type(layer)

    def through(self: paddle.nn.Layer, *inputs: Any, **kwargs: Any) -> Any:
        if self is not layer or not self.training or len(inputs) != 1 or kwargs:
            return original.__call__(self, *inputs, **kwargs)
        return call(lambda batch: original.__call__(self, batch), inputs[0])

    swapped = type(original.__name__, (original,), {"__call__": through, "__module__": original.__module__})
    layer.__class__ = swapped
    try:
        yield
    finally:
        layer.__class__ = original


def scaler_class(
    base: type, settings: Mapping[str, Any], seen: Callable[[Any], None], phase: OptimizerPhase
) -> type[Any]:
    """A GradScaler that tells `seen` of itself, takes `settings` besides its caller's, and steps within `phase`."""

    class GradScaler(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**settings, **kwargs})
            seen(self)

        def minimize(self, *args: Any, **kwargs: Any) -> Any:
            with phase():
                return super().minimize(*args, **kwargs)

        def step(self, *args: Any, **kwargs: Any) -> Any:
            with phase():
                return super().step(*args, **kwargs)

    return GradScaler


def parallel_class(base: type, seen: Callable[[Any], None]) -> type[Any]:
    """A DataParallel whose own reduction stays off: the slices' gradients are reduced once, by the micro-batch loop."""

    class DataParallel(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.grad_need_sync = False
            seen(self)

    return DataParallel


def preceded(step: Callable[..., Any], first: Callable[[], Any]) -> Callable[..., Any]:
    """`step`, with `first` called before it."""

    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return step(*args, **kwargs)

    return both


def stepping(step: Callable[..., Any], phase: OptimizerPhase) -> Callable[..., Any]:
    """An optimizer's `step` within `phase`."""

    def metered(*args: Any, **kwargs: Any) -> Any:
        with phase():
            return step(*args, **kwargs)

    return metered
