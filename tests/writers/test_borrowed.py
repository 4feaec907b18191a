"""Our curves through the toolkit's own writer: waiting for it, leaving its tags alone, restored on resume."""

import os
import signal
import time

from visualdl import LogWriter

from paddle_memcallbacks.writers import BorrowedVisualDLWriter, JsonLinesWriter
from tests.writers.curves import curves, texts


class Toolkit:
    """A Trainer whose VisualDL writer comes late and goes early."""

    def __init__(self, directory):
        self.directory = directory
        self.writer = None

    def open(self):
        self.writer = LogWriter(str(self.directory))

    def close(self):
        self.writer.close()
        self.writer = None


def test_what_comes_before_the_toolkits_writer_waits_for_it(tmp_path):
    toolkit = Toolkit(tmp_path)
    ours = BorrowedVisualDLWriter(lambda: toolkit.writer)
    ours.write(1, {"memory/step_peak_gib": 1.0, "x%": 2.0, "bad": float("nan")})
    ours.write_text(1, "alerts/x", "early")
    toolkit.open()
    ours.write(2, {"memory/step_peak_gib": 2.0})
    ours.write(3, {"memory/step_peak_gib": 3.0})
    ours.close()
    toolkit.writer.add_scalar("train/loss", 0.5, 2)
    toolkit.close()
    assert curves(tmp_path) == {
        "memory/step_peak_gib": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "x_pct": [(1, 2.0)],
        "train/loss": [(2, 0.5)],
    }
    assert texts(tmp_path) == {"alerts/x": [(1, "early")]}


def test_what_comes_after_the_toolkits_writer_goes_into_its_file(tmp_path):
    toolkit = Toolkit(tmp_path)
    ours = BorrowedVisualDLWriter(lambda: toolkit.writer)
    toolkit.open()
    ours.write(1, {"a": 1.0})
    toolkit.close()
    ours.write(2, {"a": 2.0})
    ours.write_text(2, "alerts/x", "late")
    assert curves(tmp_path) == {"a": [(1, 1.0)]}
    ours.close()
    ours.write(3, {"a": 3.0})
    assert curves(tmp_path) == {"a": [(1, 1.0), (2, 2.0), (3, 3.0)]}
    assert texts(tmp_path) == {"alerts/x": [(2, "late")]}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_closed_writer_that_the_toolkit_keeps_is_not_reopened(tmp_path):
    """LogWriter itself would begin a new file, which hides the curves."""
    toolkit = Toolkit(tmp_path)
    ours = BorrowedVisualDLWriter(lambda: toolkit.writer)
    toolkit.open()
    ours.write(1, {"a": 1.0})
    toolkit.writer.close()
    ours.write(2, {"a": 2.0})
    assert toolkit.writer._file_writer is None
    ours.close()
    assert curves(tmp_path) == {"a": [(1, 1.0), (2, 2.0)]}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_toolkit_that_never_opens_one_leaves_no_file(tmp_path):
    ours = BorrowedVisualDLWriter(lambda: None)
    ours.write(1, {"a": 1.0})
    ours.close()
    ours.write(2, {"a": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_wait_for_a_thread_it_has_not(tmp_path):
    toolkit = Toolkit(tmp_path)
    toolkit.open()
    ours = BorrowedVisualDLWriter(lambda: toolkit.writer)
    ours.write(1, {"a": 1.0})
    child = os.fork()
    if child == 0:
        for step in range(2, 500):  # more than LogWriter's queue holds
            ours.write(step, {"a": 0.0})
        ours.close()
        os._exit(0)
    assert wait_for(child) == 0
    ours.write(2, {"a": 2.0})
    toolkit.close()
    assert curves(tmp_path) == {"a": [(1, 1.0), (2, 2.0)]}


def wait_for(child, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "still running"


def test_the_toolkits_own_loss_is_left_to_it(tmp_path):
    toolkit = Toolkit(tmp_path)
    toolkit.open()
    for leave_out in (("train/loss",), ()):
        BorrowedVisualDLWriter(lambda: toolkit.writer, leave_out=leave_out).write(1, {"train/loss": 1.0, "a": 1.0})
    BorrowedVisualDLWriter(lambda: toolkit.writer).write(2, {"train/loss": 1.0})
    toolkit.close()
    assert curves(tmp_path) == {"train/loss": [(1, 1.0)], "a": [(1, 1.0), (1, 1.0)]}


def test_interval(tmp_path):
    toolkit = Toolkit(tmp_path)
    toolkit.open()
    ours = BorrowedVisualDLWriter(lambda: toolkit.writer, interval=5)
    for step in range(1, 12):
        ours.write(step, {"a": step})
    toolkit.close()
    assert [step for step, _ in curves(tmp_path)["a"]] == [1, 5, 10]


def test_on_resume_the_record_comes_first(tmp_path):
    record = tmp_path / "memcallbacks.jsonl"
    recorded = JsonLinesWriter(record)
    recorded.start(0, {})
    for step in range(1, 6):
        recorded.write(step, {"a": step, "train/loss": 1.0 / step})
    recorded.write_text(2, "alerts/x", "kept")
    toolkit = Toolkit(tmp_path / "vdl")
    ours = BorrowedVisualDLWriter(lambda: toolkit.writer, record_path=record)
    ours.start(3, {})
    toolkit.open()
    ours.write(4, {"a": 40.0, "train/loss": 0.1})
    toolkit.close()
    # the toolkit's new file hides its old loss: ours stands for it up to the resumed step
    assert curves(tmp_path / "vdl") == {
        "a": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)],
        "train/loss": [(1, 1.0), (2, 0.5), (3, 0.3333333432674408)],
    }
    assert texts(tmp_path / "vdl") == {"alerts/x": [(2, "kept")]}


def test_what_waits_is_bounded():
    ours = BorrowedVisualDLWriter(lambda: None)
    for step in range(5000):
        ours.write(step, {"a": 1.0})
    assert len(ours._waiting) == 1000
