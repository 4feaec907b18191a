"""The slice loop: gradients of the whole batch, whatever the loss divides by, whatever forward does to its inputs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from paddle_memcallbacks.batches import BatchError
from paddle_memcallbacks.microbatch import MicroBatchError
from paddle_memcallbacks.microbatch.probe import BatchView
from tests.microbatch.conftest import Runner, random_states, relative_error, same_bits


def classifier(dropout: float = 0.0) -> paddle.nn.Layer:
    return paddle.nn.Sequential(
        paddle.nn.Linear(6, 16), paddle.nn.Tanh(), paddle.nn.Dropout(dropout), paddle.nn.Linear(16, 4)
    )


def batch_of(rows: int = 10) -> dict[str, paddle.Tensor]:
    return {"x": paddle.randn([rows, 6]), "y": paddle.arange(rows) % 4}


def mean_loss(model: paddle.nn.Layer) -> Any:
    return lambda batch: F.cross_entropy(model(batch["x"]), batch["y"])


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 5, 10])
def test_gradients_and_loss_are_the_whole_batchs(micro_batch_size: int) -> None:
    model = classifier()
    runner = Runner(model, mean_loss(model))
    batch = batch_of()
    loss = runner.native(batch)
    whole = runner.take_gradients()
    outcome = runner.run(runner.loop(micro_batch_size), batch)
    assert outcome.micro_batches == -(-10 // micro_batch_size)
    assert (outcome.rows, outcome.micro_batch_size, outcome.replays) == (10, micro_batch_size, 0)
    assert float(outcome.loss) == pytest.approx(loss, rel=1e-6)
    assert outcome.loss.shape == []
    assert outcome.loss.stop_gradient
    assert relative_error(runner.take_gradients(), whole) <= 1e-6


def test_steps_are_taken_from_the_first_batch_and_the_size_is_kept() -> None:
    model = classifier()
    runner = Runner(model, mean_loss(model))
    loop = runner.loop(steps=4)
    assert loop.micro_batch_size is None
    assert runner.run(loop, batch_of(8)).micro_batches == 4
    model.clear_gradients()
    short = runner.run(loop, batch_of(3))
    assert (short.micro_batches, short.micro_batch_size, loop.micro_batch_size) == (2, 2, 2)


def test_a_single_slice_is_the_native_step_bit_for_bit() -> None:
    model = classifier(dropout=0.5)
    runner = Runner(model, mean_loss(model))
    batch = batch_of(4)
    paddle.seed(3)
    loss = runner.native(batch)
    whole = runner.take_gradients()
    paddle.seed(3)
    loop = runner.loop(8)
    outcome = runner.run(loop, batch)
    assert float(outcome.loss) == loss
    assert same_bits(runner.take_gradients(), whole)
    assert loop.weight_choice is None


def train(model: paddle.nn.Layer, loop: Any, batches: list[Any]) -> dict[str, np.ndarray]:
    runner = Runner(model, mean_loss(model))
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
    for batch in batches:
        runner.run(loop, batch)
        optimizer.step()
        optimizer.clear_grad()
    return runner.state()


class Noisy(paddle.nn.Layer):
    """Dropout, BatchNorm, a buffer of its own, and numbers drawn from every generator."""

    def __init__(self) -> None:
        super().__init__()
        self.net = paddle.nn.Sequential(classifier(dropout=0.5), paddle.nn.BatchNorm1D(4))
        self.register_buffer("seen", paddle.zeros([1]))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        with paddle.no_grad():
            self.seen.add_(paddle.ones([1]))
        return self.net(x) * (1 + paddle.rand([1]) + np.random.rand() + random.random())


def test_the_probe_leaves_no_trace_in_training() -> None:
    """The same bits at the end whether the weight is found on the way or was found before."""

    def trained(probed_before: bool) -> tuple[dict[str, np.ndarray], Any]:
        paddle.seed(11)
        np.random.seed(11)
        random.seed(11)
        model = Noisy()
        runner = Runner(model, mean_loss(model))
        loop = runner.loop(3)
        batches = [batch_of(7) for _ in range(3)]
        if probed_before:
            state, drawn = runner.state(), random_states()
            loop._weighting.slices(BatchView.of(batches[0], 7), 3, mean_loss(model))
            assert loop.weight_choice is not None
            assert same_bits(runner.state(), state)
            assert random_states() == drawn
            assert all(layer.training for layer in model.sublayers())
            assert all(p.grad is None for p in model.parameters())
        return train(model, loop, batches), random_states()

    first, second = trained(False), trained(True)
    assert same_bits(first[0], second[0])
    assert first[1] == second[1]


class TokenModel(paddle.nn.Layer):
    """A tiny language model whose loss divides by what it is told."""

    def __init__(self, divides_by: str) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(12, 8)
        self.out = paddle.nn.Linear(8, 12)
        self.divides_by = divides_by

    def forward(self, batch: dict[str, Any]) -> paddle.Tensor:
        labels = batch.pop("labels")
        batch.clear()
        shifted = self.divides_by == "shifted"
        each = F.cross_entropy(self.out(self.embed(labels.abs() % 12)), labels, reduction="none", ignore_index=-100)
        each = each[:, 1:] if shifted else each
        valid = (labels[:, 1:] if shifted else labels) >= 0
        if self.divides_by in ("tokens", "shifted"):
            return each.sum() / valid.astype("float32").sum()
        if self.divides_by == "positions":
            return each.mean()
        if self.divides_by == "mixture":
            return each.sum() / valid.astype("float32").sum() + 0.1 * each.mean()
        if self.divides_by == "per_row":
            return (each.sum(1) / valid.astype("float32").sum(1)).mean()
        return each.sum()


def token_batch(rows: int = 7) -> dict[str, paddle.Tensor]:
    labels = np.random.RandomState(0).randint(0, 12, [rows, 9])
    for row in range(rows):
        labels[row, 2 + row :] = -100
    return {"labels": paddle.to_tensor(labels)}


@pytest.mark.parametrize(
    ("divides_by", "kind"),
    [("tokens", "tokens"), ("shifted", "tokens"), ("positions", "samples"), ("per_row", "samples"), ("total", "sum")],
)
@pytest.mark.parametrize("micro_batch_size", [1, 2, 3])
def test_the_probe_finds_what_the_loss_divides_by(divides_by: str, kind: str, micro_batch_size: int) -> None:
    model = TokenModel(divides_by)
    runner = Runner(model, model)
    loss = runner.native(token_batch())
    whole = runner.take_gradients()
    batch = token_batch()
    loop = runner.loop(micro_batch_size)
    outcome = runner.run(loop, batch)
    assert loop.weight_choice is not None
    assert loop.weight_choice.kind == kind
    assert loop.weight_choice.measure.shifted == (divides_by == "shifted")
    assert float(outcome.loss) == pytest.approx(loss, rel=1e-6)
    assert relative_error(runner.take_gradients(), whole) <= 1e-6
    assert "labels" in batch


def test_a_mixture_of_two_divisors_is_refused() -> None:
    model = TokenModel("mixture")
    runner = Runner(model, model)
    with pytest.raises(MicroBatchError, match="cannot be taken apart into micro-batches"):
        runner.run(runner.loop(2), token_batch())


def test_a_slice_without_a_single_label_is_left_out() -> None:
    """Its own mean would be 0/0 and poison the gradients."""
    model = TokenModel("tokens")
    runner = Runner(model, model)
    batch = token_batch(6)
    batch["labels"][2:4] = -100
    loss = runner.native({"labels": batch["labels"].clone()})
    whole = runner.take_gradients()
    outcome = runner.run(runner.loop(2), batch)
    found = runner.take_gradients()
    assert all(np.isfinite(value).all() for value in found.values())
    assert float(outcome.loss) == pytest.approx(loss, rel=1e-6)
    assert relative_error(found, whole) <= 1e-6


def test_losses_come_back_entry_by_entry() -> None:
    model = classifier()

    def losses(batch: Any) -> dict[str, Any]:
        logits = model(batch["x"])
        classes = F.cross_entropy(logits, batch["y"])
        return {"loss": classes + 0.5 * logits.abs().mean(), "loss_cls": classes, "lr": 0.1}

    runner = Runner(model, losses)
    batch = batch_of()
    expected = losses(batch)
    outcome = runner.run(runner.loop(4), batch)
    assert float(outcome.loss["loss_cls"]) == pytest.approx(float(expected["loss_cls"]), rel=1e-6)
    assert outcome.loss["lr"] == pytest.approx(0.1)
    assert float(outcome.mean_loss) == pytest.approx(float(expected["loss"]), rel=1e-6)


def test_tuples_lists_and_numpy_are_taken_too() -> None:
    model = classifier()
    runner = Runner(model, lambda batch: F.cross_entropy(model(paddle.to_tensor(batch[0])), paddle.to_tensor(batch[1])))
    x, y = np.random.randn(7, 6).astype("float32"), np.arange(7) % 4
    runner.native((x, y))
    whole = runner.take_gradients()
    for batch in ((x, y), [x, y], [paddle.to_tensor(x), paddle.to_tensor(y)]):
        runner.run(runner.loop(3), batch)
        assert relative_error(runner.take_gradients(), whole) <= 1e-6


def test_a_batch_that_cannot_be_sliced_is_refused_by_names_and_shapes() -> None:
    model = classifier()
    runner = Runner(model, mean_loss(model))
    with pytest.raises(BatchError, match=r"x \[4, 6\], y \[3\]"):
        runner.run(runner.loop(2), {"x": paddle.ones([4, 6]), "y": paddle.ones([3], "int64")})


def test_a_model_that_cannot_take_one_row_is_probed_on_pairs() -> None:
    model = classifier()

    def squeezing(batch: Any) -> paddle.Tensor:
        logits = model(batch["x"]).squeeze()
        assert logits.ndim == 2
        return F.cross_entropy(logits, batch["y"])

    runner = Runner(model, squeezing)
    batch = batch_of(8)
    runner.native(batch)
    whole = runner.take_gradients()
    runner.run(runner.loop(4), batch)
    assert relative_error(runner.take_gradients(), whole) <= 1e-6


def test_an_error_of_the_model_comes_through_as_it_is() -> None:
    model = classifier()
    calls: list[int] = []

    def failing(batch: Any) -> paddle.Tensor:
        calls.append(1)
        if len(calls) == 9:
            raise ZeroDivisionError("in the user's forward")
        return F.cross_entropy(model(batch["x"]), batch["y"])

    runner = Runner(model, failing)
    with pytest.raises(ZeroDivisionError, match="in the user's forward"):
        for _ in range(4):
            runner.run(runner.loop(2), batch_of(6))
