"""Where a run's curves go: through PaddleDetection's own VisualDL writer where there is one, else a run of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ppdet.engine.callbacks import VisualDLWriter as PaddleDetectionWriter

from paddle_memcallbacks.config import MemoryConfig
from paddle_memcallbacks.opening import open_writers
from paddle_memcallbacks.writers import Writer

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
    borrowed = lambda: getattr(own_vdl_callback(trainer), "vdl_writer", None)
    own = own_vdl_callback(trainer)
    return open_writers(config, folder, curves=folder / CURVES_FOLDER, borrowed=borrowed if own is not None else None)
