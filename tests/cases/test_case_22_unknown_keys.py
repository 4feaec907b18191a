"""Case 22: PaddleDetection accepts any config key; accumulation and AMP switches that it does not know do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.paddledet.conftest import python

pytestmark = pytest.mark.paddledet

SCRIPT = """
import sys
import paddle_memcallbacks.integrations.paddledet
from ppdet.core.workspace import load_config, merge_config
from ppdet.engine import Trainer
cfg = load_config(sys.argv[1])
cfg = merge_config({"accumulate_steps": 4, "recompute": True, "gradient_acumulation": 4})
Trainer(cfg, mode="train")
"""


def test_every_key_that_does_nothing_is_named_with_the_one_meant(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "c.yml"
    script.write_text(SCRIPT)
    reader = "TrainReader:\n  batch_size: 2\n  accumulate_stps: 8\n"
    config.write_text(f"epoch: 1\nuse_gpu: false\namp_levl: O2\n{reader}")
    done = python(script, config)
    assert done.returncode == 1
    for key, meant in {
        "amp_levl": "amp_level",
        "accumulate_steps": "gradient_accumulation: {steps: K}",
        "gradient_acumulation": "gradient_accumulation",
        "TrainReader.accumulate_stps": "gradient_accumulation: {steps: K}",
    }.items():
        line = next(line for line in done.stderr.splitlines() if f"- {key}:" in line)
        assert f"Did you mean '{meant}'" in line
    assert "- recompute" not in done.stderr, "that one is ours"
