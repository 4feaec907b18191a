"""What the user is told: announcements, warnings that come once, and alerts that also reach VisualDL and the record.

An alert is data. Whoever decides (loss scale, memory growth, a plan over its budget) returns alerts; the session hands
them to the log and to the writers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "error"]

logger = logging.getLogger("paddle_memcallbacks")

# marks a log record that is an alert
IS_ALERT = "memcallbacks_alert"

_told: set[str] = set()


@dataclass(frozen=True)
class Alert:
    """One thing the user must know: what happened, and what to do next.

    Attributes:
        kind: a stable name in lower snake case, e.g. ``loss_scale_storm``; the text tag is ``alerts/<kind>``.
        severity: ``info`` is shown, ``warning`` asks for attention, ``error`` comes before a stop.
        step: the optimizer step it belongs to.
        message: what happened, with the numbers and the layer's name.
        remedy: what to change, as a key or a command; empty where there is nothing to do.
        data: plain values for the record (JSON).
    """

    kind: str
    severity: Severity
    step: int
    message: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The alert as one line."""
        line = f"step {self.step}: {self.message}"
        return f"{line} -> {self.remedy}" if self.remedy else line


def announce(message: str) -> None:
    """Tell the user something at INFO, on stderr where the program has set up no logging of its own."""
    _ensure_visible()
    logger.info(message)


def warn(message: str) -> None:
    """Tell the user something at WARNING."""
    _ensure_visible()
    logger.warning(message)


def warn_once(key: str, message: str) -> bool:
    """Tell the user something at WARNING, once in this process for each ``key``. True if it was told now."""
    if key in _told:
        return False
    _told.add(key)
    warn(message)
    return True


def forget_told() -> None:
    """Let every `warn_once` speak again: a new run starts."""
    _told.clear()


def raise_alert(alert: Alert) -> None:
    """Send one alert to the log."""
    _ensure_visible()
    level = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}[alert.severity]
    logger.log(level, alert.text(), extra={IS_ALERT: True})


class WarningsToRecord(logging.Handler):
    """Hands every warning of this library on, so that a run's record holds what its console said.

    Args:
        tell: takes the text. Alerts are left out: they go to the record by themselves.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """One warning."""
        if not hasattr(record, IS_ALERT):
            self._tell(record.getMessage())

    def __enter__(self) -> WarningsToRecord:
        _ensure_visible()
        logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logger.removeHandler(self)


class _StderrHandler(logging.StreamHandler):
    """Writes to whatever ``sys.stderr`` is now, so that a redirected stream is honoured."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("[memcallbacks] %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _ensure_visible() -> None:
    """Without a handler Python drops INFO; the start line must be seen."""
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        logger.addHandler(_StderrHandler())
