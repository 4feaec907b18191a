"""A run's JSON lines read back, for the curve that a resumed run rewrites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddle_memcallbacks.writers.texts import finite


@dataclass(frozen=True)
class Recorded:
    """One line: the metrics of a step, or a text as (tag, text)."""

    step: int
    time_seconds: float
    metrics: Mapping[str, Any] = field(default_factory=dict)
    text: tuple[str, str] | None = None


def is_due(step: int, interval: int) -> bool:
    """Every ``interval`` steps, and the first."""
    return step == 1 or step % interval == 0


def recorded_lines(path: str | Path | None, up_to: int, interval: int = 1) -> list[Recorded]:
    """The texts and the due metrics of steps 1 to ``up_to``, in order of steps; of a step written twice, the newer.

    Torn and foreign lines are passed over. Steps that a resume has superseded are left out, and all that stands before
    a header which no resume follows.
    """
    if path is None or up_to <= 0 or not Path(path).is_file():
        return []
    kept: list[Recorded] = []
    began = False
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            entry = _parsed(line)
            resumed = _resumed_step(entry)
            if resumed is not None:
                kept = [each for each in kept if each.step <= resumed]
            elif began:
                kept = []
            began = isinstance(entry.get("run"), dict)
            recorded = _recorded(entry)
            if recorded is None or not 0 < recorded.step <= up_to:
                continue
            if recorded.text is not None or is_due(recorded.step, interval):
                kept.append(recorded)
    newest = {each.step: each for each in kept if each.text is None}
    texts = [each for each in kept if each.text is not None]
    return sorted([*newest.values(), *texts], key=lambda each: each.step)


def _parsed(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _resumed_step(entry: Mapping[str, Any]) -> int | None:
    mark = entry.get("resume")
    step = finite(mark.get("step")) if isinstance(mark, dict) else None
    return None if step is None else int(step)


def _recorded(entry: Mapping[str, Any]) -> Recorded | None:
    step, moment = finite(entry.get("step")), finite(entry.get("time"))
    if step is None or moment is None:
        return None
    metrics, text = entry.get("metrics"), entry.get("text")
    if isinstance(metrics, dict):
        return Recorded(int(step), moment, metrics)
    if isinstance(text, dict):
        return Recorded(int(step), moment, text=(str(text.get("tag", "text")), str(text.get("text", ""))))
    return None
