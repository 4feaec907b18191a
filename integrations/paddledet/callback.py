"""MemoryCallback: the one thing a PaddleDetection Trainer gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppdet.engine.callbacks import Callback

from paddle_memcallbacks.config import ConfigError, MemoryConfig, load_config

from .prepare import ATTRIBUTE, Prepared, read_keys, refuse_other_loop
from .run import Run


class MemoryCallback(Callback):
    """Micro-batches, recompute, memory, loss scale and VisualDL for a PaddleDetection Trainer.

    A Trainer whose config holds one of our keys has one already. In code::

        trainer = Trainer(cfg, mode="train")
        trainer.register_callbacks([MemoryCallback(trainer, {"recompute": True})])

    Args:
        trainer: ppdet's Trainer, in train mode.
        cfg: a `MemoryConfig`, a mapping of the keys, or the path of a YAML or JSON file; keys that the Trainer's own
            config has too are taken from there. None: those of the Trainer's config, or the defaults.

    Raises:
        ConfigError: a key is wrong, or would have been needed before the Trainer was built.
    """

    def __init__(self, trainer: Any, cfg: MemoryConfig | Mapping[str, Any] | str | Path | None = None) -> None:
        super().__init__(trainer)
        self.run = Run(trainer, _prepared(trainer, cfg))

    @property
    def session(self) -> Any:
        """The RunDriver of the training that runs or ran last; None before."""
        return self.run.session

    @property
    def _leads(self) -> bool:
        """Of several MemoryCallbacks of a Trainer the last one works; the keys' own one gives way."""
        return callback_of(self.model) is self

    def on_train_begin(self, status: dict[str, Any]) -> None:
        """Recompute on, moments created, the record opened."""
        if self._leads:
            self.run.begin()

    def on_step_end(self, status: dict[str, Any]) -> None:
        """Readings, alerts and writers, after clear_grad. Validation's steps are not ours."""
        if self._leads and status.get("mode") == "train":
            self.run.step_end()


def callback_of(trainer: Any) -> MemoryCallback | None:
    """The Trainer's MemoryCallback that works, if it has one."""
    found = [callback for callback in getattr(trainer, "_callbacks", []) if isinstance(callback, MemoryCallback)]
    return found[-1] if found else None


def _prepared(trainer: Any, cfg: Any) -> Prepared:
    built: Prepared | None = getattr(trainer, ATTRIBUTE, None)
    if built is not None and cfg is None:
        return built
    given = load_config(cfg)
    config = read_keys(trainer.cfg, given.as_dict(only_given=True)).config
    assert config is not None
    refuse_other_loop(type(trainer), config)
    rows = built.reader_rows if built is not None else int(trainer.cfg["TrainReader"].get("batch_size", 1))
    factor = built.factor if built is not None else 1
    _refuse_too_late(trainer, config, factor)
    return Prepared(config, rows, factor)


def _refuse_too_late(trainer: Any, config: MemoryConfig, factor: int) -> None:
    """Two things are fixed once the Trainer stands: the reader's batch, and mixed precision."""
    section = config.gradient_accumulation
    if section.enable and section.steps is not None and section.steps != factor:
        raise ConfigError(
            f"gradient_accumulation.steps ({section.steps}) multiplies the reader's batch, and this Trainer's reader "
            "is built. Put it into the Trainer's config before Trainer(cfg), or use "
            "gradient_accumulation.micro_batch_size."
        )
    if config.amp.enable != bool(trainer.use_amp):
        raise ConfigError(
            f"amp.enable is {config.amp.enable}, and this Trainer was built with amp {bool(trainer.use_amp)}. Put amp "
            "into the Trainer's config before Trainer(cfg)."
        )
