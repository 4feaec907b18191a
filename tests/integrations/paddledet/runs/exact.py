"""The same training with whole batches and in micro-batches, through PaddleDetection's untouched train()."""

from __future__ import annotations

from tests.integrations.paddledet import tiny
from tests.integrations.paddledet.runs.common import answer, difference, places, recorded, state

MODES = {
    "micro_batch_size 2": {"gradient_accumulation": {"micro_batch_size": 2}},
    "micro_batch_size 3": {"gradient_accumulation": {"micro_batch_size": 3}},
    "steps 4": {"gradient_accumulation": {"steps": 4}, "TrainReader": {"batch_size": 2}},
    "recompute": {"recompute": {"layers": ["backbone", "head"]}},
}


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
    answer(modes=results, steps=steps, moved=float(max(abs(v).max() for v in expected["velocity"].values())))


main()
