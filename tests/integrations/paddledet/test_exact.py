"""Micro-batches and recompute give the training of the whole batch, step for step."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.paddledet


def test_two_epochs_equal_the_whole_batch(run) -> None:
    found = run("exact")
    assert found["leftovers"] == [], "train() and unregister() leave PaddleDetection as it was"
    assert found["steps"] == 6
    assert found["moved"] > 0.01
    for mode, result in found["modes"].items():
        assert result["rates_equal"], mode
        assert result["loss_difference"] <= 1e-6, mode
        for group, difference in result["difference"].items():
            assert difference <= (0.0 if mode == "recompute" else 1e-6), (mode, group)
    slices = {mode: result["slices"] for mode, result in found["modes"].items()}
    assert slices["micro_batch_size 2"] == slices["steps 4"] == [2, 2, 2, 2]
    assert slices["micro_batch_size 3"] == [2, 3, 3, 2]
    assert found["modes"]["steps 4"]["reader_rows_shown"] == 8
    assert "micro-batch 2 x accumulation 4 x ranks 1 = batch 8, 3 steps an epoch" in found["log"]
