"""PaddleNLP: ``Trainer(..., callbacks=[MemoryCallback(cfg)])``. Importing this wraps the Trainer once: trainer.py."""

from .arguments import MemoryArgumentParser, MemoryArguments
from .callback import MemoryCallback
from .trainer import activate, install, uninstall

install()

__all__ = ["MemoryArgumentParser", "MemoryArguments", "MemoryCallback", "activate", "install", "uninstall"]
