"""Six steps of which two overflow, with a real GradScaler on a CPU: with our keys, and as PaddleDetection does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import paddle

from tests.integrations.paddledet import tiny
from tests.integrations.paddledet.runs.common import answer, places
from tests.real_scaler import float16_pinned, scalers_enabled

STOP = {"max_consecutive_skips": 2, "on_storm": "stop"}


def train_with_skips(scenes: Path, folder: Path, poison: Sequence[int] = (3, 5), **keys: Any) -> dict[str, Any]:
    """Six steps of which some overflow, under a scaler that believes in a GPU."""
    trainer = tiny.build(scenes, folder, use_gpu=True, **keys)
    trainer.model.poison = poison
    seen = []
    watched = paddle.amp.GradScaler.__init__

    def spy(self: Any, *args: Any, **kwargs: Any) -> None:
        with scalers_enabled():
            watched(self, *args, **kwargs)
        seen.append(self)

    with float16_pinned(), mock.patch.object(paddle.amp.GradScaler, "__init__", spy):
        trainer.train()
    scaler = seen[0]
    return {
        "lr_steps": trainer.lr.last_epoch,
        "ema_steps": trainer.ema.step,
        "scale": float(scaler._scale),
        "init": scaler.get_init_loss_scaling(),
        "incr_every": scaler.get_incr_every_n_steps(),
        "forwards": trainer.model.forwards,
        "checkpoints": sorted(file.stem for file in (folder / "tiny").glob("*.pdparams")),
        "finite": all(bool(paddle.isfinite(value).all()) for value in trainer.model.parameters()),
        "scaler_is_paddles_own_again": paddle.amp.GradScaler.__module__.startswith("paddle."),
    }


def main() -> None:
    scenes, folder = places()
    section = {"enable": True, "level": "O1", "init_loss_scaling": 4096, "incr_every_n_steps": 7}
    answer(
        ours=train_with_skips(scenes, folder / "ours", amp=section),
        stormy=train_with_skips(scenes, folder / "stormy", range(3, 9), amp=section, loss_scale=STOP),
        upstream=train_with_skips(scenes, folder / "upstream", amp=True),
    )


main()
