"""Callbacks that make PaddlePaddle training fit in memory, keep its mathematics, and show where the memory goes.

The public names are loaded on first use, so that reading a config or a report needs no paddle.
"""

import zlib  # before paddle: libpaddle 2.6.2 exports an old zlib and crashes in inflateReset2 otherwise

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module that holds it
_PUBLIC = {
    "load_config": "config",
    "MemoryConfig": "config",
    "ConfigError": "config",
    "Session": "session",
    "StepResult": "session",
    "find_units": "recompute",
    "recompute_units": "recompute",
    "RecomputeError": "recompute",
    "MicroBatchError": "microbatch",
    "memory_reading": "memory",
    "MemoryReading": "memory",
    "profile": "planner",
    "profile_step": "planner",
    "predict_peak": "planner",
    "solve": "planner",
    "Plan": "planner",
    "Infeasible": "planner",
}

__all__ = ["__version__", *_PUBLIC]

_here = Path(__file__).resolve().parent
if not (_here / "integrations").is_dir() and (_here.parent / "integrations" / "paddlenlp").is_dir():
    # started from the clone's root: the toolkits' folder stands beside the package, not in it
    __path__.append(str(_here.parent))

if TYPE_CHECKING:
    from paddle_memcallbacks.config import ConfigError, MemoryConfig, load_config
    from paddle_memcallbacks.memory import MemoryReading, memory_reading
    from paddle_memcallbacks.microbatch import MicroBatchError
    from paddle_memcallbacks.planner import Infeasible, Plan, predict_peak, profile, profile_step, solve
    from paddle_memcallbacks.recompute import RecomputeError, find_units, recompute_units
    from paddle_memcallbacks.session import Session, StepResult


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_PUBLIC[name]}")
    except ModuleNotFoundError as error:
        if error.name != "paddle":
            raise
        raise ModuleNotFoundError(
            f"paddle_memcallbacks.{name} needs PaddlePaddle, which is not installed. On a CPU: pip install "
            "'paddlepaddle==3.3.1'; on a GPU take the paddlepaddle-gpu wheel for your CUDA version from "
            "https://www.paddlepaddle.org.cn/install/quick",
            name="paddle",
        ) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
