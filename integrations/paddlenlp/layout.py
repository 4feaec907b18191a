"""Resuming: where in the data a checkpoint stands, under this run's layout of batches. Pure, no paddle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paddle_memcallbacks.config import ConfigError


@dataclass(frozen=True)
class Layout:
    """How steps map to data.

    Attributes:
        batch_rows: rows of one optimizer step over all ranks.
        steps_per_epoch: optimizer steps of an epoch; None where the loader has no length.
    """

    batch_rows: int
    steps_per_epoch: int | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_resume(step: int, saved: Layout, now: Layout, saved_by: str) -> str:
    """Whether step ``step`` of ``saved`` stands at the same data under ``now``.

    Returns:
        A line for the user: how the checkpoint is read.

    Raises:
        ConfigError: another batch size, or a position that this layout cannot express.
    """
    if saved.batch_rows != now.batch_rows:
        raise ConfigError(
            f"the checkpoint of step {step} was trained with {saved.batch_rows} rows a step ({saved_by}), this run has "
            f"{now.batch_rows}. Resume with per_device_train_batch_size x gradient_accumulation.steps x ranks = "
            f"{saved.batch_rows}, or pass --ignore_data_skip and accept that data positions differ."
        )
    if saved.steps_per_epoch == now.steps_per_epoch or None in (saved.steps_per_epoch, now.steps_per_epoch):
        return f"resumed at step {step} of the same layout ({saved_by})"
    if step <= min(saved.steps_per_epoch or 0, now.steps_per_epoch or 0):
        return (
            f"resumed at step {step}, in the first epoch of a checkpoint by {saved_by}: "
            f"{saved.steps_per_epoch} steps an epoch there, {now.steps_per_epoch} here (the unfinished window is one)"
        )
    raise ConfigError(
        f"the checkpoint of step {step} counts {saved.steps_per_epoch} steps an epoch ({saved_by}), this run counts "
        f"{now.steps_per_epoch}, because the Trainer's own accumulation drops an epoch's unfinished window. Finish "
        "that run without MemoryCallback, or pass --ignore_data_skip and accept that data positions differ."
    )
