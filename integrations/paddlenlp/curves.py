"""Our curves beside the Trainer's own: through its VisualDL writer where it has one, else through ours."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paddlenlp.trainer.integrations import VisualDLCallback, rewrite_logs

from paddle_memcallbacks.alerts import warn_once
from paddle_memcallbacks.config import MemoryConfig
from paddle_memcallbacks.writers import BorrowedVisualDLWriter, ConsoleWriter, JsonLinesWriter, VisualDLWriter, Writer

_EVENTS = ("on_train_begin", "on_log", "on_train_end")


class Curves:
    """Opens this run's writers, and keeps the Trainer's VisualDL callback from ending a training."""

    def __init__(self, trainer: Any, config: MemoryConfig) -> None:
        self.trainer = trainer
        self.config = config
        self._logdir: str | None = None
        self._late: VisualDLWriter | None = None

    @property
    def native(self) -> Any | None:
        """The Trainer's own VisualDL callback, if report_to has it."""
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, VisualDLCallback):
                return callback
        return None

    def writers(self, record: Path) -> list[Writer]:
        """Console, JSON lines and VisualDL for rank 0; nothing on other ranks."""
        if not self.trainer.args.should_save:
            return []
        writers: list[Writer] = [JsonLinesWriter(record), ConsoleWriter(self.config.memory.interval)]
        section = self.config.visualdl
        if not section.enable:
            return writers
        if self.native is not None and section.logdir is None:
            writers.append(BorrowedVisualDLWriter(lambda: self.native.vdl_writer if self.native else None))
        else:
            logdir = section.logdir or self.trainer.args.logging_dir
            writers.append(VisualDLWriter(logdir, record_path=record))
        return writers

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """While the run lasts, an error of the Trainer's VisualDL callback is one warning."""
        native = self.native
        if native is None:
            yield
            return
        for event in _EVENTS:
            native.__dict__[event] = _guard(getattr(native, event))
        try:
            yield
        finally:
            for event in _EVENTS:
                native.__dict__.pop(event, None)

    def before_log(self, logs: dict[str, float]) -> None:
        """Write what is logged after train(): the Trainer's callback has closed its writer by then."""
        native = self.native
        if native is None or not self.config.visualdl.enable or not self.trainer.args.should_save:
            return
        if native.vdl_writer is not None or self.trainer.is_in_train:
            return
        try:
            if self._late is None:
                self._late = VisualDLWriter(self.trainer.args.logging_dir, run_name="after_training")
            numbers = {tag: float(value) for tag, value in rewrite_logs(logs).items() if isinstance(value, (int, float))}
            self._late.write(self.trainer.state.global_step, numbers)
        except Exception as error:
            warn_once("nlp_late_curves", f"metrics logged after train() could not be written to VisualDL: {error}")


def _guard(event: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(event)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return event(*args, **kwargs)
        except Exception as error:
            warn_once("nlp_visualdl", f"PaddleNLP's VisualDL callback failed and is left out: {error}")
            return None

    return guarded
