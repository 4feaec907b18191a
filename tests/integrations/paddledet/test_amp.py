"""AMP keys do what they say, and other loops are refused by name. (Skipped steps: tests/cases, case 17.)"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.paddledet


def test_amp_keys_and_refusals(run) -> None:
    found = run("amp")

    assert found["off"] is False, "amp: {enable: false} is a mapping, and PaddleDetection takes any mapping for on"
    assert found["on"] is True
    assert found["log"].count("amp is asked for, but PaddleDetection runs it on gpu, npu and mlu only") == 1

    assert found["refused"]["DenseTeacher"].startswith("recompute: Trainer_DenseTeacher trains in a loop of its own")
    assert found["refused"]["Cot"].startswith("recompute: TrainerCot trains in a loop of its own")
    assert "UnsupTrainDataset" in found["native_other"], "without our keys the other trainers are built as ever"
    assert "Did you mean 'gradient_accumulation'?" in found["typo"]

    assert found["decorated"] == {"dtype": "bfloat16", "master_weight": None, "master_grad": True, "level": "O2"}
    assert found["decorated_natively"] == {"level": "O2"}
