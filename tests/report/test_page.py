"""The table and the page: what stands in them, whatever the record holds."""

import base64
import html
import re
import subprocess
import sys

import pytest
from rich.console import Console

from paddle_memcallbacks.report import read_run, read_runs
from paddle_memcallbacks.report.figures import figures_of, seconds_text, size_text
from paddle_memcallbacks.report.page import table, write_html
from tests.report.records import alert, header, step, write

GIB = 2**30


def a_run(tmp_path, name, peak=2.0, skipped=None, alerts=(), seconds=1.0, reason="finished", started=0.0, **more):
    amp = {} if skipped is None else {"amp__skipped_steps_total": skipped, "amp__loss_scale": 1024.0}
    return write(
        tmp_path / name / "memcallbacks.jsonl",
        header(name, started=started),
        *(
            step(
                index,
                index * seconds,
                memory__step_peak_gib=peak - 0.125 * (index % 2),
                memory__base_gib=0.25,
                memory__held_after_forward_gib=peak / 2,
                memory__peak_forward_gib=peak - 0.5,
                memory__peak_backward_gib=peak,
                memory__peak_step_gib=0.5,
                accumulation__micro_batch_size=8,
                accumulation__micro_batches=4,
                train__loss=1.0 / index,
                **amp,
                **more,
            )
            for index in range(1, 6)
        ),
        *(alert(4, text) for text in alerts),
        {"end": {"reason": reason}},
    )


def printed(runs, width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(runs))
    return console.export_text().splitlines()


def rows_of(runs):
    """Cells by run, as the terminal shows them."""
    lines = printed(runs, 200)
    head = next((number for number, line in enumerate(lines) if "─" in line), len(lines))
    rows = [re.split(r"  +", line.strip()) for line in lines[head + 1 :] if line.strip()]
    return {name: cells for name, *cells in rows}


