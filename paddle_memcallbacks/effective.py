"""The start line: what is truly active in this run, in one sentence. Pure text over plain facts."""

from __future__ import annotations

from dataclasses import dataclass

_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True)
class Effective:
    """What is truly active, as plain data (it also goes into the run's record).

    Attributes:
        rows: rows of the batch of one rank and one optimizer step; None before the first batch was seen.
        micro_batch_size: rows that go through forward and backward at once; None where the batch is not sliced.
        ranks: processes that share a step's batch.
        steps_per_epoch: optimizer steps of one epoch; None where the loader has no length.
        amp: e.g. ``float16 O1`` or ``off``.
        amp_note: why AMP is not what was asked for, or what the card is; may be empty.
        units: how many recompute units are switched on, and of how many found.
        units_found: how many units the model has.
        budget_bytes: the peak that a step may reach; None where none was set.
        weight: how a micro-batch's share of the loss is weighted.
    """

    rows: int | None = None
    micro_batch_size: int | None = None
    ranks: int = 1
    steps_per_epoch: int | None = None
    amp: str = "off"
    amp_note: str = ""
    units: int = 0
    units_found: int = 0
    budget_bytes: int | None = None
    weight: str = "found"

    def line(self) -> str:
        """The one line that is told at the start."""
        parts = [self._batch(), f"AMP {self.amp}" + (f" ({self.amp_note})" if self.amp_note else "")]
        if self.steps_per_epoch is not None:
            parts.insert(1, f"{self.steps_per_epoch} steps an epoch")
        parts.append(f"recompute {self.units} of {self.units_found} units" if self.units else "recompute off")
        parts.append(f"budget {_size(self.budget_bytes)}" if self.budget_bytes else "no budget")
        return "active: " + ", ".join(parts)

    def _batch(self) -> str:
        if self.rows is None:
            return f"batch of {self.ranks} rank(s)" if self.ranks > 1 else "batch as the loader gives it"
        micro = min(self.micro_batch_size or self.rows, self.rows)
        slices = -(-self.rows // micro)
        return f"micro-batch {micro} x accumulation {slices} x ranks {self.ranks} = batch {self.rows * self.ranks}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.1f} MiB"
