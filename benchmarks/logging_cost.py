"""What seeing costs: microseconds a step where nothing is due and where all is due; a scalar against VisualDL's own.

Run it as ``python benchmarks/logging_cost.py``. It trains nothing: what is timed is this library's own work in a step.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from visualdl import LogWriter

from paddle_memcallbacks import memory
from paddle_memcallbacks.memory import GrowthWatch, PhaseMeter
from paddle_memcallbacks.writers import JsonLinesWriter, VisualDLWriter, WriterGroup

STEPS = 2_000
SCALARS = 10_000
ROUNDS = 5


def microseconds(act: Callable[[int], object], calls: int) -> float:
    """The fastest of several rounds, per call."""
    fastest = float("inf")
    for round_number in range(ROUNDS):
        gc.collect()
        start = time.perf_counter()
        for number in range(calls):
            act(round_number * calls + number + 1)
        fastest = min(fastest, time.perf_counter() - start)
    return fastest / calls * 1e6


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    """All figures, written below ``folder``."""
    meter, growth = PhaseMeter(), GrowthWatch()
    record = JsonLinesWriter(folder / "memcallbacks.jsonl")

    def phases(_: int) -> memory.StepMemory:
        meter.begin_step()
        for name in ("forward", "backward", "step"):
            with meter.phase(name):  # type: ignore[arg-type]
                pass
        return meter.end_step()

    def step_with(writers: WriterGroup) -> Callable[[int], object]:
        def step(number: int) -> None:
            step_memory, reading = phases(number), memory.memory_reading()
            growth.observe(number, reading.allocated_bytes)
            metrics = memory.memory_metrics(reading, step_memory)
            metrics.update({f"amp/tag_{index}": 1.0 for index in range(8)})
            writers.write(number, metrics)

        return step

    never = 10**9
    quiet = WriterGroup([record, VisualDLWriter(folder / "quiet", interval=never)])
    loud = WriterGroup([record, VisualDLWriter(folder / "loud")])
    figures = {
        "phases of a step": microseconds(phases, STEPS),
        "a reading": microseconds(lambda _: memory.memory_reading(), STEPS),
        "a line of the record (20 tags)": microseconds(
            lambda number: record.write(number, {f"memory/tag_{index}_gib": 1.2345678 for index in range(20)}), STEPS
        ),
        "a step, nothing due (readings, growth, record)": microseconds(step_with(quiet), STEPS),
        "a step, VisualDL due too": microseconds(step_with(loud), STEPS),
        "host memory (due steps)": microseconds(lambda _: memory.host_rss_bytes(), STEPS),
    }
    for what, figure in figures.items():
        print(f"{what:50s} {figure:8.1f} us")
    native, ours = scalar_microseconds(folder)
    print(f"{f'a scalar, of {SCALARS}: VisualDL / ours':50s} {native:8.1f} / {ours:.1f} us = {native / ours:.1f} x")


def scalar_microseconds(folder: Path) -> tuple[float, float]:
    """One scalar of ten thousand by VisualDL's writer and by ours, until all are on disk."""
    start = time.perf_counter()
    with LogWriter(str(folder / "native")) as native:
        for step in range(SCALARS):
            native.add_scalar("a", 1.0, step)
    middle = time.perf_counter()
    ours = VisualDLWriter(folder / "ours")
    for step in range(SCALARS):
        ours.write(step, {"a": 1.0})
    ours.close()
    return (middle - start) / SCALARS * 1e6, (time.perf_counter() - middle) / SCALARS * 1e6


if __name__ == "__main__":
    main()
