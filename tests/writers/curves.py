"""What VisualDL itself reads from a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from visualdl.reader.reader import LogReader


def shown_file(directory: Path) -> str:
    """The file of a directory that VisualDL shows."""
    return str(LogReader(logdir=str(directory)).logs(update=True)[str(directory)])


def _reader(directory: Path) -> Any:
    return LogReader(file_path=os.path.join(directory, shown_file(directory)))


def curves(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by tag, as VisualDL shows them."""
    reader = _reader(directory)
    tags = reader.get_tags().get("scalar", [])
    return {tag: [(point.id, point.value) for point in reader.get_data("scalar", tag)] for tag in tags}


def times(directory: Path, tag: str) -> list[int]:
    """Milliseconds since the epoch of a curve's points."""
    return [point.timestamp for point in _reader(directory).get_data("scalar", tag)]


def texts(directory: Path) -> dict[str, list[tuple[int, str]]]:
    """(step, text) by tag."""
    reader = _reader(directory)
    tags = reader.get_tags().get("text", [])
    return {tag: [(each.id, each.text.encoded_text_string) for each in reader.get_data("text", tag)] for tag in tags}
