"""A plan, and the small YAML file that holds it: read, edited and committed by people, checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from paddle_memcallbacks.config import ConfigError, nearest_key, read_mapping

VERSION = 1
# predicted and measured peak that differ by less are not worth a word
_NEAR = 0.005


class PlanError(ConfigError):
    """A plan file cannot be used; the message names the key and what it may hold."""


@dataclass(frozen=True)
class Facts:
    """What a plan was made for.

    Attributes:
        device: e.g. ``gpu:0 NVIDIA A100-SXM4-40GB`` or ``cpu``.
        model: the model's class.
        parameters: how many numbers it trains.
        shapes: field of the batch -> shape, the largest that the reader gives.
        versions: package -> version.
    """

    device: str = ""
    model: str = ""
    parameters: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """Another plan beside the chosen one, for the table and the file's reader."""

    name: str
    micro_batch_size: int | None
    units: int
    peak_bytes: int
    step_seconds: float


@dataclass(frozen=True)
class Plan:
    """Micro-batch size and units to recompute, with what they are predicted to cost.

    Attributes:
        recompute: names of the units.
        predicted_peak_bytes: the largest allocated bytes of a step.
        predicted_step_seconds: seconds of an optimizer step over ``batch_rows`` rows (one micro-batch where unknown).
        micro_batch_size: rows of a micro-batch; None: as the step was profiled.
        replace: choices beside recompute, e.g. a vocabulary head in chunks.
        budget_bytes: what it was planned for.
        margin: part of the budget left free.
        peak_at: the part of the step in which the peak stands.
        batch_rows: rows of the batch.
        device: where it was profiled.
        facts: what else it was made for.
        compared: other plans, with their predictions.
        alternatives: what else would help and is never done unasked, as sentences with a key.
    """

    recompute: tuple[str, ...]
    predicted_peak_bytes: int
    predicted_step_seconds: float
    micro_batch_size: int | None = None
    replace: tuple[str, ...] = ()
    budget_bytes: int | None = None
    margin: float = 0.0
    peak_at: str = ""
    batch_rows: int | None = None
    device: str = ""
    facts: Facts = field(default_factory=Facts)
    compared: tuple[Compared, ...] = ()
    alternatives: tuple[str, ...] = ()

    def choice_text(self) -> str:
        """What is chosen, in a few words."""
        units = len(self.recompute)
        parts = [f"{units} unit{'s' if units != 1 else ''} recomputed" if units else "nothing recomputed"]
        parts += [f"with {name}" for name in self.replace]
        if self.micro_batch_size is not None:
            parts.append(f"micro-batches of {self.micro_batch_size}")
        return ", ".join(parts)

    def text(self) -> str:
        """The plan in one line."""
        budget = "" if self.budget_bytes is None else f" under a budget of {size_text(self.budget_bytes)}"
        return (
            f"{self.choice_text()}: predicted peak {size_text(self.predicted_peak_bytes)}{budget}, "
            f"{self.predicted_step_seconds:.3g} s a step"
        )


def size_text(size_bytes: int) -> str:
    """Bytes for people: GiB, or MiB below one."""
    if abs(size_bytes) >= 2**30:
        return f"{size_bytes / 2**30:.2f} GiB"
    return f"{size_bytes / 2**20:.1f} MiB"


def micro_batch_for_shape(plan: Plan, shape_scale: float) -> int | None:
    """Rows of a micro-batch for a batch whose rows are ``shape_scale`` times as large as the plan's.

    Activations grow at least as fast as a row, so a larger row gets proportionally fewer rows; a smaller one keeps the
    plan's. None where the plan has no size.

    Args:
        plan: made for the largest shape that was known then.
        shape_scale: elements of a row now, by those of a row then.
    """
    if plan.micro_batch_size is None:
        return None
    return max(1, int(plan.micro_batch_size / max(1.0, shape_scale)))


def shape_scale(plan: Plan, shapes: Mapping[str, Sequence[int]]) -> float:
    """How much larger a row of this batch is than one of the plan's: the largest ratio of any field's row elements."""
    scales = [1.0] if not plan.facts.shapes else []
    for name, planned in plan.facts.shapes.items():
        if name in shapes and len(planned) > 1:
            scales.append(_row_elements(shapes[name]) / max(1, _row_elements(planned)))
    return max(scales, default=1.0)


def plan_mismatches(plan: Plan, facts: Facts) -> list[str]:
    """Where the plan was made for something else, as sentences; empty where it fits.

    Args:
        plan: as it was read.
        facts: what this run has.
    """
    then, found = plan.facts, []
    for what, before, now in (
        ("the device", then.device, facts.device),
        ("the model", then.model, facts.model),
        ("the number of trained parameters", then.parameters, facts.parameters),
    ):
        if before and now and before != now:
            found.append(f"{what} was {before}, now it is {now}")
    for name, shape in facts.shapes.items():
        planned = then.shapes.get(name)
        if planned is not None and _larger(shape, planned):
            found.append(f"the batch's {name} was {list(planned)}, now it is {list(shape)}, which is larger")
    for package, version in facts.versions.items():
        before_version = then.versions.get(package)
        if before_version is not None and before_version != version:
            found.append(f"{package} was {before_version}, now it is {version}")
    return found


def measured_text(plan: Plan, measured_peak_bytes: int) -> str:
    """Predicted against measured, in one line."""
    ratio = measured_peak_bytes / plan.predicted_peak_bytes - 1
    how = "as predicted" if abs(ratio) < _NEAR else f"{ratio:+.1%} from the prediction"
    over = plan.budget_bytes is not None and measured_peak_bytes > plan.budget_bytes
    end = f", over the budget of {size_text(plan.budget_bytes or 0)}" if over else ""
    predicted, measured = size_text(plan.predicted_peak_bytes), size_text(measured_peak_bytes)
    return f"plan: predicted peak {predicted}, measured {measured} ({how}){end}"


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


def for_run(plan: Plan, facts: Facts, compared: Sequence[Compared] = ()) -> Plan:
    """The plan with what it was made for."""
    return replace(plan, facts=facts, compared=tuple(compared))


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


def _row_elements(shape: Sequence[int]) -> int:
    elements = 1
    for size in shape[1:]:
        elements *= size
    return elements


def _larger(shape: Sequence[int], planned: Sequence[int]) -> bool:
    return len(shape) != len(planned) or any(now > then for now, then in zip(shape, planned, strict=True))
