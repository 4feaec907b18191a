"""Shared fixtures; each room keeps its own beside its tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# one thread a kernel, set before paddle is imported: sums then repeat bit for bit, however busy the machine is
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    # `from tests.real_scaler import ...` works under a bare `pytest` too
    sys.path.append(_ROOT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import paddle

    if paddle.device.cuda.device_count() == 0:
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]


@pytest.fixture(autouse=True)
def _forget_told() -> None:
    from paddle_memcallbacks.alerts import forget_told

    forget_told()


@pytest.fixture
def real_scaler() -> Iterator[Callable[..., Any]]:
    """A factory of Paddle's real GradScaler, enabled on a CPU: ``real_scaler(init_loss_scaling=1024.0)``."""
    from tests.real_scaler import real_scalers

    with real_scalers() as make:
        yield make