def page_of(runs, tmp_path):
    write_html(runs, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_figures(tmp_path):
    a_run(tmp_path, "recompute", peak=0.75, seconds=2.5, started=1.0)
    a_run(tmp_path, "baseline", peak=2.0, skipped=3, alerts=["one", "two"], started=2.0)
    recompute, baseline = figures_of(read_runs(tmp_path))
    assert (baseline.peak_bytes, recompute.peak_bytes) == (2 * GIB, 0.75 * GIB)
    assert (baseline.held_bytes, recompute.held_bytes) == (1 * GIB, 0.375 * GIB)
    assert baseline.phase_bytes == (1.5 * GIB, 2.0 * GIB, 0.5 * GIB)
    assert baseline.base_bytes == 0.25 * GIB
    assert (recompute.saved_bytes, recompute.saved_share) == (1.25 * GIB, 0.625)
    assert baseline.saved_share != baseline.saved_share
    assert (baseline.step_seconds, recompute.step_seconds) == (1.0, 2.5)
    assert (baseline.skipped, baseline.alerts, baseline.steps) == (3, 2, 5)
    assert baseline.loss == 0.2


def test_table(tmp_path):
    a_run(tmp_path, "recompute", peak=0.75, seconds=2.5, started=1.0)
    a_run(tmp_path, "baseline", skipped=3, alerts=["one", "two"], started=2.0)
    rows = rows_of(read_runs(tmp_path))
    assert list(rows) == ["recompute", "baseline"]
    assert rows["recompute"] == ["8 x 4", "384.0 MiB", "768.0 MiB", "62.5 %", "2.50 s", "-", "0"]
    assert rows["baseline"] == ["8 x 4", "1.00 GiB", "2.00 GiB", "-", "1.00 s", "3", "2"]


def test_a_table_fits_an_ordinary_terminal(tmp_path):
    for number, name in enumerate(["baseline", "accumulation", "recompute", "both"]):
        a_run(tmp_path, name, peak=(103.7 + number) / 1024, skipped=12345, started=float(number))
    lines = [line for line in printed(read_runs(tmp_path), 80) if line.strip()]
    assert len(lines) == 2 + 1 + 4
    assert max(map(len, lines)) <= 80


def test_without_a_baseline_the_first_run_is_it(tmp_path):
    a_run(tmp_path, "b", peak=2.0, started=1.0)
    a_run(tmp_path, "a", peak=3.0, started=2.0)
    rows = rows_of(read_runs(tmp_path))
    assert rows["b"][3] == "-"
    assert rows["a"][3] == "-50.0 %"


def test_a_baseline_that_is_called_by_its_folder(tmp_path):
    for started, name in enumerate(["both", "baseline"]):
        lines = header("paddlenlp", started=float(started)), step(1, memory__step_peak_gib=1.0 + started)
        write(tmp_path / "ernie" / name / "memcallbacks.jsonl", *lines)
    rows = rows_of(read_runs(tmp_path))
    assert {name: cells[3] for name, cells in rows.items()} == {"ernie/both": "50.0 %", "ernie/baseline": "-"}


def test_a_record_of_paddle_26_has_the_highest_so_far(tmp_path):
    path = write(tmp_path / "memcallbacks.jsonl", header("old"), step(1, memory__peak_allocated_gib=1.5))
    assert rows_of([read_run(path)])["old"] == ["-", "-", "1.50 GiB", "-", "-", "-", "0"]


def test_nothing_at_all(tmp_path):
    assert rows_of([]) == {}
    assert "No runs." in page_of([], tmp_path)


def test_markup_in_names_and_alerts_is_text(tmp_path):
    name, text = "[bold]run[/]<b>", "<script>alert(1)</script> & 内存 [red]"
    write(tmp_path / "memcallbacks.jsonl", header(name), step(1, memory__step_peak_gib=1.0), alert(1, text))
    runs = read_runs(tmp_path)
    assert name in rows_of(runs)
    page = page_of(runs, tmp_path)
    assert "<script>" not in page
    assert html.escape(text, quote=False) in page
    assert html.escape(name) in page


def test_page(tmp_path):
    a_run(tmp_path, "baseline", alerts=["grows by 2 MiB a step"], started=1.0)
    a_run(tmp_path, "both", peak=0.5, skipped=2, reason="KeyboardInterrupt: ", started=2.0)
    page = page_of(read_runs(tmp_path), tmp_path)
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', page)
    assert [title for _, title in pictures] == ["Memory of each step, GiB", "Peaks by phase, GiB", "Loss", "Loss scale"]
    assert all(base64.b64decode(data).startswith(b"\x89PNG") for data, _ in pictures)
    assert "grows by 2 MiB a step" in page
    assert "KeyboardInterrupt" in page
    assert "75.0 % (1.50 GiB)" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_no_loss_scale_no_picture_of_it(tmp_path):
    a_run(tmp_path, "baseline")
    assert "Loss scale" not in page_of(read_runs(tmp_path), tmp_path)


def test_values_that_cannot_be_drawn(tmp_path):
    values = {"memory__step_peak_gib": "inf", "train__loss": "nan", "amp__loss_scale": 0.0, "memory__budget_gib": None}
    write(tmp_path / "memcallbacks.jsonl", header("x"), step(1, **values), step(2, memory__step_peak_gib=None))
    page = page_of(read_runs(tmp_path), tmp_path)
    assert re.findall(r'alt="([^"]+)"', page) == ["Loss scale"]


@pytest.mark.parametrize("count", [1, 9, 40])
def test_any_number_of_runs(tmp_path, count):
    for number in range(count):
        a_run(tmp_path, f"run{number:02d}", peak=1.0 + number / 16, started=float(number))
    page = page_of(read_runs(tmp_path), tmp_path)
    assert page.count("data:image/png") == 3
    assert all(f"run{number:02d}" in page for number in range(count))


def test_many_alerts_are_cut(tmp_path):
    a_run(tmp_path, "baseline", alerts=[f"alert number {number}" for number in range(130)])
    page = page_of(read_runs(tmp_path), tmp_path)
    assert page.count("alert number") == 100
    assert "and 30 more" in page


def test_settings_are_listed(tmp_path):
    config = {"recompute": {"enable": True, "layers": ["encoder.*"]}, "memory": {"budget": None}}
    write(
        tmp_path / "memcallbacks.jsonl", header("x", paddle="3.3.1", config=config), {"active": {"units": 4}}, step(1)
    )
    page = page_of(read_runs(tmp_path), tmp_path)
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    assert pairs == [
        ("paddle", "3.3.1"),
        ("units", "4"),
        ("config.recompute.enable", "True"),
        ("config.recompute.layers", "[&#39;encoder.*&#39;]"),
    ]


def test_the_users_own_pyplot_is_left_alone(tmp_path):
    a_run(tmp_path, "baseline")
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy();"
        "from paddle_memcallbacks.report import page, read_runs;"
        f"page.write_html(read_runs({str(tmp_path)!r}), '/dev/null');"
        "assert 'matplotlib.pyplot' not in sys.modules;"
        "assert before == matplotlib.rcParams.copy()"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, timeout=120, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (-3 * 2**30, "-3.00 GiB"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_sizes(size, text):
    assert size_text(size) == text


def test_seconds():
    assert [seconds_text(value) for value in (0.0123, 0.9999, 75.0, float("nan"))] == [
        "12.3 ms",
        "1.00 s",
        "75.00 s",
        "-",
    ]
