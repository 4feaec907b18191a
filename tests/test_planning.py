"""A budget alone plans the run; the plan is kept, read back, held against what was measured."""

import gc
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import paddle
import pytest

import paddle_memcallbacks as pm
from paddle_memcallbacks.planner import load_plan

MIB = 2**20


def build():
    paddle.seed(0)
    blocks = [
        paddle.nn.Sequential(
            paddle.nn.Linear(64, 512), paddle.nn.GELU(), paddle.nn.Dropout(0.1), paddle.nn.Linear(512, 64)
        )
        for _ in range(4)
    ]
    return paddle.nn.Sequential(*blocks, paddle.nn.Linear(64, 1))


@dataclass(frozen=True)
class Outcome:
    losses: list
    peak: int
    metrics: dict
    units: int
    micro_batch_size: int | None


def train(keys, folder=None, steps=4, coupled=False):
    gc.collect()
    model = build()
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    rng = np.random.RandomState(0)
    paddle.seed(5)

    def loss_of(model, batch):
        out = model(batch["x"])
        return ((out - out.mean()) ** 2).mean() if coupled else (out**2).mean()

    with pm.Session(keys, model=model, optimizer=optimizer, logdir=folder) as session:
        results = [
            session.step({"x": paddle.to_tensor(rng.randn(512, 64).astype("float32"))}, loss_of) for _ in range(steps)
        ]
    outcome = Outcome(
        [float(result) for result in results],
        max(result.peak_bytes for result in results),
        session.metrics(),
        len(session.switch.names) if session.switch is not None else 0,
        session.loop.micro_batch_size,
    )
    # nothing of this run may stand in the memory of the next
    del session, model, optimizer, results
    gc.collect()
    return outcome


def test_a_budget_alone_is_kept(tmp_path, caplog):
    budget = int(0.8 * train({}).peak)
    with caplog.at_level("INFO", logger="paddle_memcallbacks"):
        outcome = train({"memory": {"budget": budget}}, tmp_path)
    planned = outcome.peak
    assert planned <= budget
    assert "as predicted" in caplog.text
    assert outcome.metrics["memory/predicted_peak_gib"] == pytest.approx(planned / 2**30, rel=0.005)
    assert load_plan(tmp_path / "plan.yml").predicted_peak_bytes == pytest.approx(planned, rel=0.005)
    caplog.clear()
    with caplog.at_level("INFO", logger="paddle_memcallbacks"):
        train({"memory": {"budget": budget}}, tmp_path)
    assert "the plan of an earlier run is used again" in caplog.text
    assert "planning:" not in caplog.text


def test_recompute_alone_keeps_every_bit(caplog):
    """A loss that couples samples cannot be sliced, so the plan recomputes, and the training stays the same."""
    plain = train({}, coupled=True)
    planned = train({"memory": {"budget": int(0.9 * plain.peak), "margin": 0.0}}, coupled=True)
    assert planned.losses == plain.losses
    assert planned.peak <= 0.9 * plain.peak
    assert planned.units > 0
    assert planned.micro_batch_size in (None, 512)


def test_a_budget_that_nothing_fits_is_said_before_the_first_step():
    with pytest.raises(pm.ConfigError, match="the smallest budget that works is"):
        train({"memory": {"budget": 3 * MIB}})


def test_a_plan_file_is_applied_and_its_differences_told(tmp_path, caplog):
    peak = train({}).peak
    train({"memory": {"budget": int(0.8 * peak)}}, tmp_path)
    text = (tmp_path / "plan.yml").read_text().replace("model: Sequential", "model: Other")
    (tmp_path / "mine.yml").write_text(text)
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        planned = train({"memory": {"plan": str(tmp_path / "mine.yml")}})
    assert planned.peak <= 0.8 * peak
    assert "Other" in caplog.text


def test_a_broken_plan_file_names_the_key(tmp_path):
    (tmp_path / "mine.yml").write_text("version: 1\nmicro_batch_sizes: 4\n")
    with pytest.raises(pm.ConfigError, match="micro_batch_size"):
        train({"memory": {"plan": str(tmp_path / "mine.yml")}})


SCRIPT = """
import paddle, paddle_memcallbacks as pm
paddle.seed(0)
block = lambda: paddle.nn.Sequential(paddle.nn.Linear(32, 256), paddle.nn.GELU(), paddle.nn.Linear(256, 32))
model = paddle.nn.Sequential(*[block() for _ in range(3)])
optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
session = pm.Session({}, model=model, optimizer=optimizer)
for _ in range(3):
    session.step({"x": paddle.randn([64, 32])}, lambda model, batch: (model(batch["x"]) ** 2).mean())
print("trained to the end")
"""


@pytest.mark.parametrize(("budget", "status", "said"), [("1GiB", 0, "written:"), ("300KiB", 1, "no plan fits")])
def test_the_plan_command_stops_at_the_plan(tmp_path, budget, status, said):
    (tmp_path / "train.py").write_text(SCRIPT)
    plan = tmp_path / "plan.yml"
    command = [
        sys.executable,
        "-m",
        "paddle_memcallbacks",
        "plan",
        "--budget",
        budget,
        "-o",
        plan,
        tmp_path / "train.py",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
    assert "trained to the end" not in done.stdout
    assert plan.is_file() == (status == 0)
    if status == 0:
        assert load_plan(plan).budget_bytes == 2**30
        assert plan.with_suffix(".png").is_file()


def test_the_verify_command_stops_at_the_verdict(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "paddle_memcallbacks", "verify", tmp_path / "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact, bit for bit" in done.stdout
    assert "exact to rounding" in done.stdout
    assert "trained to the end" not in done.stdout
