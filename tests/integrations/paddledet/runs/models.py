"""One of the three detectors: three steps as it is, recomputed by stage, and in micro-batches of 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle_memcallbacks.integrations.paddledet import MemoryCallback
from ppdet.core.workspace import load_config, merge_config
from ppdet.engine import Trainer

from paddle_memcallbacks.microbatch import MicroBatchError
from tests.integrations.paddledet.runs.common import answer, places

# PicoDet's assigner wants 9 anchors of its coarsest level
SIZES = {"picodet": 160, "ppyoloe": 128, "faster_rcnn": 96}
EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "detection"


def build(scenes: Path, folder: Path, name: str) -> Trainer:
    paddle.seed(0)
    cfg = load_config(str(EXAMPLES / f"{name}_digits.yml"))
    data = {"dataset_dir": str(scenes)}
    merge_config(
        {
            "TrainDataset": data,
            "TestDataset": data,
            "TrainReader": {"shuffle": False},
            "save_dir": str(folder),
            "epoch": 1,
            "log_iter": 100,
            "snapshot_epoch": 100,
            "LearningRate": {"base_lr": 0.001},
        }
    )
    shrink(cfg["TrainReader"], SIZES[name])
    return Trainer(cfg, mode="train")


def shrink(reader: dict[str, Any], size: int) -> None:
    """Smaller images, for time."""
    for transform in reader["batch_transforms"]:
        if "BatchRandomResize" in transform:
            transform["BatchRandomResize"]["target_size"] = [size]
            return
    reader["sample_transforms"].insert(1, {"Resize": {"target_size": [size, size], "keep_ratio": True, "interp": 2}})


class Phases:
    """Runs train() again and again from the same state."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.model = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    def train(self, **keys: Any) -> dict[str, Any]:
        trainer = self.trainer
        trainer.model.set_state_dict({name: value.clone() for name, value in self.model.items()})
        for moment in trainer.optimizer._accumulators.values():
            for value in moment.values():
                value.zero_()
        trainer.lr.last_epoch = -1
        trainer.lr.step()
        # a refused training leaves the epoch half read
        trainer.loader.loader = iter(trainer.loader.dataloader)
        paddle.seed(1)
        gradients: list[dict[str, np.ndarray]] = []
        step = trainer.optimizer.step

        def spy() -> None:
            named = trainer.model.named_parameters()
            gradients.append({name: p.grad.numpy().copy() for name, p in named if p.grad is not None})
            step()

        logdir = trainer.cfg.save_dir + f"/{len(list(Path(trainer.cfg.save_dir).iterdir()))}"
        trainer.cfg["save_dir"], former = logdir, trainer.cfg.save_dir
        callback = MemoryCallback(trainer, {"memory": {"interval": 1}, **keys})
        trainer.register_callbacks([callback])
        trainer.optimizer.step = spy
        try:
            trainer.train()
        finally:
            del trainer.optimizer.step
            trainer.cfg["save_dir"] = former
        buffers = {name: value.numpy().copy() for name, value in trainer.model.named_buffers()}
        return {"gradients": gradients, "buffers": buffers, "record": record(Path(logdir) / trainer.cfg.filename)}


def record(folder: Path) -> dict[str, float]:
    """Peak of the last step above what was there before it, MiB; how many units are recomputed."""
    lines = [json.loads(line) for line in (folder / "memcallbacks.jsonl").read_text().splitlines()]
    steps = [line["metrics"] for line in lines if "metrics" in line]
    last = steps[-1]
    peak = max(last["memory/peak_forward_gib"], last["memory/peak_backward_gib"])
    return {
        "steps": len(steps),
        "units": last["recompute/units"],
        "micro_batches": last["accumulation/micro_batches"],
        "activations_mib": (peak - last["memory/allocated_gib"]) * 1024,
    }


def differing(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> list[str]:
    return [name for name in first if name not in second or not np.array_equal(first[name], second[name])]


def main() -> None:
    scenes, folder = places()
    phases = Phases(build(scenes, folder, sys.argv[3]))
    plain = phases.train()
    recomputed = phases.train(recompute=True)
    try:
        phases.train(gradient_accumulation={"micro_batch_size": 2})
        refusal = ""
    except MicroBatchError as error:
        refusal = str(error)
    sliced = phases.train(gradient_accumulation={"micro_batch_size": 2, "weight": "boxes"})
    both = list(zip(plain["gradients"], recomputed["gradients"], strict=True))
    answer(
        records={"plain": plain["record"], "recomputed": recomputed["record"], "sliced": sliced["record"]},
        gradients=[differing(first, second) for first, second in both],
        buffers=differing(plain["buffers"], recomputed["buffers"]),
        buffers_moved=len(differing({n: v.numpy() for n, v in phases.model.items()}, plain["buffers"])),
        parameters=[len(first) for first in plain["gradients"]],
        refusal=refusal,
        moving=sum(bool(value.any()) for value in plain["gradients"][-1].values()),
        sliced_gradient=relative(plain["gradients"][0], sliced["gradients"][0]),
    )


def relative(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    gap = sum(float(((first[name] - second[name]) ** 2).sum()) for name in first)
    return (gap / sum(float((first[name] ** 2).sum()) for name in first)) ** 0.5


main()
