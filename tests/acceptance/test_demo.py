"""``make demo``'s own runs, shortened: the table, the record, and the curves in the real VisualDL in a real browser."""

import subprocess
import sys
from pathlib import Path

import pytest

from paddle_memcallbacks.report.record import read_runs
from tests.acceptance.browser import browser_page, chromium
from tests.acceptance.scalar_page import open_scalars, run_colours, wait_for_curves
from tests.acceptance.visualdl_server import visualdl_server

pytestmark = pytest.mark.paddlenlp

RUNS = ["accumulation", "baseline", "both", "recompute"]
DEMO = Path(__file__).resolve().parents[2] / "examples" / "ernie_reviews" / "demo.py"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    output = tmp_path_factory.mktemp("demo") / "output"
    done = subprocess.run(
        [sys.executable, str(DEMO), "--steps=3", f"--output={output}"],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return output, done.stdout


def test_the_table_compares_four_runs(demo):
    _, printed = demo
    for run in RUNS:
        assert run in printed
    assert "visualdl --logdir" in printed


def test_the_figures_of_the_records(demo):
    output, _ = demo
    runs = {run.name: run for run in read_runs(output)}
    assert sorted(runs) == RUNS

    def most(name, tag):
        return max(runs[name].values(tag))

    assert most("both", "memory/held_after_forward_gib") <= 0.1 * most("baseline", "memory/held_after_forward_gib")
    assert most("recompute", "recompute/units") == 4
    assert {run.last("accumulation/micro_batches") for run in runs.values()} == {1.0, 4.0}
    assert runs["recompute"].values("train/loss") == runs["baseline"].values("train/loss")
    assert runs["accumulation"].values("train/loss") == pytest.approx(runs["baseline"].values("train/loss"), rel=1e-5)


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
def test_the_board_shows_all_four_side_by_side(demo, tmp_path):
    output, _ = demo
    with visualdl_server(output / "visualdl") as server:
        assert server.runs() == RUNS
        with browser_page() as page:
            open_scalars(page, server, "memory")
            colours = run_colours(page, server)
            assert sorted(colours) == RUNS
            assert len(set(colours.values())) == 4
            wait_for_curves(page, colours)
            page.screenshot(tmp_path / "demo.png")
        for tag in ("memory/peak_backward_gib", "memory/held_after_forward_gib", "memory/step_peak_gib"):
            assert all([step for step, _ in server.points(run, tag)] == [1, 2, 3] for run in RUNS)
