"""Our VisualDL files, read by VisualDL: what stands in them after resumes, forks, removals and clocks set back."""

import math
import multiprocessing
import shutil
import time

import numpy as np
import pytest

from paddle_memcallbacks.writers import JsonLinesWriter, VisualDLWriter, WriterGroup, hparams_for_visualdl, sanitise_tag
from paddle_memcallbacks.writers.vdl_file import next_file_name
from tests.writers.curves import curves, shown_file, texts, times


def files_of(directory):
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_no_file_before_the_first_point(tmp_path):
    writer = VisualDLWriter(tmp_path / "vdl", "baseline")
    writer.start(0, {})
    writer.close()
    assert not (tmp_path / "vdl").exists()


def test_points_and_texts(tmp_path, capfd):
    writer = VisualDLWriter(tmp_path, "both")
    for step in range(1, 4):
        writer.write(step, {"memory/step_peak_gib": 0.5 * step, "fill%": 2.0})
    writer.write_text(2, "alerts/内存", "grows\nby 2 MiB")
    directory = tmp_path / "both"
    # before close: a killed run has lost nothing
    assert curves(directory) == {
        "memory/step_peak_gib": [(1, 0.5), (2, 1.0), (3, 1.5)],
        "fill_pct": [(i, 2.0) for i in (1, 2, 3)],
    }
    assert texts(directory) == {"alerts/内存": [(2, "grows\nby 2 MiB")]}
    assert len(files_of(directory)) == 1
    assert capfd.readouterr().out == ""


def test_what_is_not_finite_is_left_out(tmp_path):
    writer = VisualDLWriter(tmp_path)
    values = {"nan": math.nan, "inf": math.inf, "none": None, "text": "x", "array": np.ones(2), "huge": 10**400}
    values["more than a float32"] = 1e300
    writer.write(1, {**values, "numpy": np.float32(2), "true": True})
    assert curves(tmp_path) == {"numpy": [(1, 2.0)], "true": [(1, 1.0)]}


def test_interval(tmp_path):
    writer = VisualDLWriter(tmp_path, interval=10)
    for step in range(1, 31):
        writer.write(step, {"a": step})
    assert [step for step, _ in curves(tmp_path)["a"]] == [1, 10, 20, 30]


@pytest.mark.parametrize(("steps", "shown"), [(25, [1, 10, 20, 25]), (20, [1, 10, 20]), (1, [1])])
def test_the_last_step_is_drawn_in_any_case(tmp_path, steps, shown):
    writer = VisualDLWriter(tmp_path, interval=10)
    for step in range(1, steps + 1):
        writer.write(step, {"a": step})
    writer.close()
    writer.close()
    assert curves(tmp_path)["a"] == [(step, step) for step in shown]


def test_a_point_after_close_is_added_to_the_same_file(tmp_path):
    writer = VisualDLWriter(tmp_path)
    writer.write(1, {"a": 1.0})
    writer.close()
    writer.close()
    writer.write(2, {"a": 2.0})
    assert curves(tmp_path) == {"a": [(1, 1.0), (2, 2.0)]}
    assert len(files_of(tmp_path)) == 1


class Run:
    """One process's life: a record and curves in one folder, as a session opens them."""

    def __init__(self, folder, step, interval=1):
        record = folder / "memcallbacks.jsonl"
        self.writers = WriterGroup(
            [JsonLinesWriter(record), VisualDLWriter(folder, record_path=record, interval=interval)]
        )
        self.writers.start(step, {"name": "x"})
        self.step = step

    def go(self, steps, value=0.0):
        for _ in range(steps):
            self.step += 1
            self.writers.write(self.step, {"a": self.step + value})
        return self


def test_a_resumed_run_shows_its_whole_curve(tmp_path):
    first = Run(tmp_path, 0).go(5)
    first.writers.write_text(3, "alerts/x", "kept")
    first.writers.write_text(5, "alerts/x", "superseded")
    before = times(tmp_path, "a")
    # no close(): the first process was killed
    time.sleep(0.5)
    Run(tmp_path, 3).go(3, value=0.5)
    assert curves(tmp_path)["a"] == [(1, 1), (2, 2), (3, 3), (4, 4.5), (5, 5.5), (6, 6.5)]
    assert texts(tmp_path) == {"alerts/x": [(3, "kept")]}
    assert all(abs(now - then) <= 250 for now, then in zip(times(tmp_path, "a")[:3], before[:3], strict=True))


def test_resumed_again_and_again(tmp_path):
    Run(tmp_path, 0).go(4)
    Run(tmp_path, 2).go(3, value=0.1)
    Run(tmp_path, 4).go(2, value=0.2)
    steps, values = zip(*curves(tmp_path)["a"], strict=True)
    assert steps == (1, 2, 3, 4, 5, 6)
    assert values == pytest.approx((1, 2, 3.1, 4.1, 5.2, 6.2))


def test_a_resume_keeps_the_interval(tmp_path):
    Run(tmp_path, 0, interval=4).go(9)
    Run(tmp_path, 9, interval=4).go(4)
    assert [step for step, _ in curves(tmp_path)["a"]] == [1, 4, 8, 12]


