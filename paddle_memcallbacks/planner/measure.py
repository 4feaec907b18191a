"""One measured run of a step: some units recomputed, markers around all, the allocator's peaks between them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import paddle

from paddle_memcallbacks import memory
from paddle_memcallbacks.planner.markers import Marker, Recorder
from paddle_memcallbacks.planner.saved import SavedWatch, Watched, tensors_behind
from paddle_memcallbacks.recompute import in_second_pass, recompute_units


class ProfileError(RuntimeError):
    """A step cannot be profiled; the message says why and what to do."""


@dataclass(frozen=True)
class Replacement:
    """A choice that is not recompute: it changes how some layers compute, e.g. the vocabulary head in chunks.

    Attributes:
        name: what plans call it.
        layers: names of the layers whose part of the step it changes.
        switch: called for a context manager that turns it on.
    """

    name: str
    layers: tuple[str, ...]
    switch: Callable[[], AbstractContextManager[Any]]


def measure_step(
    model: paddle.nn.Layer,
    layers: Mapping[str, paddle.nn.Layer],
    optimizer: Any,
    run_step: Callable[[], Any],
    recompute: Sequence[str] = (),
    replacements: Sequence[Replacement] = (),
    watch: bool = False,
) -> tuple[list[Marker], Watched]:
    """Run the step once and return its markers and, with ``watch``, what it saved."""
    watcher = SavedWatch(model, tensors_behind(run_step)) if watch else None
    recorder = Recorder(
        dict(layers),
        optimizer,
        read=lambda: (memory.allocated_bytes(), memory.peak_since_reset_bytes()),
        reset=memory.reset_peak,
        second_pass=in_second_pass,
        synchronize=_synchronize,
        watcher=watcher,
    )
    gc.collect()
    with contextlib.ExitStack() as stack:
        stack.enter_context(chosen(model, recompute, replacements))
        if watcher is not None:
            watcher.recorder = recorder
            stack.enter_context(watcher)
        with recorder:
            run_step()
    return recorder.markers, watcher.watched if watcher is not None else Watched()


def measured_peak(
    model: paddle.nn.Layer,
    run_step: Callable[[], Any],
    recompute: Sequence[str] = (),
    replacements: Sequence[Replacement] = (),
) -> int:
    """The peak allocated bytes of one step with these units recomputed, no marker in it."""
    gc.collect()
    with chosen(model, recompute, replacements):
        memory.reset_peak()
        run_step()
    return memory.peak_since_reset_bytes()


@contextlib.contextmanager
def chosen(
    model: paddle.nn.Layer, recompute: Sequence[str], replacements: Sequence[Replacement] = ()
) -> Iterator[None]:
    """The model with these units recomputed and these replacements on."""
    with contextlib.ExitStack() as stack:
        if recompute:
            stack.enter_context(recompute_units(model, list(recompute)))
        for replacement in replacements:
            stack.enter_context(replacement.switch())
        yield


def _synchronize() -> None:
    if not paddle.get_device().startswith("cpu"):
        paddle.device.synchronize()
