"""AMP keys as they reach PaddleDetection, typos, and trainers with loops of their own."""

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
    other = {name: refused(cls, scenes, folder / name, recompute=True) for name, cls in LOOPS.items()}
    o2 = {"enable": True, "level": "O2", "dtype": "bfloat16", "init_loss_scaling": 4096}
    answer(
        off=off.use_amp,
        on=on_cpu.use_amp,
        refused=other,
        typo=refused(Trainer, scenes, folder / "typo", gradient_acumulation={"steps": 4}),
        decorated=decorated(scenes, folder / "o2", amp=o2, gradient_accumulation={"micro_batch_size": 2}),
        decorated_natively=decorated(scenes, folder / "o2n", amp=True, amp_level="O2"),
        # built as ever, up to where it misses the reader of its own; last, because it writes into the global config
        native_other=built_until(Trainer_DenseTeacher, scenes, folder / "dense", amp=True),
    )


LOOPS = {"DenseTeacher": Trainer_DenseTeacher, "Cot": TrainerCot}

main()
