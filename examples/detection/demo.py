"""Two detectors on handwritten digits, each trained three times: as it is, recomputed, in micro-batches of 2.

Every run takes the same 8 scenes a step, without shuffling, from the same seed.

    python examples/detection/demo.py [--steps 9] [--output demo_output/detection]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scenes import write_scenes

from paddle_memcallbacks.report.record import Run, read_run

HERE = Path(__file__).resolve().parent
BATCH, MICRO = 8, 2
MODELS = {"picodet": "PicoDet-XS", "ppyoloe": "PP-YOLOE-s"}
RUNS = {
    "baseline": [],
    "recompute": ["recompute=true"],
    "micro-batches": [f"gradient_accumulation.micro_batch_size={MICRO}", "gradient_accumulation.weight=boxes"],
}
MIB = 2**20


def main() -> None:
    """Write the scenes, run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=9, help="optimizer steps of each run")
    parser.add_argument("--output", type=Path, default=Path("demo_output/detection"), help="folder for the runs")
    options = parser.parse_args()
    console = Console(width=max(Console().width, 118))
    shutil.rmtree(options.output, ignore_errors=True)
    scenes = write_scenes(options.output / "digits", train=BATCH * options.steps, val=BATCH)
    with console.status("") as status:
        for model, title in MODELS.items():
            for name, overrides in RUNS.items():
                status.update(f"{title}: {name} ({options.steps} steps of {BATCH} scenes)")
                train(model, overrides, scenes, options.output / name)
    for model, title in MODELS.items():
        records = {name: read_run(options.output / name / f"{model}_digits" / "memcallbacks.jsonl") for name in RUNS}
        console.print(table(title, records))
    console.print(f"\nReport: paddle-mem report {options.output}")


def train(model: str, overrides: list[str], scenes: Path, folder: Path) -> None:
    """One run in its own process, unchanged but for its keys; its log is shown where it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{model}.log"
    command = [
        *(sys.executable, "-m", "paddle_memcallbacks", "run", str(HERE / "train.py")),
        *("-c", str(HERE / f"{model}_digits.yml"), "--enable_ce", "True", "-o"),
        *(f"{data}.dataset_dir={scenes}" for data in ("TrainDataset", "EvalDataset", "TestDataset")),
        *(f"TrainReader.batch_size={BATCH}", "TrainReader.shuffle=false", "epoch=1", f"save_dir={folder}"),
        *("memory.interval=1", "visualdl.interval=1"),
        *overrides,
    ]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        sys.exit("\n".join([*tail, f"the run failed: {' '.join(command)}"]))


def table(title: str, runs: dict[str, Run]) -> Table:
    """Memory and time of each run, and how far its losses are from the baseline's."""
    result = Table(title=f"{title} on handwritten digits, the same {BATCH} scenes of 160 x 160 a step")
    for column in ("run", "micro-batch", "units", "peak", "activations at peak", "step", "losses"):
        result.add_column(column, justify="left" if column == "run" else "right")
    base = runs["baseline"]
    for name, run in runs.items():
        losses = np.abs(np.array(run.values("train/loss")) / np.array(base.values("train/loss")) - 1)
        result.add_row(
            name,
            f"{run.last('accumulation/micro_batch_size'):.0f} x {run.last('accumulation/micro_batches'):.0f}",
            f"{run.last('recompute/units'):.0f}",
            f"{peak_bytes(run) / MIB:.1f} MiB",
            f"{activation_bytes(run) / MIB:.1f} MiB ({100 * activation_bytes(run) / activation_bytes(base):.0f} %)",
            f"{np.median(run.step_seconds()):.2f} s",
            "-" if name == "baseline" else f"{losses.max():.1e}",
        )
    return result


def peak_bytes(run: Run) -> float:
    """Peak allocated bytes of the largest step."""
    return max(run.values("memory/step_peak_gib")) * 2**30


def activation_bytes(run: Run) -> float:
    """The peak above what stands between steps (weights, gradients, moments, EMA)."""
    return peak_bytes(run) - min(run.values("memory/base_gib")[1:]) * 2**30


if __name__ == "__main__":
    main()
