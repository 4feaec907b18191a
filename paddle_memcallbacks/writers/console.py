"""A line on the console every ``interval`` steps."""

from __future__ import annotations

from collections.abc import Mapping

from paddle_memcallbacks.alerts import announce
from paddle_memcallbacks.writers.restore import is_due


class ConsoleWriter:
    """Tells memory, loss scale and loss in one line, every ``interval`` steps and at the first."""

    def __init__(self, interval: int) -> None:
        self._interval = interval

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """The line, where the step is due."""
        if is_due(step, self._interval):
            announce(step_line(step, metrics))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Alerts reach the log by themselves."""

    def close(self) -> None:
        """Nothing is held."""


def step_line(step: int, metrics: Mapping[str, float]) -> str:
    """``step 20  loss 0.61  peak 1.21 GiB (forward 922 MiB, backward 1.21 GiB, step 819 MiB)``; only what is there.

    ``highest so far`` stands for ``peak`` where a step's own peak is not known (paddle 2.6).
    """
    parts = [f"step {step}"]
    if "train/loss" in metrics:
        parts.append(f"loss {metrics['train/loss']:.4g}")
    if "memory/step_peak_gib" in metrics:
        phases = [
            f"{phase} {_size(metrics[f'memory/peak_{phase}_gib'])}"
            for phase in ("forward", "backward", "step")
            if f"memory/peak_{phase}_gib" in metrics
        ]
        parts.append(f"peak {_size(metrics['memory/step_peak_gib'])}" + (f" ({', '.join(phases)})" if phases else ""))
    elif "memory/peak_allocated_gib" in metrics:
        parts.append(f"highest so far {_size(metrics['memory/peak_allocated_gib'])}")
    if "memory/budget_gib" in metrics:
        parts.append(f"budget {_size(metrics['memory/budget_gib'])}")
    if "amp/loss_scale" in metrics:
        parts.append(f"loss scale {metrics['amp/loss_scale']:g}")
    if metrics.get("amp/skipped_steps_total"):
        parts.append(f"skipped {metrics['amp/skipped_steps_total']:.0f}")
    return "  ".join(parts)


def _size(gib: float) -> str:
    mib = gib * 1024
    return f"{mib:.3g} MiB" if mib < 999.5 else f"{gib:.3g} GiB"
