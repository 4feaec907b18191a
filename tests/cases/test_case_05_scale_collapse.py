"""Case 05: an inf left in .grad after a skipped step halves the loss scale for ever, down to 0.0."""

from __future__ import annotations

import paddle

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import LossScaleWatch, found_inf

STEPS = 400


def _run(scaler, watched):
    """The faulty loop: it clears gradients only when the step was not skipped. One bad batch of 400."""
    paddle.seed(0)
    model = paddle.nn.Linear(2, 1)
    optimizer = paddle.optimizer.SGD(1e-3, parameters=model.parameters())
    alerts, skipped = [], 0
    if watched:
        config = load_config({}).loss_scale
        LossScaleWatch(scaler, optimizer, model, config, on_alert=alerts.append).attach(auto=True)
    for step in range(STEPS):
        batch = paddle.to_tensor([[1.0, float("inf") if step == 3 else 1.0]])
        scaler.scale(model(batch).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += found_inf(scaler)
        if not found_inf(scaler):
            optimizer.clear_grad()
    return float(scaler._scale), skipped, alerts


def test_natively_the_scale_reaches_zero_and_every_later_batch_is_lost(real_scaler, caplog):
    scale, skipped, _ = _run(real_scaler(), watched=False)
    assert scale == 0.0 and skipped == STEPS - 3
    assert caplog.text == ""


def test_with_the_watch_one_bad_batch_costs_one_step(real_scaler):
    scale, skipped, alerts = _run(real_scaler(), watched=True)
    assert scale == 32768.0 and skipped == 1
    assert [(alert.step, alert.severity) for alert in alerts] == [(4, "info"), (24, "info")]
    assert "gradients overflowed at loss scale 65536, now 32768" in alerts[0].message


def test_where_every_batch_is_bad_the_scale_stops_at_the_floor_and_says_so(real_scaler):
    paddle.seed(0)
    model = paddle.nn.Linear(2, 1)
    optimizer = paddle.optimizer.SGD(1e-3, parameters=model.parameters())
    scaler, alerts = real_scaler(), []
    LossScaleWatch(scaler, optimizer, model, load_config({}).loss_scale, on_alert=alerts.append).attach(auto=True)
    lowest = 2.0**16
    for _ in range(40):
        scaler.scale(model(paddle.to_tensor([[1.0, float("inf")]])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        lowest = min(lowest, float(scaler._scale))
    assert lowest == 1.0
    floor = [alert for alert in alerts if alert.kind == "loss_scale_floor"]
    assert [alert.step for alert in floor] == [17]
    assert "floor 1 (min_loss_scale); 17 updates lost since step 1" in floor[0].message
    assert "weight" in floor[0].message and "the model's own input is not finite" in alerts[1].message
