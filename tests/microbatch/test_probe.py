"""Kinds of losses: each is exact, or refused with the reason; and the probe is not fooled by randomness or chance."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.base.framework import _dygraph_tracer

from paddle_memcallbacks.microbatch import MicroBatchError
from tests.microbatch.conftest import Runner, relative_error

Loss = Callable[[paddle.nn.Layer, dict[str, Any]], paddle.Tensor]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, logger="paddle_memcallbacks")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


def network() -> paddle.nn.Layer:
    return paddle.nn.Sequential(paddle.nn.Linear(6, 16), paddle.nn.Tanh(), paddle.nn.Linear(16, 4))


def batch_of(rows: int = 10) -> dict[str, paddle.Tensor]:
    return {"x": paddle.randn([rows, 6]), "y": paddle.arange(rows) % 4, "target": paddle.randn([rows, 4])}


def label_smoothed(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    return F.cross_entropy(model(batch["x"]), F.label_smooth(F.one_hot(batch["y"], 4)), soft_label=True)


def summed(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")


def squared(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    return F.mse_loss(model(batch["x"]), batch["target"])


def ignoring(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    """paddle divides by the labels that are not ignored where ignore_index >= 0."""
    return F.cross_entropy(model(batch["x"]), batch["y"], ignore_index=0)


def class_weighted(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], weight=paddle.to_tensor([1.0, 2.0, 3.0, 0.5]))


def simcse(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    out = F.normalize(model(batch["x"]))
    return F.cross_entropy(out @ out.T / 0.05, paddle.arange(out.shape[0]))


def margin_to_the_rest(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    out = model(batch["x"])
    return ((out - out.mean(axis=0)) ** 2).mean()


def moe_balanced(model: paddle.nn.Layer, batch: dict[str, Any], coefficient: float = 0.01) -> paddle.Tensor:
    """Switch's balance loss: experts * sum over experts of (share of samples) x (mean gate)."""
    logits = model(batch["x"])
    gates = F.softmax(logits)
    share = F.one_hot(gates.argmax(axis=1), 4).mean(axis=0)
    return F.cross_entropy(logits, batch["y"]) + coefficient * 4 * (share * gates.mean(axis=0)).sum()


def assigned(model: paddle.nn.Layer, batch: dict[str, Any]) -> paddle.Tensor:
    """Detectors divide by the scores of what they assigned, which the batch's data do not tell."""
    scores = F.sigmoid(model(batch["x"]))
    return (scores * batch["target"]).sum() / scores.detach().sum()


@pytest.mark.parametrize("loss", [label_smoothed, summed, squared, ignoring])
@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_these_losses_are_exact(loss: Loss, micro_batch_size: int) -> None:
    model = network()
    runner = Runner(model, lambda batch: loss(model, batch))
    batch = batch_of()
    expected = runner.native(batch)
    whole = runner.take_gradients()
    outcome = runner.run(runner.loop(micro_batch_size), batch)
    assert float(outcome.loss) == pytest.approx(expected, rel=1e-6)
    assert relative_error(runner.take_gradients(), whole) <= 1e-6


@pytest.mark.parametrize("loss", [class_weighted, simcse, margin_to_the_rest, moe_balanced, assigned])
def test_these_losses_are_refused_before_anything_is_trained(loss: Loss) -> None:
    model = network()
    runner = Runner(model, lambda batch: loss(model, batch))
    loop = runner.loop(3)
    for _ in range(2):
        with pytest.raises(MicroBatchError) as refused:
            runner.run(loop, batch_of())
        assert "couples samples (contrastive, in-batch negatives, MoE balance" in str(refused.value)
        assert "Use recompute to save memory, or set gradient_accumulation.weight: samples" in str(refused.value)
        assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("loss", [simcse, moe_balanced])
def test_a_configured_weight_accepts_the_difference_and_measures_it(loss: Loss, told: Callable[[], str]) -> None:
    model = network()
    runner = Runner(model, lambda batch: loss(model, batch))
    loop = runner.loop(2, weight="samples")
    batch = batch_of()
    runner.run(loop, batch)
    assert loop.weight_choice is not None
    assert loop.weight_choice.how == "configured"
    difference = loop.weight_choice.difference
    assert difference is not None
    assert 1e-5 < difference <= 1.0
    assert "weight: samples is accepted, and is not exact: the first two micro-batches' loss is" in told()
    assert f"{difference:.2%} off" in told()
    runner.run(loop, batch)
    assert told().count("is accepted, and is not exact") == 1


