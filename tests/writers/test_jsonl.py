"""The record: every line on disk at once, plain JSON, torn lines and removed folders survived."""

import json
import math
import multiprocessing
from pathlib import Path

import pytest

from paddle_memcallbacks.writers import JsonLinesWriter, WriterGroup


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "memcallbacks.jsonl"


def lines_of(path: Path):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run(path):
    writer = JsonLinesWriter(path)
    writer.start(0, {"name": "both", "config": {"recompute": {"layers": ("a", "b")}}})
    writer.describe({"units": 4})
    writer.write(1, {"train/loss": 0.5, "amp/loss_scale": math.inf, "x": -math.inf, "y": math.nan})
    writer.write_text(1, "alerts/memory_growth", "内存 grows")
    writer.finish({"reason": "finished"})
    writer.close()
    run, active, step, text, end = lines_of(path)
    assert run["run"].pop("started") > 1.7e9
    assert run == {"run": {"name": "both", "config": {"recompute": {"layers": ["a", "b"]}}}}
    assert active == {"active": {"units": 4}}
    assert step.pop("time") > 1.7e9
    assert step == {"step": 1, "metrics": {"train/loss": 0.5, "amp/loss_scale": "inf", "x": "-inf", "y": "nan"}}
    assert (text["step"], text["text"]) == (1, {"tag": "alerts/memory_growth", "text": "内存 grows"})
    assert end["end"]["reason"] == "finished"


def test_a_run_that_never_starts_leaves_no_file(path):
    JsonLinesWriter(path).close()
    assert not path.parent.exists()


def test_every_line_is_on_disk_at_once(path):
    writer = JsonLinesWriter(path)
    for step in range(1, 4):
        writer.write(step, {"a": 1.0})
        assert [line["step"] for line in lines_of(path)] == list(range(1, step + 1))


def test_a_value_that_is_no_number_does_not_end_the_record(path):
    writer = JsonLinesWriter(path)
    writer.write(1, {"none": None, "list": [1, 2], "nan": float("nan"), "a": 1.0})
    writer.write(2, {"a": 2.0})
    first, second = lines_of(path)
    assert first["metrics"] == {"none": "None", "list": "[1, 2]", "nan": "nan", "a": 1.0}
    assert second["metrics"] == {"a": 2.0}


def test_a_resume_is_marked(path):
    for step in (0, 10):
        writer = JsonLinesWriter(path)
        writer.start(step, {"name": "x"})
        writer.close()
    assert [next(iter(line)) for line in lines_of(path)] == ["run", "run", "resume"]
    assert lines_of(path)[-1]["resume"]["step"] == 10


def test_a_torn_line_is_ended_first(path):
    path.parent.mkdir()
    path.write_text('{"step": 1, "metr')
    JsonLinesWriter(path).write(2, {"a": 1.0})
    torn, whole = path.read_text().splitlines()
    assert torn == '{"step": 1, "metr'
    assert json.loads(whole)["step"] == 2


def test_any_setting_can_be_recorded(path):
    writer = JsonLinesWriter(path)
    writer.start(0, {"facts": {"path": Path("/x"), 3: {1}, "rate": math.inf, "none": None, "text": "\ud800"}})
    facts = lines_of(path)[0]["run"]["facts"]
    assert facts == {"path": "/x", "3": [1], "rate": "inf", "none": None, "text": "?"}


def test_a_line_after_close_is_added(path):
    writer = JsonLinesWriter(path)
    writer.write(1, {"a": 1.0})
    writer.close()
    writer.close()
    writer.write(2, {"a": 1.0})
    assert [line["step"] for line in lines_of(path)] == [1, 2]


def test_a_folder_that_is_removed_is_begun_again(path, caplog):
    writer = JsonLinesWriter(path)
    writer.start(10, {"name": "x"})
    writer.describe({"units": 4})
    writer.write(11, {"a": 1.0})
    for step in (12, 14):
        path.unlink()
        path.parent.rmdir()
        with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
            writer.write(step, {"a": 1.0})
            writer.write(step + 1, {"a": 1.0})
        assert [next(iter(line)) for line in lines_of(path)] == ["run", "resume", "active", "step", "step"]
        assert [line["step"] for line in lines_of(path)[3:]] == [step, step + 1]
    assert caplog.text.count("was removed while the run goes on") == 1


def test_a_full_disk_is_one_warning(caplog):
    writer = JsonLinesWriter("/dev/full")
    group = WriterGroup([writer])
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        for step in range(5):
            group.write(step, {"a": 1.0})
        group.finish({})
    assert caplog.text.count("No space left on device") == 1
    assert len(caplog.records) == 1


def test_a_forked_child_goes_on_with_the_record(path):
    writer = JsonLinesWriter(path)
    writer.write(1, {"a": 1.0})
    child = multiprocessing.get_context("fork").Process(target=lambda: writer.write(2, {"a": 2.0}))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    writer.write(3, {"a": 3.0})
    writer.close()
    assert [line["step"] for line in lines_of(path)] == [1, 2, 3]
