"""Where a run's curves go: through PaddleDetection's own VisualDL writer where there is one, else a run of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
from ppdet.engine.callbacks import VisualDLWriter as PaddleDetectionWriter

from paddle_memcallbacks.config import MemoryConfig
from paddle_memcallbacks.writers import (
    RECORD_NAME,
    BorrowedVisualDLWriter,
    ConsoleWriter,
    JsonLinesWriter,
    VisualDLWriter,
    Writer,
)

CURVES_FOLDER = "vdl"


def own_vdl_callback(trainer: Any) -> Any | None:
    """The Trainer's own VisualDL callback; None without ``use_vdl``."""
    return next((callback for callback in trainer._callbacks if isinstance(callback, PaddleDetectionWriter)), None)


def writers_for(trainer: Any, config: MemoryConfig, folder: Path) -> list[Writer]:
    """Console, JSON lines and VisualDL on rank 0; nothing on the others.

    Args:
        trainer: ppdet's Trainer.
        config: our keys.
        folder: where the Trainer's checkpoints go.
    """
    if paddle.distributed.get_rank() != 0:
        return []
    record = folder / RECORD_NAME
    writers: list[Writer] = [JsonLinesWriter(record), ConsoleWriter(config.memory.interval)]
    section = config.visualdl
    if not section.enable:
        return writers
    if own_vdl_callback(trainer) is not None and section.logdir is None:
        borrowed = lambda: getattr(own_vdl_callback(trainer), "vdl_writer", None)
        writers.append(BorrowedVisualDLWriter(borrowed, section.interval, record))
    else:
        logdir = section.logdir or folder / CURVES_FOLDER
        writers.append(VisualDLWriter(logdir, record_path=record, interval=section.interval))
    return writers
