"""Records for tests, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def header(name: str | None = None, started: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"run": {"started": started, **({"name": name} if name is not None else {}), **more}}


def step(index: int, time: float | None = None, /, **metrics: Any) -> dict[str, Any]:
    named = {tag.replace("__", "/"): value for tag, value in metrics.items()}
    return {"step": index, "time": float(index) if time is None else time, "metrics": named}


def alert(index: int, text: str, kind: str = "memory_growth") -> dict[str, Any]:
    return {"step": index, "time": float(index), "text": {"tag": f"alerts/{kind}", "text": text}}


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
    path.write_text("".join(whole), encoding="utf-8")
    return path
