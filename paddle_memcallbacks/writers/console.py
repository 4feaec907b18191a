"""A line on the console every ``interval`` steps."""

from __future__ import annotations

from collections.abc import Mapping

from paddle_memcallbacks.alerts import announce


class ConsoleWriter:
    """Tells memory, loss scale and loss in one line, every ``interval`` steps and at the first."""

    def __init__(self, interval: int) -> None:
        self._interval = interval

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """The line, where the step is due."""
        if step == 1 or step % self._interval == 0:
            announce(step_line(step, metrics))

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Alerts reach the log by themselves."""

    def close(self) -> None:
        """Nothing is held."""


def step_line(step: int, metrics: Mapping[str, float]) -> str:
    """``step 20  loss 0.61  peak 1.21 GiB (forward 0.90, backward 1.21, step 0.80)``; what is missing is left out."""
    parts = [f"step {step}"]
    if "train/loss" in metrics:
        parts.append(f"loss {metrics['train/loss']:.4g}")
    peak = metrics.get("memory/step_peak_gib", metrics.get("memory/peak_allocated_gib"))
    if peak is not None:
        scale, unit = (1.0, "GiB") if peak >= 1 else (1024.0, "MiB")
        phases = [
            f"{phase} {scale * metrics[f'memory/peak_{phase}_gib']:.4g}"
            for phase in ("forward", "backward", "step")
            if f"memory/peak_{phase}_gib" in metrics
        ]
        parts.append(f"peak {scale * peak:.4g} {unit}" + (f" ({', '.join(phases)})" if phases else ""))
    if "memory/budget_gib" in metrics:
        parts.append(f"budget {metrics['memory/budget_gib']:.3g} GiB")
    if "amp/loss_scale" in metrics:
        parts.append(f"loss scale {metrics['amp/loss_scale']:g}")
    if metrics.get("amp/skipped_steps_total"):
        parts.append(f"skipped {metrics['amp/skipped_steps_total']:.0f}")
    return "  ".join(parts)
