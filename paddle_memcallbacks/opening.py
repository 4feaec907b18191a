"""The writers of a run, and the header that makes its record self-describing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paddle

import paddle_memcallbacks
from paddle_memcallbacks.config import MemoryConfig
from paddle_memcallbacks.writers import (
    RECORD_NAME,
    ConsoleWriter,
    JsonLinesWriter,
    VisualDLWriter,
    Writer,
    WriterGroup,
)


def open_writers(
    config: MemoryConfig, logdir: str | Path | None, name: str | None, writers: Sequence[Writer] | None
) -> WriterGroup:
    """Console, JSON lines and VisualDL as the config has them; on rank 0 alone.

    Args:
        config: the run's keys; ``visualdl.logdir`` goes before ``logdir``.
        logdir: where the run's record and curves go; None and no ``visualdl.logdir``: the console alone.
        name: sub-directory of this run.
        writers: replaces all of them.
    """
    if paddle.distributed.get_rank() != 0:
        return WriterGroup([])
    if writers is not None:
        return WriterGroup(writers)
    opened: list[Writer] = [ConsoleWriter(config.memory.interval)]
    folder = record_folder(config, logdir, name)
    if folder is not None:
        record = folder / RECORD_NAME
        opened.append(JsonLinesWriter(record))
        if config.visualdl.enable:
            opened.append(VisualDLWriter(folder, record_path=record, interval=config.visualdl.interval))
    return WriterGroup(opened)


def record_folder(config: MemoryConfig, logdir: str | Path | None, name: str | None) -> Path | None:
    """Where a run's record, curves and plan go; None where no folder was named."""
    where = config.visualdl.logdir or logdir
    if where is None:
        return None
    return Path(where) / name if name else Path(where)


def header(
    config: MemoryConfig, name: str | None, toolkit: str, facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What ran: versions, device, the user's own keys."""
    return {
        "name": name or toolkit,
        "toolkit": toolkit,
        "library": paddle_memcallbacks.__version__,
        "paddle": paddle.__version__,
        "device": paddle.get_device(),
        "config": config.as_dict(),
        "facts": dict(facts or {}),
    }
