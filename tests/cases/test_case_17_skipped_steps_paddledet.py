"""Case 17: PaddleDetection's LR schedule and EMA advance on updates that GradScaler has skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integrations.paddledet.conftest import EXAMPLE, RUNS, load_file, python

pytestmark = pytest.mark.paddledet


def test_schedule_and_ema_count_updates(tmp_path: Path) -> None:
    scenes = load_file(EXAMPLE / "scenes.py").write_scenes(tmp_path / "scenes", 24, 8)
    done = python(RUNS / "skips.py", scenes, tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    ours, upstream = found["ours"], found["upstream"]

    assert (upstream["lr_steps"], upstream["ema_steps"]) == (6, 6), "six steps, of which two were skipped"
    assert (ours["lr_steps"], ours["ema_steps"]) == (4, 4)

    assert (ours["init"], ours["incr_every"], ours["scale"]) == (4096.0, 7, 1024.0)
    assert (upstream["init"], upstream["incr_every"]) == (1024, 2000), "a bare 'amp: true' stays PaddleDetection's own"
    stormy = found["stormy"]
    assert stormy["forwards"] == 4 and stormy["checkpoints"] == ["0", "memcallbacks_step_4"], "on_storm: stop"
    assert "training stopped:" in done.stderr

    assert ours["finite"]
    assert ours["scaler_is_paddles_own_again"]
    assert "step 3: gradients overflowed at loss scale 4096" in done.stderr
