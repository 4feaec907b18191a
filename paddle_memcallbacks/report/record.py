"""A run's JSON lines as data. Torn and foreign lines are passed over; what a resume superseded is left out."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

PATTERN = "memcallbacks*.jsonl"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        index: counts from 1.
        time_seconds: when it was written, since the epoch.
        metrics: by tag; NaN where the record says null.
        segment: counts the process starts that the record holds; a resumed run has several.
    """

    index: int
    time_seconds: float
    metrics: Mapping[str, float]
    segment: int = 0


@dataclass(frozen=True)
class Text:
    """An alert, or another text, at a step."""

    step: int
    tag: str
    text: str
    time_seconds: float = math.nan


@dataclass(frozen=True)
class Run:
    """A run as its record tells it.

    Attributes:
        name: from the header, or the record's folder.
        header: versions, device, config and facts of the newest start, and ``first_started``; may be empty.
        active: what was truly active; empty where it was not recorded.
        steps: in order, each index once.
        texts: alerts and other texts, in order.
        end: the record's last line; None where the run was killed or still goes on.
        path: the record.
    """

    name: str
    header: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    active: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    steps: tuple[Step, ...] = ()
    texts: tuple[Text, ...] = ()
    end: Mapping[str, Any] | None = None
    path: Path | None = None

    def points(self, tag: str) -> list[tuple[int, float]]:
        """(step, value) of every step that has the tag."""
        return [(step.index, step.metrics[tag]) for step in self.steps if tag in step.metrics]

    def values(self, tag: str) -> list[float]:
        """The tag's values, in order of steps; NaN and infinities included."""
        return [value for _, value in self.points(tag)]

    def finite(self, tag: str) -> list[float]:
        """The tag's finite values, in order of steps."""
        return [value for value in self.values(tag) if math.isfinite(value)]

    def last(self, tag: str, default: float = math.nan) -> float:
        """The tag's last value."""
        values = self.values(tag)
        return values[-1] if values else default

    def step_seconds(self) -> list[float]:
        """Seconds between consecutive steps of one process; pauses between a stop and its resume are no step."""
        return [
            later.time_seconds - earlier.time_seconds
            for earlier, later in zip(self.steps, self.steps[1:], strict=False)
            if later.segment == earlier.segment and later.index == earlier.index + 1
        ]

    @property
    def alerts(self) -> tuple[Text, ...]:
        """Texts whose tag begins with ``alerts/``."""
        return tuple(text for text in self.texts if text.tag.startswith("alerts/"))


def read_run(path: str | Path) -> Run:
    """The run of one record, or of a folder that holds one.

    Raises:
        FileNotFoundError: there is no such record.
    """
    path = Path(path)
    if path.is_dir():
        records = sorted(path.glob(PATTERN))
        if not records:
            raise FileNotFoundError(f"{path} holds no {PATTERN}")
        path = records[0]
    with path.open(encoding="utf-8", errors="replace") as lines:
        run = parse_run(lines)
    return replace(run, name=run.name or path.resolve().parent.name, path=path)


def read_runs(logdir: str | Path) -> list[Run]:
    """All runs below a folder (or the one of a record), in order of their starts.

    Where two runs have the same name in their headers, runs are named by their folders.
    """
    logdir = Path(logdir)
    if logdir.is_file():
        return [read_run(logdir)]
    runs = [run for run in map(read_run, sorted(logdir.rglob(PATTERN))) if run.header or run.steps]
    counts = Counter(run.name for run in runs)
    named = [run if counts[run.name] == 1 else replace(run, name=_place(run, logdir)) for run in runs]
    return sorted(named, key=_started)


def parse_run(lines: Iterable[str]) -> Run:
    """The run of a record's lines; its name is empty where the header has none."""
    header, active, end = _NOTHING, _NOTHING, None
    steps: dict[int, Step] = {}
    texts: list[Text] = []
    segment = -1
    after_header = False
    for line in lines:
        entry = _entry(line)
        resumed = _section(entry, "resume")
        if resumed is not None:
            last = _integer(resumed.get("step"), 0)
            steps = {index: step for index, step in steps.items() if index <= last}
            texts = [text for text in texts if text.step <= last]
        elif after_header:
            steps, texts, header = {}, [], _as_first(header)
        opening = _section(entry, "run")
        after_header = opening is not None
        if opening is not None:
            header, end = {"first_started": header.get("first_started"), **opening}, None
            segment += 1
        active = _section(entry, "active") or active
        end = _section(entry, "end") or end
        step = _step(entry, max(segment, 0))
        if step is not None:
            # a step written again is the newer one, and stands last
            steps.pop(step.index, None)
            steps[step.index] = step
        text = _text(entry)
        if text is not None:
            texts.append(text)
    if after_header:
        steps, texts, header = {}, [], _as_first(header)
    ordered = tuple(steps[index] for index in sorted(steps))
    return Run(str(header.get("name") or ""), header, active, ordered, tuple(texts), end)


def _as_first(header: Mapping[str, Any]) -> dict[str, Any]:
    return {**header, "first_started": header.get("started")}


def _place(run: Run, logdir: Path) -> str:
    assert run.path is not None
    folder = run.path.parent.relative_to(logdir).as_posix()
    stem = run.path.stem.removeprefix("memcallbacks").strip("._-")
    name = logdir.resolve().name if folder == "." else folder
    return f"{name}/{stem}" if stem else name


def _started(run: Run) -> tuple[float, str]:
    started = _number(run.header.get("first_started"))
    if math.isnan(started) and run.steps:
        started = run.steps[0].time_seconds
    return (started if math.isfinite(started) else math.inf, run.name)


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _section(entry: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = entry.get(name)
    return value if isinstance(value, dict) else None


def _step(entry: Mapping[str, Any], segment: int) -> Step | None:
    metrics, index = _section(entry, "metrics"), _integer(entry.get("step"), -1)
    if metrics is None or index < 0:
        return None
    values = {str(tag): _number(value) for tag, value in metrics.items()}
    return Step(index, _number(entry.get("time")), values, segment)


def _text(entry: Mapping[str, Any]) -> Text | None:
    text, step = _section(entry, "text"), _integer(entry.get("step"), -1)
    if text is None or step < 0:
        return None
    return Text(step, str(text.get("tag", "")), str(text.get("text", "")), _number(entry.get("time")))


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _integer(value: Any, default: int) -> int:
    number = _number(value)
    return int(number) if math.isfinite(number) else default
