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
from paddle_memcallbacks.opening import open_writers
from paddle_memcallbacks.writers import Writer
from paddle_memcallbacks.writers.vdl_file import open_log_writer
from paddle_memcallbacks.writers.visualdl import add_metrics

_EVENTS = ("on_train_begin", "on_log", "on_train_end")


class Curves:
    """Opens this run's writers, and keeps the Trainer's VisualDL callback from ending a training."""

    def __init__(self, trainer: Any, config: MemoryConfig) -> None:
        self.trainer = trainer
        self.config = config
        self._native_file: Path | None = None

    @property
    def native(self) -> Any | None:
        """The Trainer's own VisualDL callback, if report_to has it."""
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, VisualDLCallback):
                return callback
        return None

    def writers(self, folder: Path) -> list[Writer]:
        """The run's writers: the record in ``folder``, the curves beside the Trainer's own."""
        borrowed = self._native_writer if self.native is not None else None
        return open_writers(self.config, folder, curves=Path(self.trainer.args.logging_dir), borrowed=borrowed)

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
        """Write what is logged after train(), into the file that the Trainer's callback has closed by then."""
        if self._native_file is None or self._native_writer() is not None or self.trainer.is_in_train:
            return
        try:
            writer = open_log_writer(self._native_file)
            numbers = {
                tag: float(value) for tag, value in rewrite_logs(logs).items() if isinstance(value, (int, float))
            }
            add_metrics(writer, self.trainer.state.global_step, numbers)
            writer.close()
        except Exception as error:
            warn_once("nlp_late_curves", f"metrics logged after train() could not be written to VisualDL: {error}")

    def _native_writer(self) -> Any:
        """The Trainer's LogWriter while it is open; its file is kept in mind."""
        writer = self.native.vdl_writer if self.native is not None else None
        if writer is not None:
            self._native_file = Path(writer._get_file_writer().get_filename())
        return writer


def _guard(event: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(event)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return event(*args, **kwargs)
        except Exception as error:
            warn_once("nlp_visualdl", f"PaddleNLP's VisualDL callback failed and is left out: {error}")
            return None

    return guarded
