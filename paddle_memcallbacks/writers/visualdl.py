"""VisualDL: one writer for a run, opened lazily, on rank 0, in a directory that holds no other run.

VisualDL shows only the newest file of a directory. So a resumed run opens a new file and first rewrites its curve from
the run's JSON lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from paddle_memcallbacks.alerts import warn_once
from paddle_memcallbacks.writers.restore import Recorded, is_due, recorded_lines
from paddle_memcallbacks.writers.texts import LARGEST, finite, sanitise_tag
from paddle_memcallbacks.writers.vdl_file import next_file_name, open_log_writer, record_files


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
        self._record_path = record_path
        self._interval = interval
        self._writer: Any = None
        self._file: Path | None = None
        # steps up to here stand in the record already
        self._step = 0
        # the newest step that was not due
        self._newest: tuple[int, Mapping[str, float]] | None = None

    def start(self, step: int, header: Mapping[str, Any]) -> None:
        """A run that goes on from ``step`` gets a new file, with the curve so far in front."""
        self._step = step

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point for each finite value, where the step is due."""
        if is_due(step, self._interval):
            self._newest = None
            writer = self._open()
            add_metrics(writer, step, metrics)
            writer.flush()
        else:
            self._newest = step, metrics
        self._step = step

    def write_text(self, step: int, tag: str, text: str) -> None:
        """A text at a step."""
        writer = self._open()
        writer.add_text(sanitise_tag(tag), text, int(step))
        writer.flush()

    def close(self) -> None:
        """Close the file, with the last step in it whether it is due or not. A later point is added to it."""
        newest, self._newest = self._newest, None
        if newest is not None:
            add_metrics(self._open(), *newest)
        self._close_file()

    def _close_file(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> Any:
        if self._file is not None and not self._file.exists():
            warn_once(f"vdl_removed_{self.directory}", f"{self._file} was removed while the run goes on: begun again")
            self._close_file()
            self._file = None
        if self._file is None:
            lines = recorded_lines(self._record_path, self._step, self._interval)
            if not lines:
                self._tell_hidden()
            path = self.directory / next_file_name(self.directory)
            self._writer = open_log_writer(path)
            self._file = path
            add_recorded(self._writer, lines)
        elif self._writer is None:
            self._writer = open_log_writer(self._file)
        return self._writer

    def _tell_hidden(self) -> None:
        hidden = record_files(self.directory)
        if hidden:
            warn_once(
                f"vdl_hidden_{self.directory}",
                f"{self.directory} holds the curves of an earlier run ({hidden[-1]}), which VisualDL no longer shows: "
                "it shows the newest file of a directory. Give each run its own visualdl.logdir",
            )


class BorrowedVisualDLWriter:
    """Writes through the toolkit's own LogWriter, which may not be there yet, or be closed already.

    A closed LogWriter that is written to begins a new file, which hides the old one. So what comes while it is closed
    waits for the next one, and goes into the file of the last one in the end. Nothing is written from a forked child:
    LogWriter's thread is not there, and the child would wait for it for ever.

    Args:
        get_log_writer: gives the toolkit's LogWriter, or None.
        interval: steps between two points of a curve.
        record_path: the run's JSON lines; on resume they come first, since the toolkit's new file hides its old one.
        leave_out: tags that the toolkit draws itself.
    """

    def __init__(
        self,
        get_log_writer: Callable[[], Any],
        interval: int = 1,
        record_path: str | Path | None = None,
        leave_out: Collection[str] = ("train/loss",),
    ) -> None:
        self._get = get_log_writer
        self._interval = interval
        self._record_path = record_path
        self._leave_out = frozenset(leave_out)
        self._waiting: list[Callable[[Any], None]] = []
        self._file: Path | None = None
        self._process = os.getpid()
        self._closed = False

    def start(self, step: int, header: Mapping[str, Any]) -> None:
        """A run that goes on from ``step``: the curve so far, in front."""
        lines = recorded_lines(self._record_path, step, self._interval)
        if lines:
            self._soon(lambda writer: add_recorded(writer, lines))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point for each finite value, where the step is due."""
        if is_due(step, self._interval):
            ours = {tag: value for tag, value in metrics.items() if tag not in self._leave_out}
            self._soon(lambda writer: add_metrics(writer, step, ours))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """A text at a step."""
        self._soon(lambda writer: writer.add_text(sanitise_tag(tag), text, int(step)))

    def close(self) -> None:
        """Write what still waits. The writer is the toolkit's to close; later points are added to its file."""
        self._closed = True
        self._write_waiting()

    def _soon(self, act: Callable[[Any], None]) -> None:
        # a bounded memory: what cannot be written within 1,000 calls is not waited for
        self._waiting = [*self._waiting[-999:], act]
        self._write_waiting()

    def _write_waiting(self) -> None:
        if self._process != os.getpid():
            return
        writer = self._open_writer()
        if writer is not None:
            self._write_to(writer)
        elif self._closed and self._file is not None and self._waiting:
            writer = open_log_writer(self._file)
            self._write_to(writer)
            writer.close()

    def _write_to(self, writer: Any) -> None:
        due, self._waiting = self._waiting, []
        for each in due:
            each(writer)

    def _open_writer(self) -> Any:
        """The toolkit's LogWriter, if it is open; its file is kept in mind."""
        writer = self._get()
        records = getattr(writer, "_file_writer", None)
        if records is None:
            return None
        # a LogWriter that writes nowhere has no file
        if hasattr(records, "get_filename"):
            self._file = Path(records.get_filename())
        return writer


def add_metrics(writer: Any, step: int, metrics: Mapping[str, Any], time_seconds: float | None = None) -> None:
    """Every value that is a finite float32 as a point; now, or at ``time_seconds`` since the epoch."""
    milliseconds = None if time_seconds is None else round(time_seconds * 1000)
    for tag, value in metrics.items():
        number = finite(value)
        if number is not None and abs(number) <= LARGEST:
            writer.add_scalar(sanitise_tag(tag), number, int(step), milliseconds)


def add_recorded(writer: Any, lines: Iterable[Recorded]) -> None:
    """The curve and the texts of a record."""
    for line in lines:
        if line.text is None:
            add_metrics(writer, line.step, line.metrics, line.time_seconds)
        else:
            tag, text = line.text
            writer.add_text(sanitise_tag(tag), text, line.step, round(line.time_seconds * 1000))
    writer.flush()
