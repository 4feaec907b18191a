"""A run's voice: its record, its curves, its alerts. What is told to the user also stands in the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle_memcallbacks.alerts import Alert, WarningsToRecord, raise_alert
from paddle_memcallbacks.writers import WriterGroup


class Telling:
    """Writers, alerts and warnings of one run.

    Args:
        writers: where metrics and texts go.
        header: what ran, for the record's first line.

    Attributes:
        alerts: every alert so far.
    """

    def __init__(self, writers: WriterGroup, header: Mapping[str, Any]) -> None:
        self.alerts: list[Alert] = []
        self._writers, self._header = writers, header
        self._warnings = WarningsToRecord(self._record_warning)
        self._step = 0
        self._open = False

    def start(self, step: int, *, recorded: bool = True) -> None:
        """The run begins, or goes on from ``step``; unrecorded, nothing is written at all."""
        if not recorded:
            self._writers = WriterGroup([])
        self._step, self._open = step, True
        self._writers.start(step, self._header)
        self._warnings.__enter__()

    def describe(self, active: Mapping[str, Any]) -> None:
        """What is truly active."""
        self._writers.describe(active)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step's metrics."""
        self._step = step
        self._writers.write(step, metrics)

    def alert(self, alert: Alert) -> None:
        """An alert: to the log, the record and VisualDL."""
        self.alerts.append(alert)
        raise_alert(alert)
        self._writers.write_text(alert.step, f"alerts/{alert.kind}", alert.text())

    def text(self, tag: str, text: str) -> None:
        """Another text at the present step."""
        self._writers.write_text(self._step, tag, text)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The record's last line; files closed."""
        if self._open:
            self._open = False
            self._warnings.__exit__()
            self._writers.finish({**summary, "alerts": len(self.alerts)})

    def _record_warning(self, text: str) -> None:
        self.text("alerts/warning", text)
