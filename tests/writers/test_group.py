"""A writer that fails steps aside, with one warning; the others and the training go on."""

import pytest

from paddle_memcallbacks.writers import ConsoleWriter, WriterGroup
from paddle_memcallbacks.writers.console import step_line


class Keeps:
    def __init__(self):
        self.calls = []

    def write(self, step, metrics):
        self.calls.append(("write", step, dict(metrics)))

    def write_text(self, step, tag, text):
        self.calls.append(("text", step, tag, text))

    def close(self):
        self.calls.append(("close",))


class KeepsAll(Keeps):
    def start(self, step, header):
        self.calls.append(("start", step, header))

    def describe(self, active):
        self.calls.append(("describe", active))

    def finish(self, summary):
        self.calls.append(("finish", summary))


class Fails(Keeps):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def write(self, step, metrics):
        super().write(step, metrics)
        if step == self.at:
            raise OSError(28, "No space left on device")

    def close(self):
        super().close()
        raise ValueError("closing fails too")


def test_everything_reaches_everyone():
    some, all_of_it = Keeps(), KeepsAll()
    group = WriterGroup([some, all_of_it])
    group.start(3, {"name": "x"})
    group.describe({"units": 4})
    group.write(4, {"a": 1.0})
    group.write_text(4, "alerts/x", "text")
    group.finish({"reason": "finished"})
    common = [("write", 4, {"a": 1.0}), ("text", 4, "alerts/x", "text")]
    assert some.calls == [*common, ("close",)]
    assert all_of_it.calls == [
        ("start", 3, {"name": "x"}),
        ("describe", {"units": 4}),
        *common,
        ("finish", {"reason": "finished"}),
        ("close",),
    ]


def test_one_that_fails_is_closed_and_left_out(caplog):
    fails, keeps = Fails(at=2), Keeps()
    group = WriterGroup([fails, keeps])
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        for step in range(1, 6):
            group.write(step, {"a": 1.0})
        group.close()
    assert [call[1] for call in keeps.calls[:-1]] == [1, 2, 3, 4, 5]
    assert fails.calls == [("write", 1, {"a": 1.0}), ("write", 2, {"a": 1.0}), ("close",)]
    assert len(caplog.records) == 1
    assert "Fails failed and is left out" in caplog.text
    assert "No space left" in caplog.text


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_wish_to_stop_is_no_failure(stop):
    class Stops(Keeps):
        def write(self, step, metrics):
            raise stop

    with pytest.raises(stop):
        WriterGroup([Stops()]).write(1, {})


def test_no_writers():
    group = WriterGroup([])
    group.start(0, {})
    group.write(1, {})
    group.finish({})


def test_console(caplog):
    writer = ConsoleWriter(interval=10)
    with caplog.at_level("INFO", logger="paddle_memcallbacks"):
        for step in range(1, 25):
            writer.write(step, {"train/loss": step / 100})
        writer.write_text(1, "alerts/x", "told elsewhere")
        writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        "step 1  loss 0.01",
        "step 10  loss 0.1",
        "step 20  loss 0.2",
    ]


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        ({}, "step 5"),
        ({"memory/step_peak_gib": 1.5}, "step 5  peak 1.5 GiB"),
        (
            {
                "train/loss": 0.123456,
                "memory/step_peak_gib": 0.5,
                "memory/peak_forward_gib": 0.25,
                "memory/peak_backward_gib": 0.5,
                "memory/peak_step_gib": 0.0625,
                "memory/peak_allocated_gib": 9.0,
                "memory/budget_gib": 14.0,
                "amp/loss_scale": 65536.0,
                "amp/skipped_steps_total": 2.0,
            },
            "step 5  loss 0.1235  peak 512 MiB (forward 256 MiB, backward 512 MiB, step 64 MiB)  budget 14 GiB  "
            "loss scale 65536  skipped 2",
        ),
        ({"memory/peak_allocated_gib": 0.98, "amp/skipped_steps_total": 0.0}, "step 5  highest so far 0.98 GiB"),
        ({"train/loss": float("nan"), "amp/loss_scale": float("inf")}, "step 5  loss nan  loss scale inf"),
    ],
)
def test_a_line(metrics, line):
    assert step_line(5, metrics) == line
