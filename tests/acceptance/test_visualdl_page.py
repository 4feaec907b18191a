"""Four runs in the real VisualDL: listed with their values, and drawn side by side in a browser."""

import pytest

from paddle_memcallbacks.writers import VisualDLWriter
from tests.acceptance.browser import browser_page, chromium
from tests.acceptance.scalar_page import fetched_curves, open_scalars, run_colours, wait_for_curves
from tests.acceptance.visualdl_server import visualdl_server

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed"),
]

STEPS = range(1, 31)
PEAKS_GIB = {"baseline": 2.25, "accumulation": 0.75, "recompute": 1.0, "both": 0.5}


def metrics_of(run: str, step: int) -> dict[str, float]:
    peak = PEAKS_GIB[run] + 0.001 * (step % 3)
    return {
        "memory/step_peak_gib": peak,
        "memory/peak_forward_gib": peak - 0.25,
        "memory/held_after_forward_gib": peak - 0.375,
        "memory/fragmentation_pct": 12.5,
        "accumulation/micro_batches": 4.0 if run in ("accumulation", "both") else 1.0,
        "amp/loss_scale": float("inf") if step == 7 else 65536.0,
        "train/loss": 0.7 * 0.97**step,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("demo") / "visualdl"
    for run in PEAKS_GIB:
        writer = VisualDLWriter(logdir, run)
        for step in STEPS:
            writer.write(step, metrics_of(run, step))
        writer.write_text(8, "alerts/loss_scale_storm", f"{run}: 2 steps skipped in a row")
        writer.close()
    with visualdl_server(logdir) as running:
        yield running


def test_all_runs_with_their_tags(server):
    assert server.runs() == sorted(PEAKS_GIB)
    assert {run: set(tags) for run, tags in server.tags().items()} == {
        run: set(metrics_of(run, 1)) for run in PEAKS_GIB
    }


@pytest.mark.parametrize("run", PEAKS_GIB)
def test_values(server, run):
    for tag in metrics_of(run, 1):
        written = [(step, metrics_of(run, step)[tag]) for step in STEPS if metrics_of(run, step)[tag] != float("inf")]
        shown = server.points(run, tag)
        assert [step for step, _ in shown] == [step for step, _ in written]
        assert [value for _, value in shown] == pytest.approx([value for _, value in written], rel=1e-6)


def test_alerts_are_texts(server):
    listed = server.api("text/tags")
    assert sorted(listed["runs"]) == sorted(f"{server.name}/{run}" for run in PEAKS_GIB)
    assert all(tags == ["alerts/loss_scale_storm"] for tags in listed["tags"])


def test_the_page_draws_four_runs_that_can_be_told_apart(server, tmp_path):
    runs = sorted(PEAKS_GIB)
    with browser_page() as page:
        open_scalars(page, server, "memory")
        colours = run_colours(page, server)
        assert sorted(colours) == runs
        assert len(set(colours.values())) == 4
        wait_for_curves(page, colours)
        assert [run for run in runs if f"{server.name}/{run}" in page.text().splitlines()] == runs
        page.screenshot(tmp_path / "scalars.png")
        memory_tags = [tag for tag in metrics_of("both", 1) if tag.startswith("memory/")]
        assert {(run, tag) for run in runs for tag in memory_tags} <= fetched_curves(page, server)
    assert (tmp_path / "scalars.png").stat().st_size > 20_000
