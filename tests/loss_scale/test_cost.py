"""What watching costs when nothing happens: no synchronisation that Paddle does not make, and little work."""

from __future__ import annotations

import collections
import sys

import paddle
import pytest

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import LossScaleWatch, guard_callable, guard_scheduler

# what brings a value from the device to the host; all but item() come down to one numpy()
READS = ("item", "numpy", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__")


@pytest.fixture
def reads(monkeypatch):
    counted = collections.Counter()

    def counting(name, original):
        def read(self, *args, **kwargs):
            counted[name] += 1
            return original(self, *args, **kwargs)

        return read

    for name in READS:
        original = getattr(paddle.Tensor, name, None)
        if original is not None:
            monkeypatch.setattr(paddle.Tensor, name, counting(name, original))
    return counted


def _loop(scaler, watched, steps, reads=None, value=1.0, **keys):
    """A plain loop with schedule, EMA and metrics."""
    paddle.seed(1)
    model = paddle.nn.Sequential(*[paddle.nn.Linear(4, 4) for _ in range(12)])
    schedule = paddle.optimizer.lr.StepDecay(0.1, step_size=3)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters())
    update_ema = lambda: None
    watch = None
    if watched:
        watch = LossScaleWatch(scaler, optimizer, model, load_config({"loss_scale": keys}).loss_scale)
        watch.attach()
        guard_scheduler(schedule, watch)
        update_ema = guard_callable(update_ema, watch)
    batch = paddle.full([2, 4], value)
    if reads is not None:
        reads.clear()
    for _ in range(steps):
        scaler.scale(model(batch).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if watch is not None:
            watch.after_step()
            watch.metrics()
        optimizer.clear_grad()
        schedule.step()
        update_ema()
    return watch


def test_nothing_is_read_from_the_device_that_paddle_does_not_read(real_scaler, reads):
    _loop(real_scaler(), False, 60, reads)
    paddles = dict(reads)
    assert paddles["__bool__"] == paddles["numpy"] == 60, "the counters see too little: this test is broken"
    _loop(real_scaler(), True, 60, reads)
    assert dict(reads) == paddles


def test_a_sample_of_zero_gradients_is_one_read_every_interval(real_scaler, reads):
    _loop(real_scaler(), False, 61, reads)
    paddles = reads["numpy"] + reads["item"]
    watch = _loop(real_scaler(), True, 61, reads, sample_interval=20)
    assert reads["numpy"] + reads["item"] == paddles + 3
    assert watch.metrics()["amp/zero_gradients_pct"] == 0.0


def test_a_changed_scale_is_read_once(real_scaler, reads):
    _loop(real_scaler(incr_every_n_steps=25), False, 60, reads)
    paddles = reads["numpy"] + reads["item"]
    watch = _loop(real_scaler(incr_every_n_steps=25), True, 60, reads)
    assert reads["numpy"] + reads["item"] == paddles + 2 and watch.state.scale == 2.0**18


def test_a_plain_skip_reads_the_changed_scale_and_nothing_else(real_scaler, reads):
    _loop(real_scaler(), False, 3, reads, value=float("nan"))
    paddles = reads["numpy"] + reads["item"]
    watch = _loop(real_scaler(), True, 3, reads, value=float("nan"))
    assert watch.state.skips == 3
    assert reads["numpy"] + reads["item"] == paddles + 3


def test_a_quiet_step_is_a_few_function_calls(real_scaler):
    # 12 microseconds where this was written; calls are counted because a busy machine's seconds prove nothing
    scaler = real_scaler()
    watch = LossScaleWatch(scaler, None, paddle.nn.Linear(1, 1), load_config({}).loss_scale)
    scaler._cache_found_inf = False
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for _ in range(99):
            watch.after_step()
            watch.metrics()
    finally:
        sys.setprofile(None)
    assert watch.state.steps == 99 and calls < 99 * 100
