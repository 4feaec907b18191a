"""Scaler, counters and state machine are saved and restored; a resumed run goes on bit for bit."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import paddle
import pytest

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import (
    LossScaleWatch,
    guard_scheduler,
    load_scaler_state,
    restore_scaler,
    save_scaler_state,
    scaler_state,
)

# skips while it settles, a rare skip, growth, a storm, recovery
BAD = {1, 2, 9, 40, 41, 42, 43, 44, 45, 70}


class Run:
    def __init__(self, scaler, *, watch_scaler=True):
        paddle.seed(5)
        self.model = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.Tanh(), paddle.nn.Linear(4, 1))
        self.schedule = paddle.optimizer.lr.StepDecay(0.01, step_size=4)
        self.optimizer = paddle.optimizer.AdamW(self.schedule, parameters=self.model.parameters())
        self.scaler = scaler
        config = load_config({"loss_scale": {}}).loss_scale
        self.watch = LossScaleWatch(scaler if watch_scaler else None, self.optimizer, self.model, config)
        if watch_scaler:
            self.watch.attach()
        guard_scheduler(self.schedule, self.watch)

    def step(self, number):
        batch = paddle.to_tensor(np.random.RandomState(number).randn(2, 3).astype("float32"))
        bad = math.inf if number in BAD else 1.0
        self.scaler.scale((self.model(batch) * bad).mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        verdict = self.watch.after_step()
        self.optimizer.clear_grad()
        self.schedule.step()
        return [(alert.step, alert.kind, alert.message) for alert in verdict.alerts]

    def save(self, folder):
        paddle.save(self.model.state_dict(), str(folder / "model.pdparams"))
        paddle.save(self.optimizer.state_dict(), str(folder / "opt.pdopt"))
        save_scaler_state(folder / "loss_scale.json", self.watch)

    def load(self, folder):
        self.model.set_state_dict(paddle.load(str(folder / "model.pdparams")))
        self.optimizer.set_state_dict(paddle.load(str(folder / "opt.pdopt")))
        assert load_scaler_state(folder / "loss_scale.json", self.watch)

    def everything(self):
        weights = {name: value.numpy().tobytes() for name, value in self.model.state_dict().items()}
        moments = {
            name: value.numpy().tobytes()
            for name, value in self.optimizer.state_dict().items()
            if isinstance(value, paddle.Tensor)
        }
        return (weights, moments, self.schedule.last_epoch, scaler_state(self.scaler), self.watch.state_dict())


def _make(real_scaler):
    return real_scaler(init_loss_scaling=2.0**10 / 3, incr_ratio=1.7, decr_ratio=0.3, incr_every_n_steps=7)


@pytest.mark.parametrize("cut", [1, 2, 9, 30, 42, 43, 44, 46, 60])
def test_a_resume_goes_on_bit_equal(real_scaler, tmp_path, cut):
    # Paddle names moments when the first step creates them: each run has its names to itself
    with paddle.utils.unique_name.guard():
        whole = Run(_make(real_scaler))
        told = [whole.step(number) for number in range(1, 81)]
    with paddle.utils.unique_name.guard():
        first = Run(_make(real_scaler))
        told_again = [first.step(number) for number in range(1, cut + 1)]
        first.save(tmp_path)
    with paddle.utils.unique_name.guard():
        second = Run(_make(real_scaler))
        second.load(tmp_path)
        told_again += [second.step(number) for number in range(cut + 1, 81)]
    assert second.everything() == whole.everything()
    assert told_again == told
    assert [kind for alerts in told for _, kind, _ in alerts].count("loss_scale_storm") == 1


def test_the_saved_file_is_json_and_whole(real_scaler, tmp_path):
    run = Run(_make(real_scaler))
    for number in range(1, 12):
        run.step(number)
    save_scaler_state(tmp_path / "deep" / "state.json", run.watch)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["state.json"]
    saved = json.loads((tmp_path / "deep" / "state.json").read_text())
    assert saved["scaler"]["scale"] == float(run.scaler._scale) and saved["step"] == 11
    assert saved["record"]["skipped_ranges"] == [[1, 2], [9, 9]] and saved["machine"]["skips"] == 3


def test_natively_an_empty_state_raises_and_the_watch_says_so_and_goes_on(real_scaler, caplog):
    caplog.set_level("INFO", "paddle_memcallbacks")
    with pytest.raises(RuntimeError, match="state dict is empty"):
        real_scaler().load_state_dict({})
    for state in (None, {}):
        run = Run(real_scaler())
        run.watch.load_state_dict(state)
        assert float(run.scaler._scale) == 65536.0
    assert caplog.text.count("start fresh") == 2
    run = Run(real_scaler())
    run.watch.load_state_dict({"version": 1, "step": 7, "scaler": {}, "machine": {"scale": 4.0, "skips": 3}})
    assert "saved without loss scaling" in caplog.text
    # the counters go on, the scale is the one that is truly used
    assert run.watch.state.skips == 3 and run.watch.state.scale == 65536.0 == float(run.scaler._scale)
    run.step(80)


def test_a_missing_file_starts_fresh_and_a_broken_one_is_an_error(real_scaler, tmp_path, caplog):
    caplog.set_level("INFO", "paddle_memcallbacks")
    run = Run(real_scaler())
    assert load_scaler_state(tmp_path / "none.json", run.watch) is False
    assert "no loss-scale state at" in caplog.text
    for text in ("{half", "[1, 2]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match="not a saved loss-scale state"):
            load_scaler_state(tmp_path / "bad.json", run.watch)


def test_a_state_without_a_part_of_the_scaler_starts_fresh_with_a_warning(real_scaler, caplog):
    scaler = real_scaler()
    state = scaler_state(scaler) | {"scale": 8.0}
    del state["incr_count"]
    assert restore_scaler(scaler, state) is False
    assert "lacks incr_count" in caplog.text and float(scaler._scale) == 65536.0


@pytest.mark.parametrize("scaler_first", [True, False])
def test_the_scaler_may_be_made_before_or_after_the_load(real_scaler, scaler_first):
    # paddle.Model and ppdet make it in the first training step, after load()
    old = Run(real_scaler(init_loss_scaling=64.0))
    for number in (1, 2, 3, 4):
        old.step(number)
    state = old.watch.state_dict()
    scaler = real_scaler()
    new = Run(scaler, watch_scaler=scaler_first)
    new.watch.load_state_dict(json.loads(json.dumps(state)))
    if not scaler_first:
        assert float(scaler._scale) == 65536.0
        new.watch.bind(scaler)
        new.watch.attach()
    assert scaler_state(scaler) == scaler_state(old.scaler) and float(scaler._scale) == 16.0
    assert new.watch.state_dict() == state
    new.step(5)
    assert new.watch.state.steps == 5


def test_paddles_own_saved_state_can_be_restored(real_scaler):
    old, new = real_scaler(init_loss_scaling=64.0), real_scaler()
    assert restore_scaler(new, old.state_dict())
    assert float(new._scale) == 64.0


def test_a_disabled_scaler_takes_no_state_and_says_so(caplog):
    caplog.set_level("INFO", "paddle_memcallbacks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = paddle.amp.GradScaler()
    assert scaler_state(scaler) == {} == scaler_state(None)
    run = Run(scaler)
    run.watch.load_state_dict({"scaler": {"scale": 8.0}, "machine": {"skips": 2}})
    assert "loss scaling is off now" in caplog.text
    before = run.model[0].weight.numpy().copy()
    run.step(80)
    assert not (run.model[0].weight.numpy() == before).all()
    assert run.watch.metrics() == {} and run.watch.summary()["enabled"] is False


def test_a_scale_below_the_floor_in_a_checkpoint_is_lifted(real_scaler, caplog):
    caplog.set_level("INFO", "paddle_memcallbacks")
    run = Run(real_scaler())
    state = run.watch.state_dict()
    state["scaler"]["scale"] = 0.0
    run.watch.load_state_dict(state)
    assert float(run.scaler._scale) == 1.0 == run.watch.state.scale