def test_a_configured_weight_that_is_exact_says_so(told: Callable[[], str]) -> None:
    model = network()
    runner = Runner(model, lambda batch: squared(model, batch))
    runner.run(runner.loop(3, weight="samples"), batch_of())
    assert "weight: samples changes nothing in the first two micro-batches' loss" in told()


def test_a_configured_weight_needs_its_field() -> None:
    model = network()
    runner = Runner(model, lambda batch: squared(model, batch))
    with pytest.raises(MicroBatchError, match="weight is boxes, but the batch has no field to count them in: x, y"):
        runner.run(runner.loop(3, weight="boxes"), batch_of())


def test_boxes_weigh_ragged_lists() -> None:
    model = network()

    def per_box(batch: dict[str, Any]) -> paddle.Tensor:
        counts = paddle.to_tensor([float(len(boxes)) for boxes in batch["gt_bbox"]])
        return (model(batch["x"]).square().mean(axis=1) * counts).sum() / counts.sum()

    runner = Runner(model, per_box)
    batch = {"x": paddle.randn([5, 6]), "gt_bbox": [np.zeros((count, 4)) for count in (1, 4, 2, 7, 3)]}
    runner.native(batch)
    whole = runner.take_gradients()
    for keys in ({}, {"weight": "boxes"}):
        loop = runner.loop(2, **keys)
        runner.run(loop, batch)
        assert loop.weight_choice is not None
        assert loop.weight_choice.kind == "boxes"
        assert relative_error(runner.take_gradients(), whole) <= 1e-6


def test_the_finding_is_logged_once(told: Callable[[], str]) -> None:
    model = network()
    runner = Runner(model, lambda batch: squared(model, batch))
    loop = runner.loop(3)
    for _ in range(3):
        runner.run(loop, batch_of())
    assert told().count("the loss divides by samples: together and apart agree to") == 1


# ---- what is open is decided by the first batch that tells