def test_a_resume_after_a_torn_line(tmp_path):
    Run(tmp_path, 0).go(3)
    with (tmp_path / "memcallbacks.jsonl").open("a") as file:
        file.write('{"step": 4, "time": 1.0, "metr')
    Run(tmp_path, 3).go(1)
    assert curves(tmp_path)["a"] == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_resume_without_a_record(tmp_path):
    writer = VisualDLWriter(tmp_path, record_path=tmp_path / "nothing.jsonl")
    writer.start(5, {})
    writer.write(6, {"a": 6.0})
    assert curves(tmp_path)["a"] == [(6, 6.0)]


def test_a_resume_that_cannot_bring_the_curve_back_says_so(tmp_path, caplog):
    Run(tmp_path, 0).go(3)
    writer = VisualDLWriter(tmp_path, record_path=tmp_path / "lost.jsonl")
    writer.start(3, {})
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        writer.write(4, {"a": 4.0})
    assert caplog.text.count("holds the curves of an earlier run") == 1


def test_another_run_in_the_same_directory_is_told(tmp_path, caplog):
    Run(tmp_path, 0).go(3)
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        Run(tmp_path, 0).go(1, value=0.5)
    assert curves(tmp_path)["a"] == [(1, 1.5)]
    assert caplog.text.count("holds the curves of an earlier run") == 1
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        caplog.clear()
        Run(tmp_path, 1).go(1)
    assert caplog.text == ""


def test_a_directory_that_is_removed_is_begun_again(tmp_path, caplog):
    run = Run(tmp_path / "x", 0).go(3)
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        shutil.rmtree(tmp_path / "x")
        run.go(2)
    assert curves(tmp_path / "x")["a"] == [(4, 4), (5, 5)]
    assert len(caplog.records) == 2  # the record and the curves, once each


def test_curves_that_are_removed_come_back_from_the_record(tmp_path):
    run = Run(tmp_path, 0).go(3)
    (tmp_path / shown_file(tmp_path)).unlink()
    run.go(2)
    assert curves(tmp_path)["a"] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]


def test_a_forked_child_goes_on_with_the_curve(tmp_path):
    writer = VisualDLWriter(tmp_path)
    writer.write(1, {"a": 1.0})
    child = multiprocessing.get_context("fork").Process(target=lambda: writer.write(2, {"a": 2.0}))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    writer.write(3, {"a": 3.0})
    assert curves(tmp_path)["a"] == [(1, 1.0), (2, 2.0), (3, 3.0)]


@pytest.mark.parametrize(
    "there",
    [
        "vdlrecords.{second}.log",
        "vdlrecords.{second}.999999999.999999.log",
        "vdlrecords.{tomorrow}.log",
        "vdlrecords.0000000001.log",
    ],
)
def test_ours_is_the_file_that_is_shown(tmp_path, there):
    now = int(time.time())
    (tmp_path / there.format(second=f"{now:010d}", tomorrow=f"{now + 86400:010d}")).touch()
    first = next_file_name(tmp_path)
    (tmp_path / first).touch()
    second = next_file_name(tmp_path)
    assert second > first
    assert shown_file(tmp_path) == first
    VisualDLWriter(tmp_path).write(1, {"a": 1.0})
    assert curves(tmp_path) == {"a": [(1, 1.0)]}


def test_foreign_names_do_not_hurt(tmp_path):
    for name in ("vdlrecords", "zz.vdlrecords", "vdlrecords.x.log"):
        (tmp_path / name).touch()
    assert "vdlrecords." in next_file_name(tmp_path)


def test_a_directory_that_cannot_be_made(tmp_path, caplog):
    (tmp_path / "file").touch()
    group = WriterGroup([VisualDLWriter(tmp_path / "file" / "vdl")])
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        for step in range(1, 4):
            group.write(step, {"a": 1.0})
    assert len(caplog.records) == 1
    assert "VisualDLWriter failed and is left out" in caplog.text


@pytest.mark.parametrize(
    ("tag", "clean"),
    [
        ("mem/util%", "mem/util_pct"),
        ("a b/c-d.e_f", "a b/c-d.e_f"),
        ("内存/峰值", "内存/峰值"),
        ("a\\b\n", "a_b_"),
        (3, "3"),
        ("", "_"),
    ],
)
def test_tags(tag, clean):
    assert sanitise_tag(tag) == clean


def test_hparams(tmp_path):
    from visualdl import LogWriter

    given = {
        "bool": True,
        "int": 3,
        "numpy": np.int64(4),
        "float": np.float32(0.5),
        "none": None,
        "list": [1],
        "text": "x",
        "inf": math.inf,
        "seed": 2**63,
        "least": -(2**63),
    }
    plain = hparams_for_visualdl(given)
    assert plain == {
        "bool": "True",
        "int": 3,
        "numpy": 4,
        "float": 0.5,
        "none": "None",
        "list": "[1]",
        "text": "x",
        "inf": "inf",
        "seed": "9223372036854775808",
        "least": -(2**63),
    }
    assert [type(plain[name]) for name in ("int", "numpy", "float")] == [int, int, float]
    with LogWriter(str(tmp_path)) as writer:
        writer.add_hparams(plain, ["train/loss"])
