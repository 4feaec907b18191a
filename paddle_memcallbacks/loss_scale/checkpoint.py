"""The scaler's state as plain values, and back, bit for bit. Paddle's own load raises on a disabled scaler's state."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddle_memcallbacks.alerts import announce, warn

if TYPE_CHECKING:
    from paddle_memcallbacks.loss_scale.watch import LossScaleWatch

VERSION = 1


def scaler_state(scaler: Any) -> dict[str, Any]:
    """``scaler.state_dict()`` with the scale as a float (exact for a float32); {} for a disabled scaler or None."""
    state = dict(scaler.state_dict()) if scaler is not None else {}
    if "scale" in state:
        state["scale"] = float(np.asarray(state["scale"]).reshape(-1)[0])
    return state


def restore_scaler(scaler: Any, state: Mapping[str, Any] | None) -> bool:
    """Load what `scaler_state` or ``scaler.state_dict()`` gave. False, with a line in the log, if it starts fresh."""
    if not scaler.is_enable():
        if state:
            announce("a loss scale was saved, but loss scaling is off now: it is not used")
        return False
    if not state:
        announce("the saved loss-scale state is empty (it was saved without loss scaling): the loss scale starts fresh")
        return False
    missing = scaler.state_dict().keys() - state.keys()
    if missing:
        warn(f"the saved loss-scale state lacks {', '.join(sorted(missing))}: the loss scale starts fresh")
        return False
    scale = np.asarray(state["scale"], dtype=np.float32).reshape(-1)[:1]
    scaler.load_state_dict({**state, "scale": scale})
    return True


def save_scaler_state(path: str | Path, watch: LossScaleWatch) -> None:
    """Write the watch's state as JSON; a reader never sees half a file."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.write_text(json.dumps(watch.state_dict(), indent=1), encoding="utf-8")
    os.replace(partial, target)


def load_scaler_state(path: str | Path, watch: LossScaleWatch) -> bool:
    """Read what `save_scaler_state` wrote. False, with a line in the log, where there is nothing and it starts fresh.

    Raises:
        ValueError: the file is not what `save_scaler_state` writes.
    """
    source = Path(path)
    if not source.exists():
        announce(f"no loss-scale state at {source}: the loss scale and its counters start fresh")
        return False
    try:
        state = json.loads(source.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{source} is not a saved loss-scale state: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{source} is not a saved loss-scale state: it holds a {type(state).__name__}")
    watch.load_state_dict(state)
    return bool(state)
