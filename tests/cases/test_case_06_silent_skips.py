"""Case 06: with decr_every_n_nan_or_inf=2 every second update is skipped and nothing at all is said."""

from __future__ import annotations

import paddle

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import LossScaleWatch


def _run(scaler, watched):
    model = paddle.nn.Linear(2, 1)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters())
    alerts, applied = [], 0
    watch = None
    if watched:
        watch = LossScaleWatch(scaler, optimizer, model, load_config({}).loss_scale, on_alert=alerts.append)
        watch.attach(auto=True)
    for step in range(20):
        before = model.weight.numpy().copy()
        batch = paddle.to_tensor([[1.0, float("nan") if step % 2 else 1.0]])
        scaler.scale(model(batch).sum()).backward()
        assert scaler.step(optimizer) is None
        scaler.update()
        optimizer.clear_grad()
        applied += not (model.weight.numpy() == before).all()
    return applied, alerts, watch


def test_natively_ten_of_twenty_updates_vanish_without_a_word(real_scaler, capsys, caplog):
    scaler = real_scaler(init_loss_scaling=1024.0, decr_every_n_nan_or_inf=2)
    applied, _, _ = _run(scaler, watched=False)
    captured = capsys.readouterr()
    assert applied == 10 and float(scaler._scale) == 1024.0
    assert captured.out == "" and captured.err == "" and caplog.text == ""


def test_with_the_watch_the_rate_is_told_though_the_scale_never_moves(real_scaler):
    scaler = real_scaler(init_loss_scaling=1024.0, decr_every_n_nan_or_inf=2)
    applied, alerts, watch = _run(scaler, watched=True)
    assert applied == 10 and float(scaler._scale) == 1024.0
    (storm,) = [alert for alert in alerts if alert.severity == "warning"]
    assert storm.kind == "loss_scale_storm" and storm.step == 20
    assert "skipped 10 of 20 updates (50 %)" in storm.message and "weight (" in storm.message
    assert watch.metrics() == {
        "amp/loss_scale": 1024.0,
        "amp/skipped_steps_total": 10.0,
        "amp/skipped_steps_consecutive": 1.0,
        "amp/skip_rate_pct": 50.0,
    }
    assert watch.summary()["skipped_ranges"] == [[step, step] for step in range(2, 21, 2)]
