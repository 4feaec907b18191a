"""The one place where PaddleDetection is patched: once, at class level, undone by `unregister`.

Without one of our keys in a config, a MemoryCallback or `activate`, every method does what it always did.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ppdet.core import workspace
from ppdet.engine import Trainer, trainer_ssod
from ppdet.engine.callbacks import ComposeCallback
from ppdet.utils import cli

from paddle_memcallbacks.config import MemoryConfig

from . import flags, resume
from .callback import MemoryCallback, callback_of
from .prepare import ATTRIBUTE, initialise, read_keys, refuse_other_loop
from .shims import apply_shims, remove_shims

_undo: list[Callable[[], None]] = []
_beside: list[Mapping[str, Any]] = []


def register() -> None:
    """Patch PaddleDetection, add MemoryCallback to its registered modules, switch the shims on. Twice does nothing."""
    if _undo:
        return
    for cls, name, make in _METHODS:
        _patch(cls, name, make)
    for cls in _other_trainers():
        _patch(cls, "__init__", functools.partial(_refusing_init, cls))
    _patch_function(cli, "merge_args", flags.careful_merge(cli.merge_args, lambda: sys.argv[1:]))
    if MemoryCallback.__name__ not in workspace.global_config:
        workspace.register(MemoryCallback)
        _undo.append(lambda: workspace.global_config.pop(MemoryCallback.__name__, None))
    apply_shims()
    _undo.append(remove_shims)


def unregister() -> None:
    """Put PaddleDetection back as it was."""
    while _undo:
        _undo.pop()()
    _beside.clear()


def activate(config: MemoryConfig) -> None:
    """Give every Trainer of this process these keys beside those of its own config (``paddle-mem run``)."""
    register()
    _beside[:] = [config.as_dict(only_given=True)]


def _given_beside() -> Mapping[str, Any] | None:
    return _beside[0] if _beside else None


def _patch(cls: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = vars(cls)[name]
    setattr(cls, name, functools.wraps(original)(make(original)))
    _undo.append(lambda: setattr(cls, name, original))


def _patch_function(module: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function wherever it was imported to: a script that runs already has it under its own name."""
    original = getattr(module, name)
    for holder in list(sys.modules.values()):
        if getattr(holder, "__dict__", {}).get(name) is original:
            setattr(holder, name, replacement)
            _undo.append(functools.partial(setattr, holder, name, original))


def _other_trainers() -> list[type]:
    """Trainers whose own __init__ never calls that of Trainer."""
    classes = [value for value in vars(trainer_ssod).values() if isinstance(value, type) and issubclass(value, Trainer)]
    return [cls for cls in classes if cls is not Trainer and "__init__" in vars(cls)]


def _init(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, cfg: Any, mode: str = "train") -> None:
        initialise(original, self, cfg, mode, _given_beside())

    return __init__


def _refusing_init(cls: type, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, cfg: Any, mode: str = "train") -> None:
        if mode.lower() == "train":
            refuse_other_loop(cls, read_keys(cfg, _given_beside()).config)
        original(self, cfg, mode)

    return __init__


def _init_callbacks(original: Callable[..., None]) -> Callable[..., None]:
    def _init_callbacks(self: Any) -> None:
        if getattr(self, ATTRIBUTE, None) is None:
            original(self)
            return
        if self._nranks > 1 and self._local_rank != 0:
            # every rank would open a file of its own, and VisualDL shows only the newest of a directory
            self.cfg["use_vdl"] = False
        original(self)
        self._callbacks.append(MemoryCallback(self))
        self._compose_callback = ComposeCallback(self._callbacks)

    return _init_callbacks


def _train(original: Callable[..., Any]) -> Callable[..., Any]:
    def train(self: Any, validate: bool = False) -> Any:
        callback = callback_of(self)
        if callback is None:
            return original(self, validate)
        with callback.run.training():
            return original(self, validate)

    return train


def _resume_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    def resume_weights(self: Any, weights: str, *args: Any, **kwargs: Any) -> Any:
        result = original(self, weights, *args, **kwargs)
        callback = callback_of(self)
        if callback is not None:
            callback.run.resumed = resume.read(weights)
        return result

    return resume_weights


def _parse_opt(original: Callable[..., Any]) -> Callable[..., Any]:
    def _parse_opt(self: Any, opts: Any) -> dict[str, Any]:
        return flags.overrides(opts or [])

    return _parse_opt


_METHODS: tuple[tuple[type, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    (Trainer, "__init__", _init),
    (Trainer, "_init_callbacks", _init_callbacks),
    (Trainer, "train", _train),
    (Trainer, "resume_weights", _resume_weights),
    (cli.ArgsParser, "parse_args", flags.remembering_parse),
    (cli.ArgsParser, "_parse_opt", _parse_opt),
)
