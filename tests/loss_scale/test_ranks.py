"""An inf on one rank of two: gradients are summed before they are checked, so both ranks skip, and rank 0 says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PADDLE_", "FLAGS_"))}
    launch = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, "--log_dir", str(folder / "log"), str(SCRIPT), str(folder)],
        env=environment | {"PADDLE_DISTRI_BACKEND": "gloo", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_both_ranks_skip_the_same_steps_and_stay_equal(ranks):
    assert ranks[0]["rows"] == ranks[1]["rows"]
    flags = [row[0] for row in ranks[0]["rows"]]
    assert flags == [False] * 3 + [True] * 6
    assert [row[1] for row in ranks[0]["rows"]][-1] == 1024.0 / 2**6
    weights = [row[2] for row in ranks[0]["rows"]]
    assert weights[0] != weights[1] != weights[2] and weights[2] == weights[8]


def test_the_alert_comes_on_both_ranks_and_names_what_each_saw(ranks):
    kinds = [[(step, kind) for step, kind, _, _ in rank["told"]] for rank in ranks]
    assert kinds[0] == kinds[1] == [(4, "loss_scale_settling"), (8, "loss_scale_storm")]
    storm, other = ranks[0]["told"][-1], ranks[1]["told"][-1]
    # rank 0 was finite until the sum: it says that it came from elsewhere, and which parameters it hit
    assert storm[3]["cause"] == "elsewhere" and "it came from another" in storm[2] and "0.weight" in storm[2]
    assert other[3]["cause"] == "data" and "the model's own input is not finite" in other[2]
    assert set(storm[3]["parameters"]) == set(other[3]["parameters"])
