"""A training of three epochs, and the same one gone on with from its second checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import paddle
from paddle_memcallbacks.integrations.paddledet import resume

from tests.integrations.paddledet import tiny
from tests.integrations.paddledet.runs.common import answer, difference, places, recorded, state
from tests.real_scaler import float16_pinned, scalers_enabled

KEYS: dict[str, Any] = {"TinyDetector": {"dropout": 0.3}, "epoch": 3}


def train(scenes: Path, folder: Path, checkpoint: str = "", section: Any = None, **keys: Any) -> tuple[Any, Any, float]:
    trainer = tiny.build(
        scenes,
        folder,
        seed=11 if checkpoint else 7,
        use_gpu=section is not None,
        amp=section or False,
        **{**KEYS, **keys},
    )
    if checkpoint:
        trainer.resume_weights(checkpoint)
    else:
        trainer.model.poison = [2] if section else []
    recorder = recorded(trainer)
    scalers = []
    construct = paddle.amp.GradScaler.__init__

    def spy(self: Any, *args: Any, **kwargs: Any) -> None:
        with scalers_enabled():
            construct(self, *args, **kwargs)
        scalers.append(self)

    with float16_pinned(), mock.patch.object(paddle.amp.GradScaler, "__init__", spy):
        trainer.train()
    return trainer, recorder, float(scalers[-1]._scale) if scalers else 0.0


def compare(scenes: Path, folder: Path, **keys: Any) -> dict[str, Any]:
    whole, all_steps, scale = train(scenes, folder / "whole", **keys)
    expected = state(whole)
    checkpoint = str(folder / "whole" / "tiny" / "1")
    resumed, later_steps, resumed_scale = train(scenes, folder / "resumed", checkpoint, **keys)
    record = folder / "resumed" / "tiny" / "memcallbacks.jsonl"
    steps = [line["step"] for line in map(json.loads, record.read_text().splitlines()) if "metrics" in line]
    return {
        "start_epoch": resumed.start_epoch,
        "difference": difference(expected, state(resumed)),
        "losses_equal": later_steps.losses == all_steps.losses[6:],
        "rates_equal": later_steps.rates == all_steps.rates[6:],
        "ema_steps": [whole.ema.step, resumed.ema.step],
        "lr_steps": [whole.lr.last_epoch, resumed.lr.last_epoch],
        "scales": [scale, resumed_scale],
        "recorded_steps": steps,
    }


def main() -> None:
    scenes, folder = places()
    section = {"enable": True, "init_loss_scaling": 4096}
    results = {
        "in order": compare(scenes, folder / "in_order", memory=True),
        "shuffled": compare(scenes, folder / "shuffled", memory=True, shuffle=True),
        "unwatched amp": compare(scenes, folder / "off", section=section, loss_scale={"enable": False}),
        "shuffled amp": compare(scenes, folder / "amp", shuffle=True, section=section),
    }
    (folder / "in_order" / "whole" / "tiny" / f"1{resume.SUFFIX}").unlink()
    train(scenes, folder / "without", str(folder / "in_order" / "whole" / "tiny" / "1"), memory=True)
    answer(**results)


main()
