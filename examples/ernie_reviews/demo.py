"""The same ERNIE training four times, each in its own process: baseline, accumulation, recompute, both.

Every run takes the same 32 reviews a step. Dropout is off, so that the losses can be compared digit by digit.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
from rich.console import Console
from rich.table import Table

from paddle_memcallbacks.report.record import Run, read_run

HERE = Path(__file__).resolve().parent
BATCH, MICRO = 32, 8
ACCUMULATION = [
    f"--per_device_train_batch_size={MICRO}",
    f"--gradient_accumulation_steps={BATCH // MICRO}",
]
WHOLE = [f"--per_device_train_batch_size={BATCH}"]
RECOMPUTE = ["--recompute_layers", "ernie.encoder.layers.*"]
RUNS = {
    "baseline": WHOLE,
    "accumulation": ACCUMULATION,
    "recompute": WHOLE + RECOMPUTE,
    "both": ACCUMULATION + RECOMPUTE,
}
MIB = 2**20


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps of each run")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder for the runs")
    options = parser.parse_args()
    console = Console(width=max(Console().width, 118))
    shutil.rmtree(options.output, ignore_errors=True)
    with console.status("") as status:
        for number, (name, arguments) in enumerate(RUNS.items(), 1):
            status.update(f"run {number} of {len(RUNS)}: {name} ({options.steps} steps of {BATCH} reviews)")
            train(name, arguments, options.steps, options.output)
    console.print(table({name: read_run(record_of(options.output, name)) for name in RUNS}, options.output))
    console.print(
        f"\nCurves: visualdl --logdir {options.output / 'visualdl'} --port 8040 --host 127.0.0.1 --language en "
        "--disable-telemetry\nthen open http://127.0.0.1:8040/app/scalar (all four runs side by side, memory/* beside "
        f"the loss).\nReport: paddle-mem report {options.output}"
    )


def train(name: str, arguments: list[str], steps: int, output: Path) -> None:
    """One run in its own process; what it prints goes to a file, and to the screen where it fails."""
    folder = output / name
    folder.mkdir(parents=True)
    command = [
        sys.executable,
        str(HERE / "train.py"),
        f"--output_dir={folder}",
        f"--logging_dir={output / 'visualdl' / name}",
        f"--max_steps={steps}",
        "--logging_steps=1",
        "--memory_interval=1",
        "--visualdl_interval=1",
        "--dropout=0",
        "--learning_rate=2e-4",
        "--save_strategy=no",
        "--report_to=visualdl",
        "--disable_tqdm=true",
        f"--save_weights={folder / 'weights.pdparams'}",
        *arguments,
    ]
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        tail = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        sys.exit("\n".join([*tail, f"the run '{name}' failed: {' '.join(command)}"]))


def record_of(output: Path, name: str) -> Path:
    """The run's JSON lines."""
    return output / name / "memcallbacks.jsonl"


def table(runs: dict[str, Run], output: Path) -> Table:
    """Memory and time of each run, and how far its losses and weights are from the baseline's."""
    result = Table(title=f"ERNIE on real reviews, the same {BATCH} rows a step")
    columns = ("run", "micro-batch", "held after forward", "peak", "activations at peak", "step", "losses", "weights")
    for column in columns:
        result.add_column(column, justify="left" if column == "run" else "right")
    base = runs["baseline"]
    for name, run in runs.items():
        result.add_row(
            name,
            f"{run.last('accumulation/micro_batch_size'):.0f} x {run.last('accumulation/micro_batches'):.0f}",
            bytes_text(held(run), held(base)),
            f"{peak(run) / MIB:.1f} MiB",
            bytes_text(activations(run), activations(base)),
            f"{step_seconds(run):.2f} s",
            "-" if name == "baseline" else f"{loss_difference(run, base):.1e}",
            "-" if name == "baseline" else f"{weight_difference(output, name):.1e}",
        )
    return result


def held(run: Run) -> float:
    """Bytes held after forward, the largest of the run."""
    return max(run.values("memory/held_after_forward_gib")) * 2**30


def peak(run: Run) -> float:
    """Peak allocated bytes of the largest step."""
    return max(run.values("memory/step_peak_gib")) * 2**30


def activations(run: Run) -> float:
    """The peak above what stands between steps (weights, moments)."""
    return peak(run) - min(run.values("memory/base_gib")) * 2**30


def step_seconds(run: Run) -> float:
    """The median step."""
    return float(np.median(run.step_seconds()))


def bytes_text(value: float, base: float) -> str:
    """MiB, and the share of the baseline's."""
    return f"{value / MIB:.1f} MiB ({100 * value / base:.0f} %)"


def loss_difference(run: Run, base: Run) -> float:
    """The largest relative difference of a step's loss."""
    ours, theirs = np.array(run.values("train/loss")), np.array(base.values("train/loss"))
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


def weight_difference(output: Path, name: str) -> float:
    """The relative L2 difference of all weights at the end."""
    ours, theirs = (paddle.load(str(output / run / "weights.pdparams")) for run in (name, "baseline"))
    square = sum(float(((ours[key] - theirs[key]) ** 2).sum()) for key in theirs)
    norm = sum(float((theirs[key] ** 2).sum()) for key in theirs)
    return float((square / norm) ** 0.5)


if __name__ == "__main__":
    main()
