"""A run that goes on from an epoch's checkpoint ends in the same bits as one that was never stopped."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.paddledet


def test_resume_is_bit_equal_with_and_without_shuffling(run) -> None:
    found = run("resume")
    for mode in ("in order", "shuffled", "unwatched amp", "shuffled amp"):
        result = found[mode]
        assert result["start_epoch"] == 2, mode
        assert set(result["difference"]) == {"weights", "velocity", "ema"}
        assert all(difference == 0.0 for difference in result["difference"].values()), (mode, result["difference"])
        assert result["losses_equal"] and result["rates_equal"], mode
        assert result["ema_steps"][0] == result["ema_steps"][1], mode
        assert result["lr_steps"][0] == result["lr_steps"][1], mode
        assert result["recorded_steps"] == [7, 8, 9], mode
    for mode in ("unwatched amp", "shuffled amp"):
        assert found[mode]["scales"] == [2048.0, 2048.0], "the first epoch's overflow is remembered"
    assert found["shuffled amp"]["lr_steps"] == [8, 8]
    assert "1.pdmem is not there: the checkpoint was written without paddle_memcallbacks" in found["log"]
