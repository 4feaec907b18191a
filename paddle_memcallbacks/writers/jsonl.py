"""A run's record: one JSON object a line, flushed line by line, so that a killed run has lost nothing.

Lines: ``run`` (the header), ``active``, ``step`` with ``metrics`` or ``text``, ``resume`` (later steps that stand before
it are superseded), ``end``. Non-finite numbers stand as text, since JSON has none.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO


class JsonLinesWriter:
    """Appends to ``path``; opened with the first line, so that a run that never starts leaves no file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None
        self._process = os.getpid()

    def start(self, step: int, header: Mapping[str, Any]) -> None:
        """The header; where the run goes on from ``step``, the mark that supersedes later steps."""
        self._line({"run": {**header, "started": time.time()}})
        if step > 0:
            self._line({"resume": {"step": step, "time": time.time()}})

    def describe(self, active: Mapping[str, Any]) -> None:
        """What is truly active."""
        self._line({"active": dict(active)})

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line a step."""
        values = {tag: _number(value) for tag, value in metrics.items()}
        self._line({"step": step, "time": time.time(), "metrics": values})

    def write_text(self, step: int, tag: str, text: str) -> None:
        """An alert, or another text."""
        self._line({"step": step, "time": time.time(), "text": {"tag": tag, "text": text}})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The record's last line."""
        self._line({"end": {**summary, "time": time.time()}})

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._file is not None and self._process == os.getpid():
            self._file.close()
        self._file = None

    def _line(self, value: Mapping[str, Any]) -> None:
        if self._process != os.getpid():
            # a forked child (a reader's worker) must not write into its parent's record
            return
        if self._file is None:
            self._file = self._open()
        self._file.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
        self._file.flush()

    def _open(self) -> TextIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.is_file() and self.path.stat().st_size > 0 and not _ends_with_newline(self.path)
        file = self.path.open("a", encoding="utf-8", errors="replace")
        if torn:
            file.write("\n")
        return file


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _number(value: Any) -> float | str:
    number = float(value)
    return number if math.isfinite(number) else str(number)
