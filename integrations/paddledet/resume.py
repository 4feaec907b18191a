"""What a resumed run needs besides PaddleDetection's checkpoint: raw EMA, generators, loss scale, sampler epoch.

It stands beside each checkpoint as ``<name>.pdmem``. Like ``.pdopt`` it is a pickle: load only what you trust.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddle_memcallbacks.alerts import announce, warn
from paddle_memcallbacks.loss_scale import scaler_state

SUFFIX = ".pdmem"


def stem(weights: str) -> str:
    """The checkpoint's path without PaddleDetection's endings."""
    path = Path(weights)
    return str(path.with_suffix("")) if path.suffix in (".pdparams", ".pdopt", ".pdmodel", ".pdema") else str(path)


def saving(original: Callable[..., Any], extra: Callable[[], dict[str, Any]]) -> Callable[..., Any]:
    """Wraps PaddleDetection's `save_model`: what `extra` gives is written beside each checkpoint (rank 0)."""

    def save_model(
        model: Any, optimizer: Any, save_dir: str, save_name: str, last_epoch: int, ema_model: Any = None, **kw: Any
    ) -> Any:
        result = original(model, optimizer, save_dir, save_name, last_epoch, ema_model=ema_model, **kw)
        if paddle.distributed.get_rank() == 0:
            file = Path(save_dir) / f"{save_name}{SUFFIX}"
            try:
                paddle.save(extra(), str(file))
            except OSError as error:
                warn(f"{file} could not be written ({error}); a resume from {save_name} is PaddleDetection's own")
        return result

    return save_model


def collect(trainer: Any, session_state: dict[str, Any], scaler: Any) -> dict[str, Any]:
    """The state that PaddleDetection does not save."""
    state: dict[str, Any] = {
        "session": session_state,
        "generators": {
            "paddle": paddle.get_rng_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        },
    }
    if scaler is not None:
        state["scaler"] = scaler_state(scaler)
    if getattr(trainer, "use_ema", False):
        ema = trainer.ema
        # PaddleDetection saves the bias-corrected average; the sum behind it is what goes on
        state["ema"] = {
            "average": dict(ema.state_dict),
            "step": ema.step,
            "epoch": ema.epoch,
            "decay": getattr(ema, "_decay", None),
        }
    return state


def read(weights: str) -> dict[str, Any] | None:
    """The state beside a checkpoint; None, and a line that says so, where there is none."""
    file = Path(stem(weights) + SUFFIX)
    if not file.is_file():
        announce(
            f"{file} is not there: the checkpoint was written without paddle_memcallbacks, so the run goes on without "
            "the loss scale, the generators and the exact moving average"
        )
        return None
    state: dict[str, Any] = paddle.load(str(file))
    return state


def restore_ema(ema: Any, saved: dict[str, Any]) -> None:
    """Put the moving average back as it was, before its bias correction."""
    for name, value in saved["average"].items():
        if name in ema.state_dict and name not in ema.ema_black_list:
            ema.state_dict[name] = value
    ema.step, ema.epoch = saved["step"], saved["epoch"]
    if saved["decay"] is not None:
        ema._decay = saved["decay"]


def restore_generators(saved: dict[str, Any]) -> None:
    """Put the generators back. States of another number of devices are left out, with a word."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    try:
        paddle.set_rng_state(saved["paddle"])
    except (ValueError, AssertionError) as error:
        warn(f"Paddle's generators keep the seed of this run: those of the checkpoint do not fit ({error})")


def restart_loader(loader: Any, epoch: int) -> None:
    """Let a shuffling reader go on at `epoch`: its sampler has shuffled for epoch 0 ahead of time."""
    loader._batch_sampler.set_epoch(epoch)
    loader.loader = iter(loader.dataloader)
