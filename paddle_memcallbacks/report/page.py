"""Runs side by side: a table for the terminal, and one self-contained HTML page."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich import box
from rich.table import Table
from rich.text import Text as Styled

from paddle_memcallbacks.report import figures, pictures
from paddle_memcallbacks.report.record import Run

_COLUMNS = ("run", "steps", "micro-batch", "held after forward", "peak", "saved", "step time", "skipped", "alerts")
# the terminal's: with names of 13 characters it fits 80
_NARROW = ("run", "micro-\nbatch", "held after\nforward", "peak", "saved", "step\ntime", "skipped", "alerts")
_MOST_ALERTS = 100


def table(runs: Sequence[Run]) -> Table:
    """A row a run: micro-batch size x count, held after forward, highest step peak, what it saves against the run named
    ``baseline`` (else the first), median step time, skipped steps, alerts.
    """
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in _NARROW:
        result.add_column(column, justify="left" if column == "run" else "right", min_width=4, overflow="fold")
    for row in figures.figures_of(runs):
        name, _, *cells = _cells(row, figures.share_text(row))
        result.add_row(*(Styled(cell) for cell in (name, *cells)))
    return result


def write_html(runs: Sequence[Run], path: str | Path) -> None:
    """Write the page: table, pictures, alerts and settings; nothing outside the file is needed.

    Raises:
        OSError: ``path`` cannot be written.
    """
    rows = figures.figures_of(runs)
    base = figures.baseline_of(runs)
    page = _environment().get_template("page.html.jinja")
    text = page.render(
        title=_title(runs),
        written=time.strftime("%Y-%m-%d %H:%M"),
        columns=_COLUMNS,
        rows=[
            {
                "cells": _cells(row, figures.saved_text(row)),
                "colour": pictures.colour_of(index),
                "dash": pictures.dash_of(index),
                "state": row.state,
                "name": row.name,
            }
            for index, row in enumerate(rows)
        ],
        baseline=base.name if base is not None else "",
        pictures=[
            {"title": picture.title, "note": picture.note, "source": _data_uri(picture.png)}
            for picture in pictures.pictures_of(runs, rows)
        ],
        alerts=[(run.name, pictures.colour_of(index), run.alerts) for index, run in enumerate(runs) if run.alerts],
        most_alerts=_MOST_ALERTS,
        settings=[(run.name, pictures.colour_of(index), _settings(run)) for index, run in enumerate(runs)],
    )
    Path(path).write_text(text, encoding="utf-8")


def _cells(row: figures.Figures, saved: str) -> list[str]:
    return [
        row.name,
        str(row.steps),
        figures.slices_text(row),
        figures.size_text(row.held_bytes),
        figures.size_text(row.peak_bytes),
        saved,
        figures.seconds_text(row.step_seconds),
        figures.count_text(row.skipped),
        str(row.alerts),
    ]


def _title(runs: Sequence[Run]) -> str:
    return "Memory of a training run" if len(runs) == 1 else f"Memory of {len(runs)} training runs"


def _settings(run: Run) -> list[tuple[str, str]]:
    """What ran, flat: versions, device, what was active, the user's own facts and keys."""
    plain = [(name, run.header[name]) for name in ("toolkit", "device", "paddle", "library") if run.header.get(name)]
    nested = [
        *_flat("", run.active),
        *_flat("facts", run.header.get("facts")),
        *_flat("config", run.header.get("config")),
    ]
    return [(name, str(value)) for name, value in [*plain, *nested]]


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for key, each in value.items() for pair in _flat(f"{prefix}.{key}" if prefix else str(key), each)]
    return [] if value is None or value == "" or value == [] else [(prefix, value)]


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("paddle_memcallbacks.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
