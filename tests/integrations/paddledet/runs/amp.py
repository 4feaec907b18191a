"""AMP keys, a real GradScaler on a CPU, skipped steps, and trainers with loops of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import paddle
from ppdet.engine import Trainer, TrainerCot
from ppdet.engine.trainer_ssod import Trainer_DenseTeacher

from paddle_memcallbacks.config import ConfigError
from tests.integrations.paddledet import tiny
from tests.integrations.paddledet.runs.common import answer, places
from tests.real_scaler import float16_pinned, scalers_enabled


def train_with_skips(scenes: Path, folder: Path, **keys: Any) -> dict[str, Any]:
    """Six steps of which the third and fifth overflow, under a scaler that believes in a GPU."""
    trainer = tiny.build(scenes, folder, use_gpu=True, **keys)
    trainer.model.poison = [3, 5]
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
        "finite": all(bool(paddle.isfinite(value).all()) for value in trainer.model.parameters()),
        "scaler_is_paddles_own_again": paddle.amp.GradScaler.__module__.startswith("paddle."),
    }


def refused(cls: type, scenes: Path, folder: Path, **keys: Any) -> str:
    try:
        cls(tiny.load(scenes, folder, **keys), mode="train")
    except ConfigError as error:
        return str(error)
    return ""


def built_until(cls: type, scenes: Path, folder: Path, **keys: Any) -> str:
    try:
        cls(tiny.load(scenes, folder, **keys), mode="train")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def decorated(scenes: Path, folder: Path, **keys: Any) -> dict[str, Any]:
    calls = []

    def decorate(models: Any, optimizers: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return models, optimizers

    with mock.patch.object(paddle.amp, "decorate", decorate):
        tiny.build(scenes, folder, **keys)
    return {**calls[0]} if calls else {}


def main() -> None:
    scenes, folder = places()
    off = tiny.build(scenes, folder / "off", amp={"enable": False})
    on_cpu = tiny.build(scenes, folder / "cpu", amp={"enable": True, "level": "O1"}, epoch=1)
    on_cpu.train()
    section = {"enable": True, "level": "O1", "init_loss_scaling": 4096, "incr_every_n_steps": 7}
    other = {name: refused(cls, scenes, folder / name, recompute=True) for name, cls in LOOPS.items()}
    o2 = {"enable": True, "level": "O2", "dtype": "bfloat16", "init_loss_scaling": 4096}
    answer(
        off=off.use_amp,
        on=on_cpu.use_amp,
        ours=train_with_skips(scenes, folder / "ours", amp=section),
        upstream=train_with_skips(scenes, folder / "upstream", amp=True),
        refused=other,
        typo=refused(Trainer, scenes, folder / "typo", gradient_acumulation={"steps": 4}),
        decorated=decorated(scenes, folder / "o2", amp=o2, gradient_accumulation={"micro_batch_size": 2}),
        decorated_natively=decorated(scenes, folder / "o2n", amp=True, amp_level="O2"),
        # built as ever, up to where it misses the reader of its own; last, because it writes into the global config
        native_other=built_until(Trainer_DenseTeacher, scenes, folder / "dense", amp=True),
    )


LOOPS = {"DenseTeacher": Trainer_DenseTeacher, "Cot": TrainerCot}

main()
