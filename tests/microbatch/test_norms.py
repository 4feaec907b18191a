"""BatchNorm's running statistics keep the batch's pace."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from paddle_memcallbacks.microbatch.norms import at_share, norm_layers, running, slice_momentum
from tests.microbatch.conftest import Runner, relative_error


def test_the_slices_momenta_multiply_to_the_batchs() -> None:
    product = 1.0
    for rows in (3, 3, 1):
        product *= slice_momentum(0.9, rows / 7)
    assert product == pytest.approx(0.9, rel=1e-12)


def network(norm: paddle.nn.Layer) -> paddle.nn.Layer:
    return paddle.nn.Sequential(paddle.nn.Linear(6, 8), norm, paddle.nn.Linear(8, 4))


def runner_of(model: paddle.nn.Layer) -> Runner:
    return Runner(model, lambda batch: F.cross_entropy(model(batch["x"]), batch["y"]))


def batch_of(rows: int = 8) -> dict[str, Any]:
    return {"x": paddle.randn([rows, 6]) * 2 + 1, "y": paddle.arange(rows) % 4}


@pytest.mark.parametrize("layer", [paddle.nn.BatchNorm1D, paddle.nn.BatchNorm])
def test_the_running_mean_moves_as_far_as_natively(layer: type[paddle.nn.Layer]) -> None:
    model = network(layer(8))
    norm = model[1]
    start = paddle.full([8], 5.0)
    same = {"x": paddle.ones([8, 6]), "y": paddle.arange(8) % 4}
    runner = runner_of(model)
    norm._mean.set_value(start)
    runner.native(same)
    native = norm._mean.numpy().copy()
    norm._mean.set_value(start)
    runner.run(runner.loop(3), same)
    assert np.allclose(norm._mean.numpy(), native, rtol=1e-6)
    assert norm._momentum == 0.9


def test_frozen_and_evaluating_norms_are_left_alone_and_exact(caplog: pytest.LogCaptureFixture) -> None:
    model = network(paddle.nn.BatchNorm1D(8, use_global_stats=True))
    assert running(norm_layers(model)) == {}
    runner = runner_of(model)
    batch = batch_of()
    runner.native(batch)
    whole = runner.take_gradients()
    with caplog.at_level(logging.WARNING, logger="paddle_memcallbacks"):
        runner.run(runner.loop(3), batch)
    assert relative_error(runner.take_gradients(), whole) <= 1e-6
    assert "BatchNorm" not in caplog.text
    other = network(paddle.nn.BatchNorm1D(8))
    assert list(running(norm_layers(other))) == ["1"]
    other[1].eval()
    assert running(norm_layers(other)) == {}


def test_one_warning_with_the_advice(caplog: pytest.LogCaptureFixture) -> None:
    model = network(paddle.nn.BatchNorm1D(8))
    runner = runner_of(model)
    with caplog.at_level(logging.WARNING, logger="paddle_memcallbacks"):
        runner.run(runner.loop(8), batch_of())
        assert "BatchNorm" not in caplog.text
        for _ in range(2):
            runner.run(runner.loop(3), batch_of())
    told = [record.getMessage() for record in caplog.records if "BatchNorm" in record.getMessage()]
    assert len(told) == 1
    assert "1 BatchNorm layers (1, ...) normalise over micro-batches of 3 rows" in told[0]
    for advice in ("GroupNorm", "use_global_stats=True", "SyncBatchNorm"):
        assert advice in told[0]


def test_the_momentum_comes_back_when_forward_fails() -> None:
    model = network(paddle.nn.BatchNorm1D(8, momentum=0.8))
    with pytest.raises(ZeroDivisionError), at_share(running(norm_layers(model)), 0.25):
        assert model[1]._momentum == pytest.approx(0.8**0.25)
        raise ZeroDivisionError
    assert model[1]._momentum == 0.8
