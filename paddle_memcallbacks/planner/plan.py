"""A plan: what it chooses, what it was made for, and how it holds against another run. Pure; no paddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

# predicted and measured peak that differ by less are not worth a word
_NEAR = 0.005


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


def offer(what: str, key: str, other: Plan) -> str:
    """A sentence for `Plan.alternatives`: what another setting would cost, never taken unasked.

    Args:
        what: e.g. ``AMP O1``.
        key: the config that turns it on, e.g. ``amp: {level: O1}``.
        other: the plan that was made from steps profiled under it.
    """
    return (
        f"{what} ({key}) would need {size_text(other.predicted_peak_bytes)} and {other.predicted_step_seconds:.3g} s a "
        f"step with {other.choice_text()}; it changes the mathematics"
    )


def for_run(plan: Plan, facts: Facts, compared: Sequence[Compared] = ()) -> Plan:
    """The plan with what it was made for."""
    return replace(plan, facts=facts, compared=tuple(compared))


def _row_elements(shape: Sequence[int]) -> int:
    elements = 1
    for size in shape[1:]:
        elements *= size
    return elements


def _larger(shape: Sequence[int], planned: Sequence[int]) -> bool:
    return len(shape) != len(planned) or any(now > then for now, then in zip(shape, planned, strict=True))
