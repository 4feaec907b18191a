"""Trainings of PaddleDetection run in processes of their own, with a timeout.

It keeps global state, and an error in one of its reader's threads makes train() wait for ever.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RUNS = Path(__file__).resolve().parent / "runs"
EXAMPLE = ROOT / "examples" / "detection"


def load_file(path: Path) -> ModuleType:
    """A module by its file, without the package around it: the plain-data rooms need neither ppdet nor paddle."""
    name = f"paddledet_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def python(*words: str | Path, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter of the tests in a process of its own, one thread a kernel so that sums repeat bit for bit."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, cwd=ROOT)
    if done.returncode == -signal.SIGABRT and "terminate called without an active exception" in done.stderr:
        # Paddle's reader threads abort some exits of the interpreter after the script's last line: of 8 runs on a busy
        # machine 1 without this library, 2 with it. What the script did is checked by each test.
        done.returncode = 0
    return done


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 training and 8 validation scenes of 160 x 160."""
    directory: Path = load_file(EXAMPLE / "scenes.py").write_scenes(tmp_path_factory.mktemp("scenes"), 24, 8)
    return directory


@pytest.fixture
def run(scenes: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs ``runs/<name>.py SCENES FOLDER ARGS``: the JSON of its last line, and all that it said as ``log``."""

    def run(name: str, *arguments: str, timeout: float = 120) -> dict[str, Any]:
        done = python(RUNS / f"{name}.py", scenes, tmp_path, *arguments, timeout=timeout)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-6000:]
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return {**answer, "log": said}

    return run
