"""What a run's loss scale did, for the end of the run. Plain data, no paddle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Record:
    """The history of a run, run-length coded so that it stays short.

    Attributes:
        scales: ``[step, scale]``: from the end of that step on the scale was this.
        skipped: ``[first, last]`` stretches of skipped steps, both ends included.
        layers: where non-finite values arose, by layer: kind, first step, and how often it was named.
        actions: what was done about an alert: step, action, the alert's kind.
    """

    scales: list[list[float]] = field(default_factory=list)
    skipped: list[list[int]] = field(default_factory=list)
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    actions: list[dict[str, Any]] = field(default_factory=list)

    def add_scale(self, step: int, scale: float | None) -> None:
        if scale is not None and (not self.scales or self.scales[-1][1] != scale):
            self.scales.append([step, scale])

    def add_skip(self, step: int) -> None:
        if self.skipped and self.skipped[-1][1] == step - 1:
            self.skipped[-1][1] = step
        else:
            self.skipped.append([step, step])

    def add_layer(self, step: int, layer: str, kind: str) -> None:
        known = self.layers.setdefault(layer, {"kind": kind, "step": step, "times": 0})
        known["times"] += 1

    def add_action(self, step: int, action: str, kind: str) -> None:
        self.actions.append({"step": step, "action": action, "alert": kind})

    def skipped_steps(self) -> list[int]:
        return [step for first, last in self.skipped for step in range(first, last + 1)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "scales": [list(pair) for pair in self.scales],
            "skipped_ranges": [list(pair) for pair in self.skipped],
            "layers": {layer: dict(known) for layer, known in self.layers.items()},
            "actions": [dict(action) for action in self.actions],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        return cls(
            scales=[list(pair) for pair in values.get("scales", [])],
            skipped=[list(pair) for pair in values.get("skipped_ranges", [])],
            layers={layer: dict(known) for layer, known in values.get("layers", {}).items()},
            actions=[dict(action) for action in values.get("actions", [])],
        )
