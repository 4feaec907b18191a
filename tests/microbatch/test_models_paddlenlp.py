"""PaddleNLP's models at tiny size: the whole batch's gradient from micro-batches, whatever each divides by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

from tests.microbatch.conftest import Runner, relative_error

pytestmark = pytest.mark.paddlenlp

ROWS, LENGTH, VOCABULARY = 7, 12, 40
LENGTHS = (12, 5, 9, 3, 7, 4, 6)


def token_ids(with_mask: bool) -> dict[str, paddle.Tensor]:
    rng = np.random.RandomState(1)
    ids = rng.randint(1, VOCABULARY, [ROWS, LENGTH])
    mask = np.arange(LENGTH)[None] < np.array(LENGTHS)[:, None]
    batch = {"input_ids": paddle.to_tensor(ids * mask)}
    if with_mask:
        batch["attention_mask"] = paddle.to_tensor(mask.astype("int64"))
    return batch


def uneven_labels(share: float) -> paddle.Tensor:
    """Token labels, -100 where there is no token and on a varying part of the rest."""
    rng = np.random.RandomState(2)
    labels = rng.randint(0, VOCABULARY, [ROWS, LENGTH])
    for row, length in enumerate(LENGTHS):
        labels[row, max(1, int(length * share)) :] = -100
    labels[0, 0] = 255 % VOCABULARY
    return paddle.to_tensor(labels)


def loss_of(model: paddle.nn.Layer) -> Callable[[Any], paddle.Tensor]:
    return lambda batch: model(**batch)[0]


def ernie_classification(dropout: float = 0.0) -> tuple[paddle.nn.Layer, dict[str, Any]]:
    from paddlenlp.transformers import ErnieConfig, ErnieForSequenceClassification

    model = ErnieForSequenceClassification(ErnieConfig(**small(dropout), num_labels=3))
    return model, {**token_ids(with_mask=False), "labels": paddle.arange(ROWS) % 3}


def ernie_mlm() -> tuple[paddle.nn.Layer, dict[str, Any]]:
    from paddlenlp.transformers import ErnieConfig, ErnieForMaskedLM

    return ErnieForMaskedLM(ErnieConfig(**small())), {**token_ids(with_mask=True), "labels": uneven_labels(0.5)}


def gpt(dropout: float = 0.0) -> tuple[paddle.nn.Layer, dict[str, Any]]:
    from paddlenlp.transformers import GPTConfig, GPTForCausalLM

    config = GPTConfig(**small(dropout), use_flash_attention=False, ignore_index=-100)
    return GPTForCausalLM(config), {**token_ids(with_mask=False), "labels": uneven_labels(1.0)}


def llama() -> tuple[paddle.nn.Layer, dict[str, Any]]:
    from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        seq_length=LENGTH,
        use_flash_attention=False,
    )
    return LlamaForCausalLM(config), {**token_ids(with_mask=True), "labels": uneven_labels(1.0)}


def small(dropout: float = 0.0) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }


@pytest.mark.parametrize(
    ("build", "kind"),
    [(ernie_classification, "samples"), (ernie_mlm, "positions"), (gpt, "tokens"), (llama, "tokens")],
)
@pytest.mark.parametrize("slice_by", ["length", "order"])
def test_micro_batches_give_the_whole_batchs_gradient(build: Callable[..., Any], kind: str, slice_by: str) -> None:
    model, batch = build()
    model.train()
    runner = Runner(model, loss_of(model))
    loss = runner.native(dict(batch))
    whole = runner.take_gradients()
    for micro_batch_size in (1, 2, 3, 5):
        loop = runner.loop(micro_batch_size, slice_by=slice_by)
        outcome = runner.run(loop, batch)
        assert loop.weight_choice is not None
        # untrimmed, positions and samples weigh alike
        assert loop.weight_choice.kind == (kind if slice_by == "length" or kind != "positions" else "samples")
        assert float(outcome.loss) == pytest.approx(loss, rel=1e-6)
        error = relative_error(runner.take_gradients(), whole)
        print(build.__name__, slice_by, micro_batch_size, loop.describe(), f"{error:.1e}")
        assert error <= 1e-6
        assert ("trimmed by length" in loop.describe()) == (slice_by == "length")


def test_gpt_as_it_comes_ignores_label_0() -> None:
    from paddlenlp.transformers import GPTConfig, GPTForCausalLM

    model = GPTForCausalLM(GPTConfig(**small(), use_flash_attention=False))
    labels = uneven_labels(1.0)
    batch = {**token_ids(with_mask=False), "labels": paddle.where(labels < 0, paddle.zeros_like(labels), labels)}
    runner = Runner(model, loss_of(model))
    runner.native(dict(batch))
    whole = runner.take_gradients()
    loop = runner.loop(2)
    runner.run(loop, batch)
    assert str(loop.weight_choice) == "tokens (labels != 0) (found)"
    assert relative_error(runner.take_gradients(), whole) <= 1e-6


@pytest.mark.parametrize("build", [lambda: ernie_classification(0.1), lambda: gpt(0.1)])
def test_the_models_own_dropout_does_not_disturb_the_probe(build: Callable[..., Any]) -> None:
    model, batch = build()
    model.train()
    runner = Runner(model, loss_of(model))
    loop = runner.loop(2)
    runner.run(loop, batch)
    assert loop.weight_choice is not None
    assert "trimmed by length" in loop.describe()


def test_a_batch_encoding_is_sliced_as_one() -> None:
    from paddlenlp.transformers import BatchEncoding

    model, batch = ernie_classification()
    runner = Runner(model, loss_of(model))
    runner.native(dict(batch))
    whole = runner.take_gradients()
    seen: list[type] = []

    def popping(micro_batch: Any) -> paddle.Tensor:
        seen.append(type(micro_batch))
        labels = micro_batch.pop("labels")
        return model(**micro_batch, labels=labels)[0]

    runner.compute_loss = popping
    encoding = BatchEncoding(batch)
    runner.run(runner.loop(3), encoding)
    assert set(seen) == {BatchEncoding}
    assert "labels" in encoding
    assert relative_error(runner.take_gradients(), whole) <= 1e-6


def test_an_encoder_and_a_decoder_are_trimmed_each_to_its_own_length() -> None:
    from paddlenlp.transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=32,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=0,
    )
    model = BartForConditionalGeneration(config)
    labels = uneven_labels(1.0)[:, :8]
    decoder = paddle.where(labels < 0, paddle.zeros_like(labels), labels.clip(min=1))
    batch = {**token_ids(with_mask=True), "decoder_input_ids": decoder, "labels": labels}
    widths: set[tuple[int, int]] = set()

    def compute_loss(micro_batch: Any) -> paddle.Tensor:
        widths.add((micro_batch["input_ids"].shape[1], micro_batch["labels"].shape[1]))
        labels = micro_batch.pop("labels")
        logits = model(**micro_batch)
        logits = logits if isinstance(logits, paddle.Tensor) else logits[0]
        return paddle.nn.functional.cross_entropy(logits, labels, reduction="sum", ignore_index=-100) / (
            (labels >= 0).astype("float32").sum()
        )

    runner = Runner(model, compute_loss)
    runner.native(dict(batch))
    whole = runner.take_gradients()
    widths.clear()
    loop = runner.loop(2)
    runner.run(loop, batch)
    assert loop.weight_choice is not None
    assert loop.weight_choice.kind == "tokens"
    error = relative_error(runner.take_gradients(), whole)
    assert error <= 1e-6
    assert "trimmed by length" in loop.describe()
    assert {(9, 8), (6, 6), (4, 4)} & widths
