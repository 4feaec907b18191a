"""Case 19: under DataParallel, recompute and accumulation leave gradients unsynchronised, or stop with a wrong hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.microbatch.launch import two_ranks

WORKER = Path(__file__).with_name("case_19_worker.py")
RIGHT = [3.0, 3.0, 3.0]


def seen(way: str) -> list[dict[str, Any]]:
    outputs = two_ranks(WORKER, way)
    lines = [[line for line in output.splitlines() if line.startswith("SEEN ")] for output in outputs]
    assert all(lines), outputs[0][-2000:] + outputs[1][-2000:]
    return [json.loads(line[-1][5:]) for line in lines]


def test_natively_the_first_layers_drift_apart_and_the_middle_one_stops() -> None:
    first, second = seen("native")
    assert first["reentrant_middle"] == "ready before"
    assert first["reentrant_first"] != second["reentrant_first"]
    assert first["plain"] == first["hooks_middle"] == RIGHT


def test_with_the_slice_loop_every_wrapping_gives_the_whole_batchs_gradient_on_both_ranks() -> None:
    for rank in seen("library"):
        assert rank == dict.fromkeys(("plain", "hooks_middle", "reentrant_middle", "reentrant_first"), RIGHT)
