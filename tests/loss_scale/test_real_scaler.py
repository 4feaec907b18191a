"""The helper really gives Paddle's own enabled scaler, and leaves nothing behind."""

from __future__ import annotations

import warnings

import paddle
import paddle.amp.grad_scaler as grad_scaler

from paddle_memcallbacks.loss_scale import found_inf


def _one_step(scaler, value):
    layer = paddle.nn.Linear(2, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    before = layer.weight.numpy()
    scaler.scale(layer(paddle.to_tensor([[1.0, value]])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return not (layer.weight.numpy() == before).all()


def test_the_fixture_gives_the_real_rules_on_a_cpu(real_scaler):
    scaler = real_scaler(init_loss_scaling=1024.0)
    assert type(scaler) is paddle.amp.GradScaler and scaler.is_enable()
    assert _one_step(scaler, 1.0)
    assert not _one_step(scaler, float("inf"))
    assert found_inf(scaler) is True and float(scaler._scale) == 512.0


def test_outside_the_helper_a_cpu_scaler_is_off():
    # this is what the helper works around; if Paddle mends it, the helper can go
    from tests.real_scaler import real_scalers

    before = grad_scaler._dygraph_tracer, grad_scaler.amp_global_state
    with real_scalers() as make:
        make()
    assert (grad_scaler._dygraph_tracer, grad_scaler.amp_global_state) == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not paddle.amp.GradScaler().is_enable()
