"""What the runs share: the recorder of a training, and the comparison of two."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle_memcallbacks.integrations.paddledet  # noqa: F401
from ppdet.engine.callbacks import Callback


class Recorder(Callback):
    """The learning rate and the losses of every step, as PaddleDetection logs them."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.rates: list[float] = []
        self.losses: list[dict[str, float]] = []

    def on_step_end(self, status: dict[str, Any]) -> None:
        if status["mode"] == "train":
            self.rates.append(status["learning_rate"])
            meters = status["training_staus"].meters
            self.losses.append({name: float(meter.deque[-1]) for name, meter in meters.items()})


def recorded(trainer: Any) -> Recorder:
    recorder = Recorder(trainer)
    trainer.register_callbacks([recorder])
    return recorder


def state(trainer: Any) -> dict[str, dict[str, np.ndarray]]:
    """Weights, moving averages and moments as arrays."""
    groups = {"weights": trainer.model.state_dict(), "velocity": trainer.optimizer.state_dict()}
    if trainer.use_ema:
        groups["ema"] = trainer.ema.state_dict
    return {
        group: {name: value.numpy().copy() for name, value in values.items() if hasattr(value, "numpy")}
        for group, values in groups.items()
    }


def difference(first: dict[str, dict[str, np.ndarray]], second: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """Largest absolute difference in each group; infinite where the names differ."""
    found = {}
    for group, values in first.items():
        same_names = list(values) == list(second[group])
        gaps = [float(np.abs(values[name] - second[group][name]).max()) for name in values] if same_names else [np.inf]
        found[group] = max(gaps)
    return found


def places() -> tuple[Path, Path]:
    """The scenes and the folder to write to, from the command line."""
    return Path(sys.argv[1]), Path(sys.argv[2])


def answer(**values: Any) -> None:
    print(json.dumps(values))
