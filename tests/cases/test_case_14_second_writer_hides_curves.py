"""VisualDL shows one file of a directory, the newest: an empty second writer hides all curves. Ours leaves none."""

import time

import pytest
from visualdl import LogWriter

from paddle_memcallbacks.writers import JsonLinesWriter, VisualDLWriter, WriterGroup
from tests.writers.curves import curves

CURVE = [(step, 1.0 / step) for step in range(1, 6)]


def wait_for_the_next_second():
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.01)


def shown(directory):
    return [step for step, _ in curves(directory).get("train/loss", [])]


@pytest.fixture
def native(tmp_path):
    writer = LogWriter(str(tmp_path))
    for step, value in CURVE:
        writer.add_scalar("train/loss", value, step)
    writer.close()
    assert shown(tmp_path) == [1, 2, 3, 4, 5]
    wait_for_the_next_second()
    return tmp_path


@pytest.fixture
def ours(tmp_path):
    """A run of ours, killed after five steps."""
    record = JsonLinesWriter(tmp_path / "memcallbacks.jsonl")
    writer = VisualDLWriter(tmp_path, record_path=record.path)
    for each in (record, writer):
        each.start(0, {"name": "x"})
    for step, value in CURVE:
        for each in (record, writer):
            each.write(step, {"train/loss": value})
    assert shown(tmp_path) == [1, 2, 3, 4, 5]
    wait_for_the_next_second()
    return tmp_path


def test_natively_a_second_writer_that_writes_nothing_hides_the_curve(native):
    LogWriter(str(native)).close()
    assert shown(native) == []


def test_natively_a_resumed_run_shows_its_own_steps_alone(native):
    with LogWriter(str(native)) as resumed:
        resumed.add_scalar("train/loss", 0.1, 6)
    assert shown(native) == [6]


def test_a_second_writer_of_ours_that_writes_nothing_leaves_no_file(ours):
    second = VisualDLWriter(ours)
    second.start(0, {"name": "x"})
    second.close()
    assert shown(ours) == [1, 2, 3, 4, 5]


def test_a_resumed_run_of_ours_shows_all_steps(ours):
    resumed = VisualDLWriter(ours, record_path=ours / "memcallbacks.jsonl")
    resumed.start(5, {"name": "x"})
    resumed.write(6, {"train/loss": 0.1})
    assert shown(ours) == [1, 2, 3, 4, 5, 6]


def test_a_restart_in_the_same_directory_is_told(ours, caplog):
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        again = VisualDLWriter(ours)
        again.start(0, {"name": "x"})
        again.write(1, {"train/loss": 1.0})
    assert "holds the curves of an earlier run" in caplog.text


def test_other_ranks_open_nothing(tmp_path, monkeypatch):
    import paddle

    from paddle_memcallbacks.config import load_config
    from paddle_memcallbacks.opening import open_writers

    for rank, files in ((1, []), (0, ["memcallbacks.jsonl", "vdlrecords"])):
        monkeypatch.setattr(paddle.distributed, "get_rank", lambda rank=rank: rank)
        writers = WriterGroup(open_writers(load_config({}), tmp_path))
        writers.start(0, {"name": "x"})
        writers.write(1, {"train/loss": 1.0})
        writers.close()
        names = sorted(path.name for path in tmp_path.iterdir())
        assert [name[: len(start)] for name, start in zip(names, files, strict=True)] == files
