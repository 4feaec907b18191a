"""Which of the toolkit's own settings this library takes over, decided before the first step. Pure, no paddle."""

from __future__ import annotations

from dataclasses import dataclass

from paddle_memcallbacks.config import AccumulationConfig, ConfigError, RecomputeConfig

# above this a larger micro-batch is nearly always there for the taking
MANY_STEPS = 16


@dataclass(frozen=True)
class Accumulation:
    """How a batch is read and sliced.

    Attributes:
        factor: the reader's batch size is multiplied by it.
        micro_batch_size: rows of a slice; None leaves the batch whole (or to the planner).
        notes: lines for the user.
    """

    factor: int
    micro_batch_size: int | None
    notes: tuple[str, ...] = ()


def decide_accumulation(
    section: AccumulationConfig, explicit: bool, native_steps: int, per_device_batch: int
) -> Accumulation:
    """Settle our keys against ``--gradient_accumulation_steps``.

    Args:
        section: our keys.
        explicit: whether the user wrote the section at all.
        native_steps: the toolkit's gradient_accumulation_steps.
        per_device_batch: the toolkit's per_device_train_batch_size.

    Raises:
        ConfigError: the two contradict each other; both are named.
    """
    if not section.enable:
        return _without_ours(explicit, native_steps, per_device_batch)
    if section.steps is not None:
        if native_steps not in (1, section.steps):
            raise ConfigError(
                f"gradient_accumulation.steps: {section.steps} contradicts gradient_accumulation_steps={native_steps}. "
                "Set one of them, or both to the same number."
            )
        return Accumulation(section.steps, per_device_batch, _notes(section.steps, per_device_batch, native_steps))
    batch = per_device_batch * native_steps
    notes = _notes(native_steps, per_device_batch, native_steps) if native_steps > 1 else ()
    if section.micro_batch_size == "auto":
        return Accumulation(native_steps, None, notes)
    micro = int(section.micro_batch_size or batch)
    if micro > batch:
        notes += (
            f"gradient_accumulation.micro_batch_size: {micro} is larger than the batch of {batch}: nothing to slice.",
        )
    return Accumulation(native_steps, min(micro, batch), notes)


def _without_ours(explicit: bool, native_steps: int, per_device_batch: int) -> Accumulation:
    if native_steps == 1:
        return Accumulation(1, None)
    if explicit:
        raise ConfigError(
            f"gradient_accumulation.enable: false contradicts gradient_accumulation_steps={native_steps}. "
            "Set gradient_accumulation_steps to 1, or leave our key out."
        )
    return Accumulation(native_steps, per_device_batch, _notes(native_steps, per_device_batch, native_steps))


def _notes(steps: int, micro: int, native_steps: int) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if native_steps > 1:
        notes += (
            f"gradient_accumulation_steps={native_steps} is taken over by gradient_accumulation: the reader gives "
            f"{steps * micro} rows a step, in micro-batches of {micro}; the Trainer's own accumulation is off.",
        )
    if steps > MANY_STEPS:
        notes += (
            f"gradient_accumulation of {steps} steps is a lot: a larger micro-batch with recompute is usually faster "
            "(see `paddle-mem plan`).",
        )
    return notes


def decide_recompute(section: RecomputeConfig, explicit: bool, native: bool) -> tuple[RecomputeConfig, tuple[str, ...]]:
    """Settle our keys against ``--recompute``.

    Returns:
        The section that holds, and lines for the user.

    Raises:
        ConfigError: ours is off by name while the toolkit's is on.
    """
    if not native:
        return section, ()
    if not section.enable and explicit:
        raise ConfigError(
            "recompute.enable: false contradicts recompute=True of the Trainer's arguments. Set only one of them."
        )
    taken = section if section.enable else RecomputeConfig(enable=True, layers="auto")
    note = (
        "recompute=True is taken over by recompute: the units are recomputed by this library, the Trainer's own "
        "recompute (which ignores layers that do not know it) is off."
    )
    return taken, (note,)
