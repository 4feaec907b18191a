"""The same training with whole batches and in micro-batches, through PaddleDetection's untouched train()."""

from __future__ import annotations

from typing import Any

import paddle
from paddle_memcallbacks.integrations.paddledet import unregister
from ppdet.core import workspace
from ppdet.engine import Trainer, callbacks
from ppdet.utils import checkpoint, cli

from tests.integrations.paddledet import tiny
from tests.integrations.paddledet.runs.common import answer, difference, places, recorded, state

MODES = {
    "micro_batch_size 2": {"gradient_accumulation": {"micro_batch_size": 2}},
    "micro_batch_size 3": {"gradient_accumulation": {"micro_batch_size": 3}},
    "steps 4": {"gradient_accumulation": {"steps": 4}, "TrainReader": {"batch_size": 2}},
    "recompute": {"recompute": {"layers": ["backbone", "head"]}},
}


def leftovers(trainer: Any) -> list[str]:
    """What train() should have taken away again."""
    owners = {"optimizer": trainer.optimizer, "lr": trainer.lr, "ema": trainer.ema}
    found = [name for name, owner in owners.items() if callable(vars(owner).get("step")) or "update" in vars(owner)]
    found += ["model"] if type(trainer.model) is not tiny.TinyDetector else []
    stood_in = {"GradScaler": paddle.amp.GradScaler, "DataParallel": paddle.DataParallel}
    found += [name for name, value in stood_in.items() if not value.__module__.startswith("paddle.")]
    return found + (["save_model"] if callbacks.save_model is not checkpoint.save_model else [])


def patched() -> list[str]:
    """What unregister() should have taken away."""
    methods = {name: vars(Trainer)[name] for name in ("__init__", "_init_callbacks", "train", "resume_weights")}
    functions = {
        **methods,
        "merge_args": cli.merge_args,
        "parse_args": cli.ArgsParser.parse_args,
        "concat": paddle.concat,
    }
    found = [name for name, value in functions.items() if "integrations/paddledet" in value.__code__.co_filename]
    return found + (["MemoryCallback"] if "MemoryCallback" in workspace.global_config else [])


def main() -> None:
    scenes, folder = places()
    reference = tiny.build(scenes, folder / "whole")
    whole = recorded(reference)
    reference.train()
    expected = state(reference)
    results = {}
    for mode, keys in MODES.items():
        trainer = tiny.build(scenes, folder / mode.replace(" ", "_"), **keys)
        recorder = recorded(trainer)
        trainer.train()
        gaps = [
            abs(ours[name] - theirs[name])
            for ours, theirs in zip(recorder.losses, whole.losses, strict=True)
            for name in theirs
        ]
        results[mode] = {
            "difference": difference(expected, state(trainer)),
            "rates_equal": recorder.rates == whole.rates,
            "loss_difference": max(gaps),
            "slices": trainer.model.batches[-4:],
            "reader_rows_shown": trainer.cfg["TrainReader"]["batch_size"],
        }
    steps = len(whole.rates)
    left = leftovers(trainer)
    unregister()
    answer(
        leftovers=left + patched(),
        modes=results,
        steps=steps,
        moved=float(max(abs(v).max() for v in expected["velocity"].values())),
    )


main()
