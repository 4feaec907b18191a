"""The share of exactly zero gradients: told when it rises and stays."""

from __future__ import annotations

import paddle
import pytest

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import LossScaleWatch
from paddle_memcallbacks.loss_scale.nonfinite import count_zeros
from paddle_memcallbacks.loss_scale.underflow import UnderflowState, ZeroCount, observe_zeros


def _feed(shares, state=None):
    state, told = state or UnderflowState(), []
    for step, share in enumerate(shares, 1):
        counts = [ZeroCount("a", round(1000 * share), 1000), ZeroCount("b", round(1000 * share), 1000)]
        state, alerts = observe_zeros(state, step, counts, 8.0)
        told += alerts
    return state, told


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0] * 50, []),
        ([0.6, 0.5, 0.55, 0.6, 0.58, 0.62], []),  # an embedding's rows, always zero
        ([0.0] * 3 + [0.9] + [0.0] * 3, []),  # one sample is no trend
        ([0.0] * 3 + [0.3, 0.3], [5]),
        ([0.5] * 3 + [0.6, 0.6, 0.65, 0.65], [7]),  # a quarter of the other half
        ([0.0] * 3 + [0.5] * 20, [5]),  # once
        ([0.0] * 3 + [0.5, 0.5, 0.0, 0.5, 0.5], [5, 8]),  # again after calm
        ([0.0] * 3 + [0.5, 0.5, 0.2, 0.5, 0.5], [5]),  # not calm enough
        ([1.0] * 8, []),
        ([0.9, 0.9], []),
    ],
)
def test_a_rise_that_stays_is_told(shares, expected):
    state, told = _feed(shares)
    assert [alert.step for alert in told] == expected
    assert state.samples == len(shares)


def test_the_text_names_the_worst_parameters_and_the_remedy():
    state, _ = _feed([0.0] * 3 + [0.5])
    counts = [ZeroCount("calm", 0, 1000), ZeroCount("worst", 90, 100), ZeroCount("bad", 450, 900)]
    _, (alert,) = observe_zeros(state, 500, counts, 1024.0)
    assert alert.kind == "gradient_underflow" and alert.severity == "warning"
    assert "27 %" in alert.message and "0 % at the start" in alert.message and "loss scale 1024" in alert.message
    assert "most in worst (90 %), bad (50 %)" in alert.message
    assert "master_grad" in alert.remedy and "bfloat16" in alert.remedy


def test_nothing_to_count_changes_nothing():
    assert observe_zeros(UnderflowState(), 1, [], None) == (UnderflowState(), [])


def test_zeros_are_counted_per_parameter():
    model = paddle.nn.Linear(2, 2)
    (model(paddle.to_tensor([[1.0, 0.0]])) * paddle.to_tensor([[1.0, 0.0]])).sum().backward()
    counts = count_zeros(model)
    assert dict(zip(counts.names, counts.read(), strict=True)) == {"weight": 3, "bias": 1}
    assert counts.totals == [4, 2]


def test_real_gradients_that_vanish_are_told(real_scaler):
    # float32's own underflow stands for float16's: the loss shrinks until its gradients are zero
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 1))
    optimizer = paddle.optimizer.SGD(0.0, parameters=model.parameters())
    scaler = real_scaler(init_loss_scaling=2.0)
    told = []
    config = load_config({"loss_scale": {"sample_interval": 5}}).loss_scale
    watch = LossScaleWatch(scaler, optimizer, model, config, on_alert=told.append)
    watch.attach(auto=True)
    for step in range(60):
        factor = 1.0 if step < 30 else 2.0**-149
        scaler.scale((model(paddle.full([1, 4], 0.25)) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
    # samples of steps 35 and 40, read at 36 and 41
    assert [(alert.step, alert.kind) for alert in told] == [(41, "gradient_underflow")]
    assert watch.metrics()["amp/zero_gradients_pct"] > 50 and watch.summary()["zero_gradients_share"] > 0.5
