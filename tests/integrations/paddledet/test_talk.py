"""A loss that all-reduces inside forward must not leave other ranks waiting when one runs out of memory."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.paddledet


def test_replay_only_where_no_other_rank_waits(run) -> None:
    found = run("talk")
    assert found["picodet"] and found["synced"]
    assert found["plain"] == [False, False]
    assert found["alone"] == 1 and found["restored"]
    assert found["silent"] == "trained in slices of 4", "replayed with half the rows"
    assert found["whole"].startswith("stopped: out of memory with 8 rows on rank 0.")
    assert "{micro_batch_size: 4}" in found["whole"]
    assert found["sliced"] == "trained in slices of 2", "slices talk to nobody"
    assert found["norms"].startswith("stopped:"), "but SyncBatchNorm does in every slice"
