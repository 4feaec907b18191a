"""VisualDL's writer: a file shared within a second, errors for common values, points that vanish. Each beside ours."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from visualdl import LogWriter

from paddle_memcallbacks.writers import VisualDLWriter, WriterGroup
from tests.writers.curves import curves

BAD_VALUES = {
    "a tag with %": ("mem/util%", 1.0, 0, RuntimeError),
    "an array": ("x", np.ones(2), 0, Exception),
    "a string": ("x", "n/a", 0, ValueError),
    "a float step": ("x", 1.0, 1.5, TypeError),
}


def early_in_a_second():
    while time.time() % 1 > 0.3:
        time.sleep(0.01)


def test_natively_two_writers_of_one_second_share_a_file(tmp_path):
    early_in_a_second()
    first, second = LogWriter(str(tmp_path)), LogWriter(str(tmp_path))
    for step in range(3):
        first.add_scalar("loss", 1.0, step)
        second.add_scalar("loss", 100.0, step)
    first.close()
    second.close()
    assert len(os.listdir(tmp_path)) == 1
    assert len(curves(tmp_path)["loss"]) == 6


def test_two_of_ours_do_not(tmp_path):
    early_in_a_second()
    first, second = VisualDLWriter(tmp_path), VisualDLWriter(tmp_path)
    for step in range(1, 4):
        first.write(step, {"loss": 1.0})
        second.write(step, {"loss": 100.0})
    assert len(os.listdir(tmp_path)) == 2
    assert curves(tmp_path)["loss"] == [(1, 100.0), (2, 100.0), (3, 100.0)]


@pytest.mark.parametrize("what", BAD_VALUES)
def test_natively_a_bad_value_ends_the_training(tmp_path, what):
    tag, value, step, error = BAD_VALUES[what]
    with LogWriter(str(tmp_path)) as writer, pytest.raises(error):
        writer.add_scalar(tag, value, step)


@pytest.mark.parametrize("what", BAD_VALUES)
def test_ours_writes_what_it_can(tmp_path, what, caplog):
    tag, value, step, _ = BAD_VALUES[what]
    group = WriterGroup([VisualDLWriter(tmp_path)])
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        group.write(int(step) + 1, {tag: value, "good": 2.0})
    assert curves(tmp_path)["good"] == [(int(step) + 1, 2.0)]
    assert caplog.text == ""


def test_natively_nan_becomes_a_point(tmp_path):
    with LogWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", float("nan"), 1)
    assert [step for step, _ in curves(tmp_path)["loss"]] == [1]


def test_ours_leaves_it_out(tmp_path):
    VisualDLWriter(tmp_path).write(1, {"loss": float("nan"), "good": 2.0})
    assert list(curves(tmp_path)) == ["good"]


def test_natively_the_queue_and_the_flush_interval_are_swapped(tmp_path):
    with LogWriter(str(tmp_path), max_queue=7, flush_secs=33) as writer:
        assert writer._file_writer._async_writer._bytes_queue.maxsize == 33


def test_ours_has_neither_queue_nor_thread(tmp_path):
    import threading

    before = threading.active_count()
    writer = VisualDLWriter(tmp_path)
    writer.write(1, {"loss": 1.0})
    assert threading.active_count() == before
    assert curves(tmp_path)["loss"] == [(1, 1.0)]


def test_natively_a_removed_directory_swallows_points(tmp_path):
    directory = tmp_path / "run"
    writer = LogWriter(str(directory))
    writer.add_scalar("loss", 0.0, 1)
    writer._file_writer.flush()
    shutil.rmtree(directory)
    for step in range(2, 7):
        writer.add_scalar("loss", float(step), step)
    writer.close()
    assert [step for step, _ in curves(directory)["loss"]] == [3, 4, 5, 6]


def test_ours_tells_and_keeps_them(tmp_path, caplog):
    directory = tmp_path / "run"
    writer = VisualDLWriter(directory)
    writer.write(1, {"loss": 0.0})
    shutil.rmtree(directory)
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        for step in range(2, 7):
            writer.write(step, {"loss": float(step)})
    assert [step for step, _ in curves(directory)["loss"]] == [2, 3, 4, 5, 6]
    assert len(caplog.records) == 1


def forked(act):
    """The exit status of ``act`` in a forked child; -SIGKILL where it had to be ended after five seconds."""
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_natively_a_forked_child_hangs(tmp_path):
    writer = LogWriter(str(tmp_path))
    writer.add_scalar("loss", 1.0, 1)
    writer._file_writer.flush()

    def write_and_flush():
        writer.add_scalar("loss", 2.0, 2)
        writer._file_writer.flush()

    assert forked(write_and_flush) == -signal.SIGKILL
    writer.close()


def test_ours_does_not(tmp_path):
    writer = VisualDLWriter(tmp_path)
    writer.write(1, {"loss": 1.0})
    assert forked(lambda: writer.write(2, {"loss": 2.0})) == 0
    assert curves(tmp_path)["loss"] == [(1, 1.0), (2, 2.0)]


FULL = """
import resource, sys
from paddle_memcallbacks.writers import VisualDLWriter, WriterGroup
from visualdl import LogWriter

native, folder = sys.argv[1] == "native", sys.argv[2]
if native:
    writer = LogWriter(folder)
    write = lambda step: writer.add_scalar("loss", 1.0, step)
else:
    writer = WriterGroup([VisualDLWriter(folder)])
    write = lambda step: writer.write(step, {"loss": 1.0})
write(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for step in range(2, 200):
    write(step)
writer.close()
"""


def fill(who, folder):
    done = subprocess.run(
        [sys.executable, "-c", FULL, who, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_natively_a_full_disk_is_a_print_from_a_thread(tmp_path):
    out, err = fill("native", tmp_path)
    assert "Writing data Error" in out
    assert err == ""


def test_ours_is_one_warning(tmp_path):
    out, err = fill("ours", tmp_path)
    assert out == ""
    assert err.count("VisualDLWriter failed and is left out from here on; training goes on") == 1
    assert err.count("\n") == 1


def test_natively_each_point_opens_the_file(tmp_path, monkeypatch):
    from visualdl.io import bfile

    opened = []
    write = bfile.LocalFileSystem._write
    monkeypatch.setattr(bfile.LocalFileSystem, "_write", lambda self, *args: (opened.append(1), write(self, *args))[1])
    with LogWriter(str(tmp_path)) as writer:
        for step in range(100):
            writer.add_scalar("loss", 1.0, step)
    assert len(opened) >= 100


def test_ours_writes_once_a_step(tmp_path):
    writer = VisualDLWriter(tmp_path)
    writer.write(1, {"loss": 1.0})
    before = written_calls()
    for step in range(2, 102):
        writer.write(step, {f"tag{number}": 1.0 for number in range(20)})
    assert written_calls() - before <= 110


def written_calls():
    """Write system calls of this process so far."""
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("syscw"))
