"""AMP keys do what they say, skipped steps hold LR and EMA still, other loops are refused by name. Case 17."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.paddledet


def test_amp_scaler_and_refusals(run) -> None:
    found = run("amp")

    assert found["off"] is False, "amp: {enable: false} is a mapping, and PaddleDetection takes any mapping for on"
    assert found["on"] is True
    assert found["log"].count("amp is asked for, but PaddleDetection runs it on gpu, npu and mlu only") == 1

    ours, upstream = found["ours"], found["upstream"]
    assert (ours["init"], ours["incr_every"], ours["scale"]) == (4096.0, 7, 1024.0)
    assert (ours["lr_steps"], ours["ema_steps"]) == (4, 4), "six steps, of which two were skipped"
    assert (upstream["lr_steps"], upstream["ema_steps"]) == (6, 6), "a bare 'amp: true' stays PaddleDetection's own"
    assert (upstream["init"], upstream["incr_every"]) == (1024, 2000)
    assert ours["finite"] and upstream["finite"]
    assert ours["scaler_is_paddles_own_again"]

    assert found["refused"]["DenseTeacher"].startswith("recompute: Trainer_DenseTeacher trains in a loop of its own")
    assert found["refused"]["Cot"].startswith("recompute: TrainerCot trains in a loop of its own")
    assert "UnsupTrainDataset" in found["native_other"], "without our keys the other trainers are built as ever"
    assert "Did you mean 'gradient_accumulation'?" in found["typo"]

    assert found["decorated"] == {"dtype": "bfloat16", "master_weight": None, "master_grad": True, "level": "O2"}
    assert found["decorated_natively"] == {"level": "O2"}
