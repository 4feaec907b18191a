"""The one place where PaddleNLP's Trainer is patched: four methods, once, at class level, undone by `uninstall`.

Without a MemoryCallback in the Trainer's list, and without a config that `activate` set, each does what it always did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from paddlenlp.trainer import Trainer

from paddle_memcallbacks.alerts import warn
from paddle_memcallbacks.config import MemoryConfig

from .callback import MemoryCallback

_originals: dict[str, Callable[..., Any]] = {}
_default: list[MemoryConfig] = []


def install() -> None:
    """Wrap the Trainer's methods. A second call does nothing."""
    if _originals:
        return
    for name, make in _WRAPPERS.items():
        _originals[name] = getattr(Trainer, name)
        setattr(Trainer, name, functools.wraps(_originals[name])(make(_originals[name])))


def uninstall() -> None:
    """Put the Trainer's own methods back."""
    for name, original in _originals.items():
        setattr(Trainer, name, original)
    _originals.clear()
    _default.clear()


def activate(config: MemoryConfig) -> None:
    """Give every Trainer that has no MemoryCallback one with this config (``paddle-mem run``)."""
    install()
    _default[:] = [config]


def callback_of(trainer: Any) -> MemoryCallback | None:
    """The trainer's MemoryCallback, if it has one."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, MemoryCallback):
            return callback
    return None


def _train(original: Callable[..., Any]) -> Callable[..., Any]:
    def train(self: Any, resume_from_checkpoint: Any = None, ignore_keys_for_eval: Any = None) -> Any:
        callback = callback_of(self)
        if callback is None and _default:
            callback = MemoryCallback(_default[0])
            self.add_callback(callback)
        elif _default and callback is not None and callback.config != _default[0]:
            warn("the script's own MemoryCallback is used; the keys of --config are not")
        if callback is None:
            return original(self, resume_from_checkpoint, ignore_keys_for_eval)
        with callback.taking_over(self, Trainer, resume_from_checkpoint):
            return original(self, resume_from_checkpoint, ignore_keys_for_eval)

    return train


def _training_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def training_step(self: Any, model: Any, inputs: Any) -> Any:
        callback = callback_of(self)
        run = callback.run if callback is not None else None
        if run is None or run.in_slice:
            return original(self, model, inputs)
        return run.training_step(original, model, inputs)

    return training_step


def _log(original: Callable[..., Any]) -> Callable[..., Any]:
    def log(self: Any, logs: dict[str, float], **kwargs: Any) -> None:
        callback = callback_of(self)
        if callback is None:
            return original(self, logs, **kwargs)
        callback.before_log(self, logs)
        original(self, logs, **kwargs)
        return callback.after_log(self)

    return log


def _maybe_log_save_evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_log_save_evaluate(self: Any, tr_loss: Any, *args: Any, **kwargs: Any) -> Any:
        callback = callback_of(self)
        logged = self.control.should_log
        result = original(self, tr_loss, *args, **kwargs)
        if callback is not None and callback.run is not None and logged:
            # the Trainer resets by subtracting the sum from itself, and inf - inf is NaN for ever
            tr_loss.zero_()
        return result

    return maybe_log_save_evaluate


_WRAPPERS = {
    "train": _train,
    "training_step": _training_step,
    "log": _log,
    "_maybe_log_save_evaluate": _maybe_log_save_evaluate,
}
