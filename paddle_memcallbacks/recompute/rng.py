"""The random number states that a layer's forward may draw from. All of them are host data."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle.base import core

_TRACKER_MODULE = "paddle.distributed.fleet.layers.mpu.random"


@dataclass(frozen=True)
class RngState:
    """Generators of the current device and of the host, fleet's named ones, numpy's and Python's."""

    device: Any
    host: Any
    named: Any
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> RngState:
        """The states as they are now."""
        tracker = _tracker()
        return cls(
            device=paddle.get_rng_state(),
            host=None if _on_host() else core.default_cpu_generator().get_state(),
            named=None if tracker is None else tracker.get_states_tracker(),
            numpy=np.random.get_state(),
            python=random.getstate(),
        )

    def put_back(self) -> None:
        """Make these the states."""
        paddle.set_rng_state(self.device)
        if self.host is not None:
            core.default_cpu_generator().set_state(self.host)
        tracker = _tracker()
        if self.named is not None and tracker is not None:
            tracker.set_states_tracker(self.named)
        np.random.set_state(self.numpy)
        random.setstate(self.python)


def _on_host() -> bool:
    return bool(paddle.get_device() == "cpu")


def _tracker() -> Any:
    """Fleet's tracker, where tensor parallelism has put states into it."""
    module = sys.modules.get(_TRACKER_MODULE)
    tracker = getattr(module, "RNG_STATE_TRACKER", None)
    return tracker if tracker is not None and tracker.states_ else None
