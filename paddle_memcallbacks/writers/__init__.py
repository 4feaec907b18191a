"""Where metrics and alerts go: console, JSON lines, VisualDL. A writer that fails never stops a training."""

from paddle_memcallbacks.writers.base import Writer, WriterGroup
from paddle_memcallbacks.writers.console import ConsoleWriter
from paddle_memcallbacks.writers.jsonl import JsonLinesWriter
from paddle_memcallbacks.writers.texts import hparams_for_visualdl, sanitise_tag
from paddle_memcallbacks.writers.visualdl import BorrowedVisualDLWriter, VisualDLWriter

RECORD_NAME = "memcallbacks.jsonl"

__all__ = [
    "RECORD_NAME",
    "BorrowedVisualDLWriter",
    "ConsoleWriter",
    "JsonLinesWriter",
    "VisualDLWriter",
    "Writer",
    "WriterGroup",
    "hparams_for_visualdl",
    "sanitise_tag",
]
