"""``paddle-mem verify``: one step of the user's own model whole, in micro-batches and recomputed, compared."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from rich.console import Console
from rich.table import Table

from paddle_memcallbacks.batches import BatchError, batch_rows
from paddle_memcallbacks.microbatch import MicroBatchError, MicroBatchLoop, StepSnapshot
from paddle_memcallbacks.microbatch.norms import norm_layers, running
from paddle_memcallbacks.microbatch.quiet import quiet
from paddle_memcallbacks.recompute import RecomputeError, find_units, recompute_units

# a whole batch's gradient and its micro-batches' sum differ by rounding alone: under 1e-6 for transformers, and up to a
# few times that in deep convolutions, whose sums are longer
ROUNDING = 5e-6

Gradients = dict[str, np.ndarray]

_NORMS = (
    "BatchNorm normalises by the micro-batch, so its gradients are approximate whatever the weight is; use GroupNorm, "
    "SyncBatchNorm or frozen statistics"
)


@dataclass(frozen=True)
class Verdict:
    """How one way of running the step compares with the whole batch, for a group of parameters.

    Attributes:
        way: ``micro-batches of 8``, ``recompute of 4 units``.
        group: the parameters' common prefix; empty for all of them.
        relative: relative L2 difference of the gradients; None where the way was refused.
        why: why it was refused.
    """

    way: str
    group: str
    relative: float | None
    why: str = ""

    @property
    def word(self) -> str:
        """``exact``, ``approximate (3.7e-02)`` or ``refused``."""
        if self.relative is None:
            return "refused"
        if self.relative == 0:
            return "exact, bit for bit"
        if self.relative <= ROUNDING:
            return f"exact to rounding ({self.relative:.1e})"
        return f"approximate ({self.relative:.1e})"


def group_of(name: str) -> str:
    """The first two dotted parts of a parameter's layer: ``ernie.encoder.layers.0.weight`` -> ``ernie.encoder``."""
    return ".".join(name.split(".")[:-1][:2]) or name


def compare(way: str, whole: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[Verdict]:
    """A verdict for each group of parameters.

    Args:
        way: how ``other`` was run.
        whole: gradient by parameter name, of the whole batch.
        other: the same, of the other way; a gradient that one of them lacks differs infinitely.
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys([*whole, *other]):
        groups.setdefault(group_of(name), []).append(name)
    return [Verdict(way, group, _relative(whole, other, names)) for group, names in groups.items()]


def _relative(whole: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], names: Iterable[str]) -> float:
    difference = norm = 0.0
    for name in names:
        if name not in whole or name not in other:
            return math.inf
        difference += float(((whole[name] - other[name]) ** 2).sum())
        norm += float((whole[name] ** 2).sum())
    return math.sqrt(difference / norm) if norm > 0 else (0.0 if difference == 0 else math.inf)


class Verifier:
    """Runs one batch's forward and backward in several ways from one and the same state.

    Args:
        model: the bare model.
        loop: the run's micro-batch loop.
        batch: a real batch.
        forward_backward, forward_only: as `Session.run_batch` takes them.
    """

    def __init__(
        self,
        model: paddle.nn.Layer,
        loop: MicroBatchLoop,
        batch: Any,
        forward_backward: Callable[[Any, Any], Any],
        forward_only: Callable[[Any], Any],
    ) -> None:
        self._model, self._loop, self._batch = model, loop, batch
        self._functions = forward_backward, forward_only

    def verify(self, units: list[str]) -> list[Verdict]:
        """Micro-batches (dropout off, since slices draw their own masks) and recompute (dropout as it is)."""
        rows = batch_rows(self._batch)
        configured = self._loop.micro_batch_size
        size = min(configured or max(rows // 4, 1), rows)
        snapshot = StepSnapshot(self._model)
        try:
            verdicts = self._micro_batches(rows, size)
            verdicts += self._recompute(rows, units)
        finally:
            self._loop.micro_batch_size = configured
            snapshot.restore()
        return verdicts

    def _micro_batches(self, rows: int, size: int) -> list[Verdict]:
        way = f"micro-batches of {size} (batch of {rows})"
        if size >= rows:
            return [Verdict(way, "", None, "the batch has one row, there is nothing to slice")]
        if running(norm_layers(self._model)):
            return [Verdict(way, "", None, _NORMS)]
        try:
            with quiet(self._model) as still, _stays_quiet(self._model), paddle.enable_grad():
                whole = self._gradients(rows)
                still.rewind()
                sliced = self._gradients(size)
        except (MicroBatchError, BatchError) as error:
            return [Verdict(way, "", None, str(error))]
        return compare(way, whole, sliced)

    def _recompute(self, rows: int, units: list[str]) -> list[Verdict]:
        way = f"recompute of {len(units)} units"
        if not units:
            return [Verdict("recompute", "", None, "no repeated blocks were found; name units in recompute.layers")]
        plain = self._gradients(rows)
        try:
            with recompute_units(self._model, units):
                recomputed = self._gradients(rows)
        except RecomputeError as error:
            return [Verdict(way, "", None, str(error))]
        return compare(way, plain, recomputed)

    def _gradients(self, size: int) -> Gradients:
        """Gradients of one step in micro-batches of ``size``, from the state that the run is in."""
        snapshot = StepSnapshot(self._model)
        try:
            self._loop.micro_batch_size = size
            self._loop.run(self._batch, *self._functions)
            return {
                name: parameter.grad.astype("float64").numpy()
                for name, parameter in self._model.named_parameters()
                if parameter.grad is not None
            }
        finally:
            snapshot.restore()


@contextlib.contextmanager
def _stays_quiet(model: paddle.nn.Layer) -> Iterator[None]:
    """Toolkits call ``model.train()`` in every step, which would wake the dropout layers."""
    model.__dict__["train"] = lambda: model
    try:
        yield
    finally:
        model.__dict__.pop("train", None)


def verify_and_stop(console: Console) -> Callable[..., None]:
    """For `RunDriver.first_batch`: verify on the first batch, print the verdicts, end the script.

    The script ends with status 0 where everything is exact, 1 where something is approximate or refused.
    """

    def first_batch(session: Any, batch: Any, forward_backward: Any, forward_only: Any) -> None:
        switch = session.switch
        if switch is not None:
            switch.remove()
        units = list(switch.names) if switch is not None else find_units(session.bare_model)
        with console.status("one step whole, in micro-batches, recomputed"):
            verdicts = Verifier(session.bare_model, session.loop, batch, forward_backward, forward_only).verify(units)
        console.print(verdict_table(verdicts))
        session.close("verify")
        raise SystemExit(0 if all(verdict.word.startswith("exact") for verdict in verdicts) else 1)

    return first_batch


def verdict_table(verdicts: list[Verdict]) -> Table:
    """The verdicts as a table."""
    table = Table(title="gradients against the whole batch")
    table.add_column("way")
    table.add_column("parameters")
    table.add_column("verdict")
    for verdict in verdicts:
        table.add_row(verdict.way, verdict.group or "all", f"{verdict.word}{': ' if verdict.why else ''}{verdict.why}")
    return table
