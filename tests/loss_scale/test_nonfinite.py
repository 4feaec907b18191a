"""Counts over gradients, read once for all parameters."""

from __future__ import annotations

import paddle

from paddle_memcallbacks.loss_scale import NonFinite, nonfinite_parameters
from paddle_memcallbacks.loss_scale.nonfinite import count_nonfinite, without_autocast


def _model():
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 1))
    model(paddle.ones([1, 2])).sum().backward()
    return model


def test_parameters_come_by_name_with_their_counts_in_the_models_order():
    model = _model()
    assert nonfinite_parameters(model) == []
    model[1].weight.grad.set_value(paddle.to_tensor([[float("inf")], [float("nan")]]))
    model[0].weight.grad.set_value(paddle.to_tensor([[1.0, float("-inf")], [0.0, 2.0]]))
    found = nonfinite_parameters(model)
    assert found == [NonFinite("0.weight", 1, 4), NonFinite("1.weight", 2, 2)]
    assert found[0].text() == "0.weight (1 of 4)"


def test_frozen_and_unused_parameters_are_left_out():
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 1))
    model[0].bias.stop_gradient = True
    model(paddle.ones([1, 2])).sum().backward()
    model.add_sublayer("unused", paddle.nn.Linear(2, 2))
    assert count_nonfinite(model).names == ["0.weight", "1.weight", "1.bias"]
    empty = count_nonfinite(paddle.nn.Linear(1, 1))
    assert empty.names == [] and empty.read() == [] and empty.nonfinite() == []


def test_a_main_gradient_counts_for_the_gradient():
    model = _model()
    model[0].weight.main_grad = paddle.to_tensor([[float("nan")] * 2] * 2)
    assert nonfinite_parameters(model) == [NonFinite("0.weight", 4, 4)]


def test_float16_gradients_are_counted():
    parameter = paddle.create_parameter([3], "float16", default_initializer=paddle.nn.initializer.Constant(1.0))
    model = paddle.nn.Layer()
    model.add_parameter("narrow", parameter)
    (parameter.astype("float32") * paddle.to_tensor([1.0, 1e6, float("nan")])).sum().backward()
    assert parameter.grad.dtype == paddle.float16
    assert nonfinite_parameters(model) == [NonFinite("narrow", 2, 3)]


def test_counting_neither_casts_nor_remembers():
    tracer = paddle.base.framework._dygraph_tracer()
    levels = paddle.base.core.AmpLevel
    before = tracer._amp_level
    tracer._amp_level = levels.O2
    try:
        with without_autocast():
            assert tracer._amp_level == levels.O0
        assert tracer._amp_level == levels.O2
    finally:
        tracer._amp_level = before
    assert tracer._amp_level == before
