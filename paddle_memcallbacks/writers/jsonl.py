"""A run's record: one JSON object a line, flushed line by line, so that a killed run has lost nothing.

Lines: ``run`` (the header), ``active``, ``step`` with ``metrics`` or ``text``, ``resume`` (later steps that stand
before it are superseded), ``end``. A header without ``resume`` right after it supersedes all before it.
Non-finite numbers stand as text, since JSON has none.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from paddle_memcallbacks.alerts import warn_once


class JsonLinesWriter:
    """Appends to ``path``; opened with the first line, so that a run that never starts leaves no file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None
        self._opening: dict[str, Mapping[str, Any]] = {}

    def start(self, step: int, header: Mapping[str, Any]) -> None:
        """The header; where the run goes on from ``step``, the mark that supersedes later steps."""
        self._opening = {"run": {**header, "started": time.time()}}
        if step > 0:
            self._opening["resume"] = {"step": step, "time": time.time()}
        for kind, value in self._opening.items():
            self._line({kind: _plain(value)})

    def describe(self, active: Mapping[str, Any]) -> None:
        """What is truly active."""
        self._opening["active"] = active
        self._line({"active": _plain(active)})

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line a step."""
        values = {tag: _number(value) for tag, value in metrics.items()}
        self._line({"step": step, "time": time.time(), "metrics": values})

    def write_text(self, step: int, tag: str, text: str) -> None:
        """An alert, or another text."""
        self._line({"step": step, "time": time.time(), "text": {"tag": tag, "text": text}})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The record's last line."""
        self._line({"end": _plain({**summary, "time": time.time()})})

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _line(self, value: Mapping[str, Any]) -> None:
        if self._file is not None and not self.path.exists():
            self._begin_again()
        if self._file is None:
            self._file = self._open()
        self._file.write(_dumped(value))
        # a forked child inherits an empty buffer, and each line reaches the file whole
        self._file.flush()

    def _begin_again(self) -> None:
        warn_once(f"record_removed_{self.path}", f"{self.path} was removed while the run goes on; it is begun again")
        self.close()
        self._file = self._open()
        self._file.writelines(_dumped({kind: _plain(value)}) for kind, value in self._opening.items())

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


def _dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) + "\n"


def _number(value: Any) -> float | str:
    """The value as JSON has it: text where it is no finite number, so that one wrong value does not end the record."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return number if math.isfinite(number) else str(number)


def _plain(value: Any) -> Any:
    """Nested settings as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return _number(value)
    return value
