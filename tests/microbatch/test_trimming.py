"""Slices by length: exact where the model ignores padding, off where it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from tests.microbatch.conftest import Runner, relative_error


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, logger="paddle_memcallbacks")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


class Reader(paddle.nn.Layer):
    """A bag of embeddings, averaged over the tokens that are attended to (or over all positions)."""

    def __init__(self, looks_at_padding: bool = False) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(20, 8)
        self.out = paddle.nn.Linear(8, 3)
        self.looks_at_padding = looks_at_padding
        self.widths: list[tuple[int, int]] = []

    def forward(self, batch: dict[str, Any]) -> paddle.Tensor:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if self.training and paddle.is_grad_enabled():
            self.widths.append(tuple(ids.shape))
        mask = mask if mask.ndim == 2 else mask.reshape([ids.shape[0], -1])
        each = self.embed(ids) * (1.0 if self.looks_at_padding else mask.astype("float32").unsqueeze(2))
        count = ids.shape[1] if self.looks_at_padding else mask.astype("float32").sum(1, keepdim=True)
        return F.cross_entropy(self.out(each.sum(1) / count), batch["labels"])


def text_batch(lengths: tuple[int, ...] = (9, 2, 5, 3, 7, 4), width: int = 12, left: bool = False) -> dict[str, Any]:
    mask = np.arange(width)[None] < np.array(lengths)[:, None]
    mask = mask[:, ::-1] if left else mask
    ids = np.random.RandomState(0).randint(1, 20, mask.shape) * mask
    batch = {"input_ids": ids, "attention_mask": mask.astype("int64"), "labels": np.arange(len(lengths)) % 3}
    return {name: paddle.to_tensor(value) for name, value in batch.items()}


def test_slices_are_trimmed_longest_first_and_exact(told: Callable[[], str]) -> None:
    model = Reader()
    runner = Runner(model, model)
    runner.native(text_batch())
    whole = runner.take_gradients()
    model.widths.clear()
    runner.run(runner.loop(2), text_batch())
    assert model.widths == [(2, 9), (2, 5), (2, 3)]
    assert relative_error(runner.take_gradients(), whole) <= 1e-6
    assert "slices are taken by length and trimmed" in told()


def test_order_keeps_the_rows_as_they_come() -> None:
    model = Reader()
    runner = Runner(model, model)
    runner.run(runner.loop(4, slice_by="order"), text_batch())
    assert model.widths == [(4, 12), (2, 12)]


def test_a_whole_batch_is_not_touched() -> None:
    model = Reader()
    runner = Runner(model, model)
    runner.run(runner.loop(6), text_batch())
    assert model.widths == [(6, 12)]


def test_a_model_that_looks_at_padding_is_not_trimmed(told: Callable[[], str]) -> None:
    model = Reader(looks_at_padding=True)
    runner = Runner(model, model)
    runner.native(text_batch())
    whole = runner.take_gradients()
    model.widths.clear()
    loop = runner.loop(4)
    for _ in range(2):
        runner.run(loop, text_batch())
        assert relative_error(runner.take_gradients(), whole) <= 1e-6
    assert model.widths == [(4, 12), (2, 12)] * 2
    assert told().count("padding changes this model's loss") == 1


@pytest.mark.parametrize("case", ["left", "wide mask", "unknown field"])
def test_what_is_not_known_turns_it_off_with_a_line(case: str, told: Callable[[], str]) -> None:
    model = Reader()
    batch = text_batch(left=case == "left")
    if case == "wide mask":
        batch["attention_mask"] = batch["attention_mask"].reshape([6, 1, 1, 12])
    if case == "unknown field":
        batch["bbox"] = paddle.ones([6, 12, 4])
    runner = Runner(model, model)
    loop = runner.loop(4)
    for _ in range(2):
        runner.run(loop, batch)
    assert model.widths == [(4, 12), (2, 12)] * 2
    assert told().count("slices are not taken by length") == 1


def test_trimming_waits_for_a_batch_with_padding() -> None:
    model = Reader()
    runner = Runner(model, model)
    loop = runner.loop(2)
    runner.run(loop, text_batch((4, 4, 4, 4), width=4))
    assert "trimmed" not in loop.describe()
    model.widths.clear()
    runner.run(loop, text_batch((2, 4, 1, 4), width=4))
    assert "trimmed by length" in loop.describe()
    assert model.widths == [(2, 4), (2, 2)]


def test_a_later_batch_that_cannot_be_trimmed_goes_in_order() -> None:
    model = Reader()
    runner = Runner(model, model)
    loop = runner.loop(3)
    runner.run(loop, text_batch())
    model.widths.clear()
    runner.run(loop, text_batch(left=True))
    assert model.widths == [(3, 12), (3, 12)]


class PositionsMean(paddle.nn.Layer):
    """Divides by all positions, padding included, as ERNIE's masked language model does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(20, 8)
        self.out = paddle.nn.Linear(8, 20)

    def forward(self, batch: dict[str, Any]) -> paddle.Tensor:
        logits = self.out(self.embed(batch["input_ids"]))
        labels = batch["labels"].reshape([-1])
        each = F.cross_entropy(logits.reshape([-1, 20]), labels, ignore_index=-100, reduction="none")
        return each.mean()


def test_a_mean_over_all_positions_keeps_the_untrimmed_batchs_divisor() -> None:
    model = PositionsMean()
    runner = Runner(model, model)
    batch = text_batch()
    batch["labels"] = paddle.where(
        batch["attention_mask"] > 0, batch["input_ids"], paddle.full_like(batch["input_ids"], -100)
    )
    loss = runner.native(batch)
    whole = runner.take_gradients()
    loop = runner.loop(2)
    outcome = runner.run(loop, batch)
    assert loop.weight_choice is not None
    assert loop.weight_choice.kind == "positions"
    assert "trimmed by length" in loop.describe()
    assert float(outcome.loss) == pytest.approx(loss, rel=1e-6)
    assert relative_error(runner.take_gradients(), whole) <= 1e-6