class Ignoring(paddle.nn.Layer):
    """Divides by the labels that are not negative."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, batch: dict[str, Any]) -> paddle.Tensor:
        each = F.cross_entropy(self.net(batch["x"]), batch["label"], reduction="none", ignore_index=-100)
        return each.sum() / (batch["label"] >= 0).astype("float32").sum()


def labelled(*labels: int) -> dict[str, paddle.Tensor]:
    return {"x": paddle.randn([len(labels), 6]), "label": paddle.to_tensor(labels)}


def test_measures_that_count_alike_stay_open_until_a_batch_tells_them_apart(told: Callable[[], str]) -> None:
    model = Ignoring()
    runner = Runner(model, model)
    loop = runner.loop(2)
    runner.run(loop, labelled(0, 1, 2, 3, 1))
    assert loop.weight_choice is not None
    assert (loop.weight_choice.kind, loop.weight_choice.how) == ("samples", "open")
    assert "the first batch that tells them apart decides" in told()
    runner.take_gradients()
    batch = labelled(0, 1, -100, 3, 1)
    runner.native(batch)
    whole = runner.take_gradients()
    runner.run(loop, batch)
    assert loop.weight_choice.kind == "tokens"
    assert relative_error(runner.take_gradients(), whole) <= 1e-6


def test_counts_on_a_device_are_looked_at_in_the_first_batches_and_then_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from paddle_memcallbacks.microbatch import probe

    monkeypatch.setattr(probe.arrays, "on_host", lambda array: False)
    reads: list[int] = []
    real = probe.row_counts
    monkeypatch.setattr(probe, "row_counts", lambda m, *rest: (reads.append(1) if m.field else None, real(m, *rest))[1])
    model = Ignoring()
    runner = Runner(model, model)
    loop = runner.loop(2)
    looked = []
    for _ in range(40):
        reads.clear()
        runner.run(loop, labelled(0, 1, 2, 3))
        looked.append(bool(reads))
    assert looked == [True] * 10 + ([False] * 9 + [True]) * 3


def test_a_loss_with_class_weights_is_refused_once_the_labels_differ() -> None:
    model = network()
    runner = Runner(model, lambda batch: class_weighted(model, batch))
    loop = runner.loop(2)
    same = {**batch_of(4), "y": paddle.ones([4], "int64")}
    assert math.isfinite(float(runner.run(loop, same).loss))
    # without a label 0 or 255 every count stays alike: only the labels' variety can ask for another look
    varied = {**batch_of(4), "y": paddle.to_tensor([1, 2, 3, 1])}
    with pytest.raises(MicroBatchError, match="cannot be taken apart"):
        runner.run(loop, varied)


def test_a_loss_that_is_not_finite_is_no_refusal(told: Callable[[], str]) -> None:
    model = network()
    runner = Runner(model, lambda batch: squared(model, batch))
    loop = runner.loop(3)
    bad = batch_of(6)
    bad["x"][:] = float("nan")
    runner.run(loop, bad)
    assert loop.weight_choice is not None
    assert loop.weight_choice.how == "unknown"
    assert "is not finite" in told()
    runner.run(loop, batch_of(6))
    assert loop.weight_choice.kind == "samples"
    assert loop.weight_choice.how != "unknown"


# ---- randomness


class DropPath(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x * (paddle.rand([x.shape[0], 1]) > 0.5).astype("float32") if self.training else x


class RandomEverywhere(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(6, 16)
        self.second = paddle.nn.Linear(16, 4)
        self.norm = paddle.nn.BatchNorm1D(16)
        self.drop = paddle.nn.Dropout(0.5)
        self.path = DropPath()

    def forward(self, batch: dict[str, Any]) -> paddle.Tensor:
        h = F.dropout(self.drop(self.norm(self.first(batch["x"]))), 0.3, training=self.training)
        heads = h.reshape([-1, 1, 1, 16])
        h = self.path(F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4).reshape([-1, 16]))
        return F.cross_entropy(self.second(h), batch["y"])


def test_dropout_drop_path_batchnorm_and_functional_dropout_do_not_disturb_the_probe() -> None:
    model = RandomEverywhere()
    runner = Runner(model, model)
    loop = runner.loop(3)
    functions = (F.dropout, F.scaled_dot_product_attention)
    runner.run(loop, batch_of())
    assert loop.weight_choice is not None
    assert loop.weight_choice.kind == "samples"
    assert (F.dropout, F.scaled_dot_product_attention) == functions
    assert all(layer.training for layer in model.sublayers())


def test_what_is_drawn_once_a_forward_is_the_same_in_every_forward_of_the_probe() -> None:
    """A random scale, drawn by paddle, numpy and Python alike, would otherwise look like a coupled loss."""
    model = network()

    def scaled(batch: dict[str, Any]) -> paddle.Tensor:
        return squared(model, batch) * (1 + float(paddle.rand([1])) + np.random.rand() + random.random())

    runner = Runner(model, scaled)
    loop = runner.loop(3)
    runner.run(loop, batch_of())
    assert loop.weight_choice is not None
    assert loop.weight_choice.kind == "samples"


def test_the_model_is_probed_in_training_mode() -> None:
    """A balance loss that exists only in training must be seen."""
    model = network()

    def only_in_training(batch: dict[str, Any]) -> paddle.Tensor:
        return moe_balanced(model, batch) if model.training else squared(model, batch)

    with pytest.raises(MicroBatchError):
        runner = Runner(model, only_in_training)
        runner.run(runner.loop(3), batch_of())


def test_an_autocast_of_the_toolkit_does_not_blur_the_comparison() -> None:
    """Under O1 the weights are fp32, so the losses are compared in fp32."""
    model = network()
    seen: list[Any] = []
    model.register_forward_post_hook(lambda layer, inputs, out: seen.append(_dygraph_tracer()._amp_level))
    levels = type(_dygraph_tracer()._amp_level)

    def under_autocast(batch: dict[str, Any]) -> paddle.Tensor:
        # a CPU cannot enter auto_cast: what it does to the tracer is done by hand
        _dygraph_tracer()._amp_level = levels.O1
        try:
            return squared(model, batch)
        finally:
            _dygraph_tracer()._amp_level = levels.O0

    from paddle_memcallbacks.microbatch.quiet import quiet

    with quiet(model):
        under_autocast(batch_of(2))
    assert seen == [levels.O0]


# ---- the model's own state


class Counting(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.register_buffer("queue", paddle.zeros([3]))

    def forward(self, batch: dict[str, Any]) -> paddle.Tensor:
        with paddle.no_grad():
            self.queue.add_(paddle.ones([3]))
        return squared(self.net, batch)


def test_state_that_moves_in_every_forward_is_put_back_and_told(told: Callable[[], str]) -> None:
    model = Counting()
    runner = Runner(model, model)
    runner.run(runner.loop(4), batch_of(8))
    assert model.queue.tolist() == [2.0] * 3
    assert "changes the model's own state (queue)" in told()
