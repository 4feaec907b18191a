"""VisualDL's own record format, written in the calling thread.

VisualDL writes from a thread: it hangs in a forked child, loses its queue when the process is killed, and tells nobody
that the disk is full. Its file names carry whole seconds, so that two writers share a file. None of that here: a file
of one's own, flushed where the caller says so, and an error reaches the caller.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class RecordFile:
    """Stands for VisualDL's RecordFileWriter. Appends to ``path``."""

    def __init__(self, path: Path) -> None:
        from visualdl.writer.record_writer import RecordWriter

        self.path = path
        self._file = path.open("ab")
        self._records = RecordWriter(self._file)

    def add_record(self, record: Any) -> None:
        """One record of VisualDL's protocol buffers."""
        self._records.write(record.SerializeToString())

    def flush(self) -> None:
        """All records are with the operating system afterwards, safe from a kill."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def get_filename(self) -> str:
        """The file's path."""
        return str(self.path)

    def get_logdir(self) -> str:
        """The file's directory."""
        return str(self.path.parent)


def open_log_writer(path: Path) -> Any:
    """A VisualDL LogWriter that appends to ``path``.

    Raises:
        OSError: the file cannot be opened.
    """
    from visualdl import LogWriter

    class SynchronousLogWriter(LogWriter):
        """Every add_* of LogWriter goes through `_get_file_writer`."""

        def __init__(self, records: RecordFile) -> None:
            self._records = records
            super().__init__(logdir=records.get_logdir())

        def _get_file_writer(self) -> RecordFile:
            self._file_writer = self._records
            self._all_writers = {self._logdir: self._records}
            return self._records

    path.parent.mkdir(parents=True, exist_ok=True)
    return SynchronousLogWriter(RecordFile(path))


def next_file_name(directory: Path) -> str:
    """A name that sorts after every record file of ``directory``: VisualDL shows the last one alone."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    name = _file_name(seconds, rest)
    newest = max(record_files(directory), default="")
    if newest < name:
        return name
    # another file of this second by VisualDL's own naming, or a clock that was set back
    second = newest.split(".")[1] if newest.count(".") else ""
    return _file_name(int(second) + 1, rest) if second.isdigit() else name


def record_files(directory: Path) -> list[str]:
    """Names of the files of ``directory`` that VisualDL looks at."""
    return [name for name in os.listdir(directory) if "vdlrecords" in name] if directory.is_dir() else []


def _file_name(seconds: int, nanoseconds: int) -> str:
    return f"vdlrecords.{seconds:010d}.{nanoseconds:09d}.{os.getpid()}.log"
