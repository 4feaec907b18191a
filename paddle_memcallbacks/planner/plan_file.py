"""The plan's file: a small YAML that people read, edit and commit, checked when it is read. No paddle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paddle_memcallbacks.config import ConfigError, nearest_key, read_mapping
from paddle_memcallbacks.planner.plan import Facts, Plan, size_text

VERSION = 1


class PlanError(ConfigError):
    """A plan file cannot be used; the message names the key and what it may hold."""


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan as a YAML file with a few lines on top that say what it is."""
    Path(path).write_text(plan_yaml(plan), encoding="utf-8")


def plan_yaml(plan: Plan) -> str:
    """The file's text."""
    head = ["A memory plan of paddle_memcallbacks. To use it: memory: {plan: THIS_FILE}", plan.text()]
    if plan.peak_at:
        head.append(f"The peak stands at: {plan.peak_at}")
    head += [
        f"{other.name}: peak {size_text(other.peak_bytes)}, {other.step_seconds:.3g} s a step"
        for other in plan.compared
    ]
    head += [f"Not done unasked: {text}" for text in plan.alternatives]
    comments = "".join(f"# {line}\n" for line in head)
    data: dict[str, Any] = {
        "version": VERSION,
        "micro_batch_size": plan.micro_batch_size,
        "recompute": list(plan.recompute),
        "replace": list(plan.replace),
        "predicted": {
            "peak_bytes": plan.predicted_peak_bytes,
            "step_seconds": round(plan.predicted_step_seconds, 6),
            "peak_at": plan.peak_at,
        },
        "budget": {"bytes": plan.budget_bytes, "margin": plan.margin},
        "made_for": {
            "batch_rows": plan.batch_rows,
            "device": plan.facts.device or plan.device,
            "model": plan.facts.model,
            "parameters": plan.facts.parameters,
            "shapes": {name: list(shape) for name, shape in plan.facts.shapes.items()},
            "versions": dict(plan.facts.versions),
        },
    }
    return comments + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


# key -> the types that it may hold
_KEYS: dict[str, dict[str, tuple[type, ...]]] = {
    "": {
        "version": (int,),
        "micro_batch_size": (int, type(None)),
        "recompute": (list,),
        "replace": (list,),
        "predicted": (dict,),
        "budget": (dict,),
        "made_for": (dict,),
    },
    "predicted": {"peak_bytes": (int,), "step_seconds": (int, float), "peak_at": (str,)},
    "budget": {"bytes": (int, type(None)), "margin": (int, float)},
    "made_for": {
        "batch_rows": (int, type(None)),
        "device": (str,),
        "model": (str,),
        "parameters": (int, type(None)),
        "shapes": (dict,),
        "versions": (dict,),
    },
}


def load_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises:
        PlanError: no such file, no plan in it, an unknown key (the nearest is named) or a value of another type.
    """
    try:
        name, data = read_mapping(path)
    except ConfigError as error:
        raise PlanError(f"plan: {error}") from error
    return plan_from(data, name)


def plan_from(data: Mapping[str, Any], where: str = "plan") -> Plan:
    """The plan that a mapping of the file's keys describes. Raises PlanError."""
    for section, keys in _KEYS.items():
        _check(data if not section else data.get(section, {}), section, keys, where)
    if data.get("version", VERSION) != VERSION:
        raise PlanError(f"{where}: version {data['version']} is unknown; this package reads version {VERSION}")
    for key in ("recompute", "replace"):
        names = data.get(key, [])
        if not all(isinstance(name, str) for name in names):
            raise PlanError(f"{where}: {key} is a list of layer names")
    size = data.get("micro_batch_size")
    if size is not None and size < 1:
        raise PlanError(f"{where}: micro_batch_size is at least 1, not {size}")
    predicted, budget, made_for = (data.get(key, {}) for key in ("predicted", "budget", "made_for"))
    return Plan(
        recompute=tuple(data.get("recompute", ())),
        replace=tuple(data.get("replace", ())),
        micro_batch_size=size,
        predicted_peak_bytes=predicted.get("peak_bytes", 0),
        predicted_step_seconds=float(predicted.get("step_seconds", 0.0)),
        peak_at=predicted.get("peak_at", ""),
        budget_bytes=budget.get("bytes"),
        margin=float(budget.get("margin", 0.0)),
        batch_rows=made_for.get("batch_rows"),
        device=made_for.get("device", ""),
        facts=Facts(
            device=made_for.get("device", ""),
            model=made_for.get("model", ""),
            parameters=made_for.get("parameters"),
            shapes=_shapes(made_for.get("shapes", {}), where),
            versions={str(key): str(value) for key, value in made_for.get("versions", {}).items()},
        ),
    )


def _check(section: Any, name: str, keys: Mapping[str, tuple[type, ...]], where: str) -> None:
    dot = f"{name}." if name else ""
    for key, value in section.items():
        if key not in keys:
            near = nearest_key(str(key), keys)
            hint = f"; did you mean {dot}{near}?" if near else f"; valid: {', '.join(keys)}"
            raise PlanError(f"{where}: unknown key {dot}{key}{hint}")
        if not isinstance(value, keys[key]) or (isinstance(value, bool)):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in keys[key])
            raise PlanError(f"{where}: {dot}{key} is {value!r}; it must be {wanted}")


def _shapes(shapes: Mapping[str, Any], where: str) -> dict[str, tuple[int, ...]]:
    for name, shape in shapes.items():
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise PlanError(f"{where}: made_for.shapes.{name} is {shape!r}; it must be a list of whole numbers")
    return {str(name): tuple(shape) for name, shape in shapes.items()}
