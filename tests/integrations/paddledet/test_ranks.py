"""Two gloo processes under paddle.distributed.launch train as one process does on whole batches of twice the rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from .conftest import RUNS, python

pytestmark = pytest.mark.paddledet


def test_two_ranks_equal_one_process(run, scenes: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", logs]
    done = python(*launch, RUNS / "ranks.py", scenes, tmp_path)
    said = [(logs / f"workerlog.{rank}").read_text() for rank in range(2)]
    assert done.returncode == 0, said[0][-3000:] + said[1][-3000:]
    first, second = (json.loads(text.strip().splitlines()[-1]) for text in said)
    alone = run("ranks")
    expected = np.load(tmp_path / "whole_1_0.npz")

    counts = {mode: [size for size in first[mode]["reductions"] if size == 1] for mode in first}
    assert len(counts["talking whole"]) == 6, "a loss that all-reduces what it divides by does so once a whole batch"
    assert counts["talking"] == [], "and never in a slice: the ranks may take different numbers of them"
    assert first["talking"]["slices"] == [3, 1]

    assert first["whole"]["vdl_callback"] and not second["whole"]["vdl_callback"], "a second file would hide the first"
    for mode in ("micro-batches", "whole", "fleet"):
        result = first[mode]
        assert result["rates"] == alone["whole"]["rates"], mode
        assert result["slices"] == ([4, 4] if mode == "whole" else [2, 2])
        gradients = [size for size in result["reductions"] if size == result["parameters"]]
        others = [size for size in result["reductions"] if size != result["parameters"]]
        assert len(gradients) == 6, "one reduction of all gradients a step"
        assert max(others) < 20, "and one of a few flags"
        assert second[mode]["reductions"] == result["reductions"]
        assert (result["vdl_files"], result["records"]) == (1, 1), "rank 0 alone writes"
        for rank in range(2):
            weights = np.load(tmp_path / f"{mode}_2_{rank}.npz")
            assert max(np.abs(weights[name] - expected[name]).max() for name in expected) <= 1e-6, (mode, rank)
