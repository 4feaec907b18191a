"""VisualDL: one writer for a run, opened lazily, on rank 0, in a directory that holds no other file.

VisualDL shows only the newest file of a directory, shares a file between writers of the same second, refuses ``%`` and
arrays, and hangs when used in a forked child. Each is kept away here.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_NOT_IN_TAGS = re.compile(r"[^\w\-./ ]")

# LogWriter hands its queue's size and its flush interval on in swapped order: these are 20 records and 10 seconds
_SWAPPED = {"max_queue": 10, "flush_secs": 20}


def sanitise_tag(tag: object) -> str:
    """A tag that VisualDL takes: ``mem/util%`` -> ``mem/util_pct``."""
    return _NOT_IN_TAGS.sub("_", str(tag).replace("%", "_pct"))


def hparams_for_visualdl(values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that add_hparams takes: numbers and text; bools, None and lists go as text."""
    plain = {}
    for name, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        plain[str(name)] = value if is_number or isinstance(value, str) else str(value)
    return plain


class VisualDLWriter:
    """Curves in a directory of this run's own.

    Args:
        logdir: the directory that VisualDL is pointed at.
        run_name: sub-directory of this run; None writes into ``logdir`` itself.
        record_path: the run's JSON lines; on resume the curve up to the resumed step is rewritten from them.
        interval: steps between two points of a curve.
    """

    def __init__(
        self,
        logdir: str | Path,
        run_name: str | None = None,
        record_path: str | Path | None = None,
        interval: int = 1,
    ) -> None:
        self.directory = Path(logdir) / run_name if run_name else Path(logdir)
        self._record_path = Path(record_path) if record_path is not None else None
        self._interval = interval
        self._writer: Any = None
        self._file_name: str | None = None
        self._process = os.getpid()
        self._restore_up_to = 0

    def start(self, step: int, header: Mapping[str, Any]) -> None:
        """A run that goes on from ``step`` gets a new file, with the curve so far in front."""
        self._restore_up_to = step

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point for each finite value, where the step is due."""
        if self._process != os.getpid() or (step != 1 and step % self._interval):
            return
        self._add(self._open(), step, metrics, None)

    def write_text(self, step: int, tag: str, text: str) -> None:
        """A text at a step."""
        if self._process == os.getpid():
            self._open().add_text(sanitise_tag(tag), text, int(step))

    def close(self) -> None:
        """Flush and close; a later point is added to the same file."""
        if self._writer is not None and self._process == os.getpid():
            self._writer.close()
        self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            from visualdl import LogWriter

            again = self._file_name is not None
            # every run and every resume its own file, also within one second
            name = self._file_name or f"vdlrecords.{int(time.time()):010d}.{os.getpid()}.{time.time_ns() % 10**9}.log"
            with contextlib.redirect_stdout(io.StringIO()):
                self._writer = LogWriter(logdir=str(self.directory), file_name=name, **_SWAPPED)
            self._file_name = name
            if not again:
                self._restore(self._writer)
        return self._writer

    def _restore(self, writer: Any) -> None:
        if self._restore_up_to <= 0 or self._record_path is None or not self._record_path.is_file():
            return
        for line in recorded_steps(self._record_path, self._restore_up_to):
            if line["step"] == 1 or line["step"] % self._interval == 0:
                self._add(writer, line["step"], line["metrics"], line.get("time"))

    @staticmethod
    def _add(writer: Any, step: int, metrics: Mapping[str, Any], walltime: float | None) -> None:
        for tag, value in metrics.items():
            number = _finite(value)
            if number is not None:
                moment = None if walltime is None else round(walltime * 1000)
                writer.add_scalar(sanitise_tag(tag), number, int(step), moment)


class BorrowedVisualDLWriter:
    """Writes through the toolkit's own LogWriter, which may not be there yet, or be closed already.

    Args:
        get_log_writer: gives the toolkit's LogWriter, or None.
        interval: steps between two points of a curve.
    """

    def __init__(self, get_log_writer: Callable[[], Any], interval: int = 1) -> None:
        self._get = get_log_writer
        self._interval = interval
        self._waiting: list[Callable[[Any], None]] = []

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point for each finite value, where the step is due."""
        if step == 1 or step % self._interval == 0:
            copied = dict(metrics)
            self._soon(lambda writer: VisualDLWriter._add(writer, step, copied, None))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """A text at a step."""
        self._soon(lambda writer: writer.add_text(sanitise_tag(tag), text, int(step)))

    def close(self) -> None:
        """The writer is the toolkit's to close."""

    def _soon(self, act: Callable[[Any], None]) -> None:
        writer = self._get()
        if writer is None:
            # a bounded memory: what cannot be written within 1,000 calls is not waited for
            self._waiting = [*self._waiting[-999:], act]
            return
        for waiting in [*self._waiting, act]:
            waiting(writer)
        self._waiting.clear()


def recorded_steps(path: Path, up_to: int) -> Iterator[dict[str, Any]]:
    """The record's steps up to ``up_to``, each once (the newest line of a step counts), in order."""
    newest: dict[int, dict[str, Any]] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "metrics" in entry and 0 < int(entry["step"]) <= up_to:
                    newest[int(entry["step"])] = entry
    return iter([newest[step] for step in sorted(newest)])


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
