"""What every writer can do, and the group that keeps their failures away from the training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from paddle_memcallbacks.alerts import warn_once


class Writer(Protocol):
    """Takes a run's metrics and texts. Any method may raise; `WriterGroup` keeps that from the training."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics by tag at one step."""

    def write_text(self, step: int, tag: str, text: str) -> None:
        """A text, e.g. an alert."""

    def close(self) -> None:
        """Everything written is on disk afterwards. May be called twice."""


class WriterGroup:
    """Several writers as one. A writer that raises is warned about once and left out from then on."""

    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers: list[Any] = list(writers)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics to every writer."""
        self._each(lambda writer: writer.write(step, metrics))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """A text to every writer."""
        self._each(lambda writer: writer.write_text(step, tag, text))

    def start(self, step: int, header: Mapping[str, Any]) -> None:
        """The run begins, or goes on from ``step``; for writers that keep a record or curves."""
        self._each(lambda writer: writer.start(step, header) if hasattr(writer, "start") else None)

    def describe(self, active: Mapping[str, Any]) -> None:
        """What is truly active, for the record."""
        self._each(lambda writer: writer.describe(active) if hasattr(writer, "describe") else None)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is over: its last record, then every writer is closed."""
        self._each(lambda writer: writer.finish(summary) if hasattr(writer, "finish") else None)
        self.close()

    def close(self) -> None:
        """Close every writer."""
        self._each(lambda writer: writer.close())

    def _each(self, act: Callable[[Any], None]) -> None:
        for writer in list(self._writers):
            try:
                act(writer)
            except Exception as error:
                self._writers.remove(writer)
                name = type(writer).__name__
                warn_once(f"writer_{name}", f"{name} failed and is left out from here on; training goes on: {error}")
                with contextlib.suppress(Exception):
                    writer.close()
