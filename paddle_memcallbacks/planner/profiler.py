"""Profiling a step: a few real steps with markers, after which the training state is exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import paddle

from paddle_memcallbacks import memory
from paddle_memcallbacks.oom import drop_traceback, is_oom
from paddle_memcallbacks.planner.build import Run, StepRuns, build_size
from paddle_memcallbacks.planner.measure import ProfileError, Replacement, measure_step
from paddle_memcallbacks.planner.measured import Profile, SizeProfile
from paddle_memcallbacks.planner.state import TrainingState, optimizers_of
from paddle_memcallbacks.recompute import find_units

# watched, plain, everything recomputed, plain again; one more for each level of nested choices
MOST_STEPS = 5

Progress = Callable[[int, int, str], None]


class PlainOutOfMemory(MemoryError):
    """The step fits with everything recomputed and not without.

    Attributes:
        peak_bytes: the measured peak with everything recomputed.
    """

    def __init__(self, peak_bytes: int) -> None:
        super().__init__("the step ran out of memory with nothing recomputed")
        self.peak_bytes = peak_bytes


class StepProfiler:
    """Measures one model's step, at any number of sizes; a context manager that puts the training state back.

    Args:
        model: the layer that is trained.
        optimizer: None: those that hold the model's parameters are found.
        units: names of units; default `find_units`. Nested ones are choices of which one may be taken.
        replacements: further choices.
        keepers: more objects with state that steps change: a GradScaler, an LR schedule.
        on_progress: called with (steps done, steps in all, what comes next).

    Raises:
        ProfileError: this Paddle cannot reset a peak, or there is no unit.
    """

    def __init__(
        self,
        model: paddle.nn.Layer,
        optimizer: Any = None,
        *,
        units: Iterable[str] | None = None,
        replacements: Sequence[Replacement] = (),
        keepers: Sequence[Any] = (),
        on_progress: Progress | None = None,
    ) -> None:
        if not memory.can_reset_peak():
            raise ProfileError(
                f"profiling needs Paddle 3.0 or later: {paddle.__version__} cannot reset a memory peak. "
                "Write recompute.layers and gradient_accumulation.micro_batch_size by hand"
            )
        self.model = model
        self.units = list(find_units(model) if units is None else units)
        self.replacements = list(replacements)
        if not self.units and not self.replacements:
            raise ProfileError(
                "the model has no repeated blocks to recompute; name its units: units=['encoder.layers.0', ...]"
            )
        optimizers = optimizers_of(model) if optimizer is None else [optimizer]
        self.optimizer = optimizers[0] if optimizers else None
        self._keepers = [*optimizers, *keepers]
        self._layers = _layers(model, self.units, self.replacements)
        self.levels = levels_of(self.units)
        self.excludes = {name: frozenset(o for o in self.units if _nested(o, name)) for name in self.units}
        self._progress = on_progress or (lambda done, total, text: None)
        self.done = 0
        self.total = MOST_STEPS
        self._state: TrainingState | None = None

    def __enter__(self) -> StepProfiler:
        self._state = TrainingState(self.model, self._keepers)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._state is not None
        self._state.restore()
        self._state = None

    def size(
        self, run_step: Callable[[], int | Any], micro_batch_size: int | None = None, *, warm: bool = False
    ) -> SizeProfile:
        """Profile the step that ``run_step`` runs: one forward, backward and optimizer step.

        Args:
            run_step: may return how many micro-batches it ran.
            micro_batch_size: their rows.
            warm: gradients and optimizer state stand already, from an earlier size.

        Everything is recomputed first, so that a size which cannot fit fails before the larger runs are tried.

        Raises:
            PlainOutOfMemory: it fits only recomputed.
        """
        runs = build_runs(self, run_step, warm)
        return build_size(runs, micro_batch_size, self.excludes)

    def recomputed_peak(self, run_step: Callable[[], Any]) -> int:
        """The measured peak of the step with everything recomputed."""
        return max(marker.peak_bytes for marker in self.run(run_step, self.first_level, "recomputed")[0])

    @property
    def first_level(self) -> tuple[str, ...]:
        """Every outermost unit, and every replacement."""
        return (*(self.levels[0] if self.levels else ()), *(r.name for r in self.replacements))

    def run(self, run_step: Callable[[], Any], chosen: Sequence[str], what: str, watch: bool = False) -> Any:
        """One measured run from the same state, and the micro-batches in it."""
        assert self._state is not None
        self._progress(self.done, self.total, what)
        self._state.rewind()
        count: list[int] = []

        def step() -> None:
            result = run_step()
            count.append(result if type(result) is int else 1)

        recompute = [name for name in chosen if name in self._layers and name in self.units]
        replaced = [r for r in self.replacements if r.name in chosen]
        markers, watched = measure_step(
            self.model, self._layers, self.optimizer, step, recompute, replaced, watch=watch
        )
        self.done += 1
        self._progress(self.done, self.total, what)
        return markers, watched, count[0]


def build_runs(profiler: StepProfiler, run_step: Callable[[], Any], warm: bool) -> StepRuns:
    """The runs that a profile is made of."""
    levels = [profiler.first_level, *map(tuple, profiler.levels[1:])]
    if not warm:
        profiler.run(run_step, levels[0], "first step: gradients and optimizer state")
    measured = [Run(level, profiler.run(run_step, level, "recomputed")[0]) for level in levels]
    try:
        watched_markers, watched, _ = profiler.run(run_step, (), "what backward needs", watch=True)
        markers, _, micro_batches = profiler.run(run_step, (), "nothing recomputed")
    except Exception as error:
        drop_traceback(error)
        if not is_oom(error):
            raise
        raise PlainOutOfMemory(max(marker.peak_bytes for marker in measured[0].markers)) from error
    plain = [Run((), markers)]
    # what is left of the steps makes the times steadier
    for _ in range(MOST_STEPS - len(levels) - 2 - (not warm)):
        plain.append(Run((), profiler.run(run_step, (), "nothing recomputed, again")[0]))
    choice_of = {layer: r.name for r in profiler.replacements for layer in r.layers}
    return StepRuns(watched, watched_markers, plain, measured, choice_of, micro_batches)


def profile_step(
    model: paddle.nn.Layer,
    run_step: Callable[[], Any],
    units: Iterable[str] | None = None,
    optimizer: Any = None,
    *,
    replacements: Sequence[Replacement] = (),
    keepers: Sequence[Any] = (),
    on_progress: Progress | None = None,
) -> Profile:
    """Profile one step at the size that ``run_step`` runs it, in at most 5 steps.

    Weights, gradients, buffers, optimizer state, LR schedule and random numbers are afterwards as they were.

    Args:
        model: the layer that is trained.
        run_step: runs one forward, backward and optimizer step on the same batch every time.
        units: names of units; default: the repeated blocks. Nested names are choices of which one may be taken.
        optimizer: default: the one that holds the model's parameters.
        replacements: choices beside recompute, e.g. a vocabulary head in chunks.
        keepers: more objects with state that the step changes: a GradScaler, an LR schedule.
        on_progress: called with (steps done, steps in all, what).

    Raises:
        ProfileError: this Paddle cannot reset a peak (2.6), the model has no units, or the step fits only recomputed.
        RecomputeError: a unit cannot be recomputed.
    """
    profiler = StepProfiler(
        model, optimizer, units=units, replacements=replacements, keepers=keepers, on_progress=on_progress
    )
    with profiler:
        try:
            size = profiler.size(run_step)
        except PlainOutOfMemory as error:
            raise ProfileError("the step fits only recomputed: profile it with a smaller batch") from error
    return Profile((size,), device=paddle.get_device(), device_total_bytes=memory.device_total_bytes())


def levels_of(units: Sequence[str]) -> list[list[str]]:
    """The units by how many others they lie in; none of a level lies in another of it."""
    levels: dict[int, list[str]] = {}
    for name in units:
        levels.setdefault(sum(name.startswith(f"{other}.") for other in units), []).append(name)
    return [levels[depth] for depth in sorted(levels)]


def _nested(one: str, other: str) -> bool:
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _layers(
    model: paddle.nn.Layer, units: Sequence[str], replacements: Sequence[Replacement]
) -> Mapping[str, paddle.nn.Layer]:
    known = dict(model.named_sublayers())
    wanted = [*units, *(layer for r in replacements for layer in r.layers)]
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ProfileError(f"the model has no layer {missing[0]!r}")
    return {name: known[name] for name in wanted}
