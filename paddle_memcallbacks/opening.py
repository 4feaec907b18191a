"""The writers of a run, and the header that makes its record self-describing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import paddle

import paddle_memcallbacks
from paddle_memcallbacks.config import MemoryConfig
from paddle_memcallbacks.writers import (
    RECORD_NAME,
    BorrowedVisualDLWriter,
    ConsoleWriter,
    JsonLinesWriter,
    VisualDLWriter,
    Writer,
)


def open_writers(
    config: MemoryConfig,
    folder: Path | None,
    *,
    name: str | None = None,
    curves: Path | None = None,
    borrowed: Callable[[], Any] | None = None,
) -> list[Writer]:
    """Console, JSON lines and VisualDL as the config has them; nothing on ranks above 0.

    Args:
        config: the run's keys.
        folder: where the run's record goes; None: the console alone.
        name: sub-directory of ``visualdl.logdir`` for this run; None: that directory itself.
        curves: where VisualDL's file goes without a ``visualdl.logdir``; None: beside the record.
        borrowed: gives the toolkit's own LogWriter, whose file our curves join unless ``visualdl.logdir`` is set.
    """
    writers: list[Writer] = [ConsoleWriter(config.memory.interval)]
    if folder is None:
        return rank_0(writers)
    record, section = folder / RECORD_NAME, config.visualdl
    writers.append(JsonLinesWriter(record))
    if not section.enable:
        return rank_0(writers)
    if borrowed is not None and section.logdir is None:
        writers.append(BorrowedVisualDLWriter(borrowed, section.interval, record))
    else:
        directory = Path(section.logdir, name or "") if section.logdir is not None else curves or folder
        writers.append(VisualDLWriter(directory, record_path=record, interval=section.interval))
    return rank_0(writers)


def rank_0(writers: Sequence[Writer]) -> list[Writer]:
    """The writers on rank 0; none on the others."""
    return list(writers) if paddle.distributed.get_rank() == 0 else []


def record_folder(config: MemoryConfig, logdir: str | Path | None, name: str | None) -> Path | None:
    """Where a plain run's record, curves and plan go; None where no folder was named."""
    where = logdir or config.visualdl.logdir
    if where is None:
        return None
    return Path(where) / name if name else Path(where)


def header(config: MemoryConfig, name: str | None, toolkit: str) -> dict[str, Any]:
    """What ran: versions, device, the user's own keys."""
    return {
        "name": name or toolkit,
        "toolkit": toolkit,
        "library": paddle_memcallbacks.__version__,
        "paddle": paddle.__version__,
        "device": paddle.get_device(),
        "config": config.as_dict(),
    }
