"""PicoDet, PP-YOLOE-s and Faster R-CNN R50: recompute exact to the bit, and what it and micro-batches save.

A `MemoryCallback` is registered in code here, for every training anew.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.paddledet


@pytest.mark.parametrize(("model", "stages"), [("picodet", 31), ("ppyoloe", 16), ("faster_rcnn", 5)])
def test_recompute_exact_and_peaks_lower(run, model: str, stages: int) -> None:
    found = run("models", model, timeout=240)
    plain, recomputed, sliced = (found["records"][name] for name in ("plain", "recomputed", "sliced"))
    assert plain["steps"] == recomputed["steps"] == sliced["steps"] == 3

    assert found["gradients"] == [[], [], []], "every gradient of three steps, bit for bit"
    assert found["buffers"] == [], "BatchNorm's statistics too"
    assert found["buffers_moved"] > 100
    assert found["moving"] > 0.8 * found["parameters"][0]
    assert recomputed["units"] == stages, "auto is every stage of backbone, neck and head"
    assert recomputed["activations_mib"] <= 0.65 * plain["activations_mib"]

    assert sliced["micro_batches"] == 4
    assert sliced["activations_mib"] <= 0.4 * plain["activations_mib"]
    assert "this loss cannot be taken apart into micro-batches" in found["refusal"]
    assert "weight: boxes is accepted, and is not exact" in found["log"]
