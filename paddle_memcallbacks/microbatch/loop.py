"""The slice loop: a batch goes through forward and backward in micro-batches, smaller ones when memory runs out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import paddle

from paddle_memcallbacks.alerts import warn
from paddle_memcallbacks.batches import BatchError, slicing
from paddle_memcallbacks.config import AccumulationConfig
from paddle_memcallbacks.microbatch.errors import MicroBatchError
from paddle_memcallbacks.microbatch.losses import LossMean, primary
from paddle_memcallbacks.microbatch.norms import at_share, norm_layers, running, warn_of_norms
from paddle_memcallbacks.microbatch.precision import Fp32Accumulator
from paddle_memcallbacks.microbatch.probe import BatchView
from paddle_memcallbacks.microbatch.ranks import Ranks, Verdict
from paddle_memcallbacks.microbatch.snapshot import GradMode, StateKeeper, StepSnapshot
from paddle_memcallbacks.microbatch.step import Step, Try, back_to_start, report_of, why_not_replayed
from paddle_memcallbacks.microbatch.weighting import WeightChoice, WeightedSlices, Weighting
from paddle_memcallbacks.oom import OutOfMemory, drop_traceback, is_oom

ForwardBackward = Callable[[Any, float], Any]
ForwardOnly = Callable[[Any], Any]


@dataclass(frozen=True)
class BatchOutcome:
    """What a batch's forwards and backwards gave; the gradients are in the parameters.

    Attributes:
        loss: the batch's loss, detached: a 0-D tensor, or a dict of them where the model gives a mapping.
        micro_batches: slices that the batch went through in.
        micro_batch_size: rows of the largest slice.
        rows: rows of the batch.
        replays: how often the batch was begun again after an out-of-memory error.
    """

    loss: Any
    micro_batches: int
    micro_batch_size: int
    rows: int
    replays: int

    @property
    def mean_loss(self) -> paddle.Tensor:
        """The loss that backward ran on, as a 0-D tensor."""
        return primary(self.loss)


class MicroBatchLoop:
    """Runs every batch of a run in micro-batches whose gradients add up to the whole batch's.

    Gradients must be empty (or zero) where a batch begins: one `run` is one optimizer step.

    Args:
        model: the bare model.
        config: the section ``gradient_accumulation``. Turned off, batches run whole until memory runs out.
        parallel: the layer that the toolkit trains where it is another, e.g. paddle.DataParallel.
        on_oom: ``replay``: halve the micro-batch and repeat the batch; ``raise``: stop with the report.
        optimizer: its parameters belong to the step, besides the model's own.

    Attributes:
        micro_batch_size: rows of a micro-batch; None: the whole batch. May be set (by a plan); halved after an OOM.
        oom_count: out-of-memory errors so far.
        oom_notes: returns lines for the OOM report, e.g. the planner's figures.
    """

    def __init__(
        self,
        model: paddle.nn.Layer,
        config: AccumulationConfig,
        *,
        parallel: paddle.nn.Layer | None = None,
        on_oom: str = "replay",
        optimizer: Any = None,
    ) -> None:
        self._model = model._layers if isinstance(model, paddle.DataParallel) else model
        self._on_oom = on_oom
        self._optimizer = optimizer
        self._ranks = Ranks(model if parallel is None else parallel)
        self._weighting = Weighting(self._model, config)
        self._state = StateKeeper(self._model)
        self._norms = norm_layers(self._model)
        self._steps = config.steps if config.enable else None
        given = config.micro_batch_size if config.enable else None
        self.micro_batch_size: int | None = given if isinstance(given, int) else None
        self._reduction: dict[str, Any] = {}
        self._resumed: dict[str, Any] = {}
        self.oom_count = 0
        self.oom_notes: Callable[[], Sequence[str]] = tuple

    def attach(self, parallel: paddle.nn.Layer, optimizer: Any) -> None:
        """The layer that is trained, and the optimizer, where a toolkit makes them after the loop."""
        self._ranks = Ranks(parallel)
        self._optimizer = optimizer

    @property
    def weight_choice(self) -> WeightChoice | None:
        """What the slices' losses are weighted by; None until a batch was sliced."""
        return self._weighting.choice

    def describe(self) -> str:
        """One line for the user: micro-batch size, weight, trimming."""
        size = "whole batches" if self.micro_batch_size is None else f"micro-batches of {self.micro_batch_size}"
        return f"{size}, {self._weighting.describe()}"

    def run(self, batch: Any, forward_backward: ForwardBackward, forward_only: ForwardOnly) -> BatchOutcome:
        """Forward and backward of one batch, slice by slice, and its loss.

        Args:
            batch: nested tensors, numpy arrays, lists, tuples, mappings with one first axis.
            forward_backward: ``(micro_batch, weight) -> loss``, unweighted; it runs the backward of ``weight * loss``
                itself (`weighted_backward`). The loss is a tensor or a mapping with the key ``loss``.
            forward_only: ``micro_batch -> loss``; the probe's, called without gradients.

        Raises:
            BatchError: the batch's first axes disagree.
            MicroBatchError: the loss cannot be taken apart, or another rank stopped.
            OutOfMemory: memory ran out and no smaller micro-batch is left or allowed.
        """
        parameters = self._parameters()
        rows = self._rows(batch, parameters)
        kept = self._state.keep()
        start = StepSnapshot(self._model, parameters, kept)
        step = Step(batch, rows, parameters, slicing.versions_of(batch, rows), start)
        try:
            attempt = self._until_done(step, forward_backward, forward_only)
        except BaseException:
            # an interrupted batch must not leave its gradients to the next one
            with contextlib.suppress(Exception):
                start.restore()
            raise
        self._ranks.reduce_gradients(parameters)
        self._state.learn(kept)
        return BatchOutcome(attempt.loss, attempt.micro_batches, attempt.size, rows, replays=len(step.sizes) - 1)

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        """While it is open, backward outside `run` leaves gradients on this rank."""
        with self._ranks.no_sync():
            yield

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on with: the micro-batch size that memory has forced, and what it was before."""
        return dict(self._reduction)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a forced size at the next batch, if the size that it replaced is still the configured one."""
        self._resumed = dict(state)

    def _until_done(self, step: Step, forward_backward: ForwardBackward, forward_only: ForwardOnly) -> Try:
        """Try, and try again with smaller micro-batches, until every rank is through or has to stop."""
        while True:
            attempt = self._try(step, forward_backward, forward_only)
            verdict = self._agree(step, attempt)
            if verdict is Verdict.DONE:
                return attempt
            if verdict is Verdict.STOP:
                self._stop(step, attempt)
            self._begin_again(step, attempt)

    # ---- one try

    def _try(self, step: Step, forward_backward: ForwardBackward, forward_only: ForwardOnly) -> Try:
        attempt = Try(self._size_for(step.rows))
        step.sizes.append(attempt.size)
        grad_mode = GradMode()
        try:
            with self._ranks.no_sync():
                view = BatchView.of(step.batch, step.rows)
                slices = self._weighting.slices(view, attempt.size, forward_only)
                self._run_slices(attempt, step, slices, forward_backward)
        except Exception as error:
            attempt.error = error
            grad_mode.restore()
            if is_oom(error):
                # its frames pin this try's activations
                drop_traceback(error)
        return attempt

    def _run_slices(self, attempt: Try, step: Step, slices: WeightedSlices, forward_backward: ForwardBackward) -> None:
        several = len(slices.parts) > 1
        norms = running(self._norms) if several else {}
        warn_of_norms(norms, attempt.size, self._ranks.several)
        accumulator = Fp32Accumulator(step.parameters if several else ())
        mean = LossMean()
        for part, weight in zip(slices.parts, slices.weights, strict=True):
            attempt.micro_batches += 1
            if weight == 0.0:
                # nothing in it counts: its gradient is zero, and its own mean would be 0/0
                continue
            micro_batch = slicing.take(step.batch, part, step.rows) if several else slicing.fresh(step.batch)
            with at_share(norms, len(part.rows) / step.rows):
                mean.add(forward_backward(micro_batch, weight), weight)
            accumulator.after_slice()
        accumulator.finish()
        attempt.loss = mean.value()

    def _rows(self, batch: Any, parameters: Sequence[paddle.Tensor]) -> int:
        try:
            return slicing.batch_rows(batch)
        except BatchError:
            # the other ranks wait for this one's verdict
            self._ranks.agree(Verdict.STOP, parameters)
            raise

    def _size_for(self, rows: int) -> int:
        if self._steps is not None and self.micro_batch_size is None:
            # the first batch sets the size, so that a short last batch takes fewer slices, not smaller ones
            self.micro_batch_size = -(-rows // self._steps)
        self._resume_reduction()
        return min(self.micro_batch_size or rows, rows)

    def _resume_reduction(self) -> None:
        if self._resumed and self._resumed["before"] == self.micro_batch_size:
            self._reduction = self._resumed
            self.micro_batch_size = self._resumed["micro_batch_size"]
        self._resumed = {}

    def _parameters(self) -> list[paddle.Tensor]:
        """Every parameter that a step trains, once."""
        extra = getattr(self._optimizer, "_parameter_list", None) or ()
        found = {id(parameter): parameter for parameter in self._model.parameters()}
        for entry in extra:
            for parameter in entry["params"] if isinstance(entry, dict) else (entry,):
                found.setdefault(id(parameter), parameter)
        return [parameter for parameter in found.values() if not parameter.stop_gradient]

    # ---- after a failed try

    def _agree(self, step: Step, attempt: Try) -> Verdict:
        """What all ranks do now. A replay needs every rank to be able to."""
        mine = Verdict.DONE if attempt.error is None else self._replay_or_stop(step, attempt)
        verdict = self._ranks.agree(mine, step.parameters)
        if verdict is Verdict.REPLAY and self._ranks.several:
            verdict = self._ranks.agree(self._replay_or_stop(step, attempt), step.parameters)
        return verdict

    def _replay_or_stop(self, step: Step, attempt: Try) -> Verdict:
        return Verdict.STOP if why_not_replayed(step, attempt, self._on_oom) else Verdict.REPLAY

    def _begin_again(self, step: Step, attempt: Try) -> None:
        """Everything as it was where the step began, and half the micro-batch."""
        mine = attempt.out_of_memory
        back_to_start(step, attempt)
        self.oom_count += mine
        before = self._reduction.get("before", self.micro_batch_size)
        self.micro_batch_size = max(1, attempt.size // 2)
        self._reduction = {"before": before, "micro_batch_size": self.micro_batch_size}
        where = "" if mine else " on another rank"
        warn(
            f"out of memory{where} with micro-batches of {attempt.size} rows: the batch is replayed, and training goes "
            f"on, with {self.micro_batch_size}. {step.memory_error} To begin with it next time: "
            f"gradient_accumulation: {{micro_batch_size: {self.micro_batch_size}}}"
        )

    def _stop(self, step: Step, attempt: Try) -> NoReturn:
        """Raise the try's own error, or the report where memory ran out."""
        error = attempt.error
        if error is None:
            raise MicroBatchError("another rank stopped in this step; its own log says why")
        refused_after_oom = bool(step.memory_error) and isinstance(error, MicroBatchError)
        if not attempt.out_of_memory and not refused_after_oom:
            raise error
        self.oom_count += attempt.out_of_memory
        why = str(error) if refused_after_oom else why_not_replayed(step, attempt, self._on_oom)
        back_to_start(step, attempt)
        text = report_of(step, why, not refused_after_oom, self._on_oom, self.oom_notes())
        raise OutOfMemory(text) from error
