"""A run's record as data: torn lines, resumes, names; without paddle."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_memcallbacks.report import read_run, read_runs
from paddle_memcallbacks.report.record import parse_run
from tests.report.records import alert, header, step, write


def test_whole_record(tmp_path):
    path = write(
        tmp_path / "memcallbacks.jsonl",
        header("both", device="cpu"),
        {"active": {"units": 4}},
        step(1, 10.0, a=1.5, b=None, c="inf"),
        alert(1, "look"),
        step(2, 12.5, a=2, c="-inf"),
        {"end": {"reason": "finished"}},
    )
    run = read_run(path)
    assert (run.name, run.header["device"], run.active["units"]) == ("both", "cpu", 4)
    assert run.values("a") == [1.5, 2.0]
    assert run.points("a") == [(1, 1.5), (2, 2.0)]
    assert math.isnan(run.values("b")[0])
    assert run.values("c") == [math.inf, -math.inf]
    assert run.finite("c") == []
    assert run.last("a") == 2.0
    assert math.isnan(run.last("nowhere"))
    assert run.last("nowhere", 0.0) == 0.0
    assert run.step_seconds() == [2.5]
    assert [(text.step, text.text) for text in run.alerts] == [(1, "look")]
    assert run.end == {"reason": "finished"}
    assert run.path == path


def test_a_killed_run_has_no_end(tmp_path):
    run = read_run(write(tmp_path / "memcallbacks.jsonl", header("x"), step(1, a=1), '{"step": 2, "time": 2.0, "metr'))
    assert run.end is None
    assert run.values("a") == [1.0]


@pytest.mark.parametrize(
    "torn",
    [
        '{"step": 2, "metrics": {"a": 9}',
        "\x00\x00\x00",
        "[1, 2]",
        "17",
        '"text"',
        "null",
        '{"step": "two", "metrics": {"a": 9}}',
        '{"step": 2, "metrics": [9]}',
        '{"step": 2, "text": "bare"}',
        '{"resume": 1}',
        '{"run": "bare"}',
        "[" * 100_000,
    ],
)
def test_foreign_lines_are_passed_over(tmp_path, torn):
    path = write(tmp_path / "memcallbacks.jsonl", header("x"), step(1, a=1), torn + "\n", step(3, a=3))
    assert [each.index for each in read_run(path).steps] == [1, 3]


def test_bytes_that_are_no_text(tmp_path):
    path = write(tmp_path / "memcallbacks.jsonl", header("x"), step(1, a=1))
    with path.open("ab") as file:
        file.write(b"\xff\xfe{\n" + json.dumps(step(2, a=2)).encode())
    assert read_run(path).values("a") == [1.0, 2.0]


def test_a_resume_supersedes_later_steps():
    lines = [
        header("x"),
        *(step(index, a=index) for index in range(1, 6)),
        alert(2, "kept"),
        alert(5, "superseded"),
        {"end": {"reason": "killed"}},
        header("x", started=200.0),
        {"resume": {"step": 3, "time": 50.0}},
        step(4, 60.0, a=40),
    ]
    run = parse_run(map(json.dumps, lines))
    assert run.points("a") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
    assert [text.text for text in run.texts] == ["kept"]
    assert run.end is None
    assert run.header["started"] == 200.0
    assert run.header["first_started"] == 100.0


def test_the_pause_before_a_resume_is_no_step():
    lines = [
        header("x"),
        step(1, 1.0),
        step(2, 2.0),
        header("x"),
        {"resume": {"step": 2, "time": 900.0}},
        step(3, 1000.0),
        step(4, 1003.0),
        step(6, 1010.0),
    ]
    assert parse_run(map(json.dumps, lines)).step_seconds() == [1.0, 3.0]


@pytest.mark.parametrize("after", [[step(1, a=10)], [{"active": {}}], [], ["torn"]])
def test_a_fresh_header_begins_anew(after):
    lines = [header("old"), step(1, a=1), step(2, a=2), alert(2, "old"), header("new", started=200.0), *after]
    run = parse_run(line if isinstance(line, str) else json.dumps(line) for line in lines)
    assert run.name == "new"
    assert run.values("a") == ([10.0] if after and "metrics" in after[0] else [])
    assert run.texts == ()
    assert run.header["first_started"] == 200.0


def test_a_step_written_twice_is_the_newer():
    run = parse_run(map(json.dumps, [header("x"), step(1, a=1), step(2, a=2), step(1, a=3)]))
    assert run.points("a") == [(1, 3.0), (2, 2.0)]


def test_names_come_from_headers_or_folders(tmp_path):
    write(tmp_path / "one" / "memcallbacks.jsonl", header("first", started=3.0), step(1))
    write(tmp_path / "two" / "memcallbacks.jsonl", step(1, 5.0))
    write(tmp_path / "three" / "memcallbacks.jsonl", header(started=1.0), step(1))
    assert [run.name for run in read_runs(tmp_path)] == ["three", "first", "two"]


def test_runs_of_one_name_are_called_by_their_folders(tmp_path):
    write(tmp_path / "a" / "x" / "memcallbacks.jsonl", header("paddlenlp", started=1.0), step(1))
    write(tmp_path / "b" / "memcallbacks.jsonl", header("paddlenlp", started=2.0), step(1))
    write(tmp_path / "b" / "memcallbacks.rerun.jsonl", header("paddlenlp", started=3.0), step(1))
    write(tmp_path / "c" / "memcallbacks.jsonl", header("other", started=4.0), step(1))
    write(tmp_path / "memcallbacks.jsonl", header("paddlenlp", started=5.0), step(1))
    assert [run.name for run in read_runs(tmp_path)] == ["a/x", "b", "b/rerun", "other", tmp_path.name]


def test_what_is_no_run_is_left_out(tmp_path):
    write(tmp_path / "a" / "memcallbacks.jsonl", "")
    write(tmp_path / "b" / "other.jsonl", step(1))
    assert read_runs(tmp_path) == []


def test_a_folder_or_a_record(tmp_path):
    path = write(tmp_path / "a" / "memcallbacks.jsonl", header("x"), step(1, a=1))
    assert read_run(path.parent) == read_run(path) == read_runs(path)[0] == read_runs(path.parent)[0]
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path)


def test_needs_no_paddle():
    code = (
        "import sys; from paddle_memcallbacks.report import read_runs; from paddle_memcallbacks.report import page;"
        "sys.exit('paddle' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


numbers = st.one_of(st.integers(-5, 30), st.floats(), st.text(max_size=3), st.none(), st.booleans())
lines_of_any_kind = st.lists(
    st.one_of(
        st.builds(lambda index, value: step(index, 1.0, a=value), st.integers(-2, 20), numbers),
        st.builds(lambda index: alert(index, "text"), st.integers(-2, 20)),
        st.builds(lambda index: {"resume": {"step": index, "time": 1.0}}, numbers),
        st.builds(lambda name: {"run": {"name": name}}, numbers),
        st.builds(lambda value: {"active": value, "end": value}, numbers),
        st.builds(lambda value: {"step": value, "time": value, "metrics": {"a": value}}, numbers),
    ),
    max_size=30,
)


@given(lines=lines_of_any_kind, cut=st.integers(0, 40))
def test_any_record_is_read(lines, cut):
    text = "\n".join(map(json.dumps, lines))
    run = parse_run(text[: len(text) - cut].split("\n"))
    indices = [each.index for each in run.steps]
    assert indices == sorted(set(indices))
    assert all(index >= 0 for index in indices)
    assert all(isinstance(value, float) for value in run.values("a"))
