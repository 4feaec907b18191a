"""Real language models of paddlenlp at tiny size, dropout on, bit for bit."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddle_memcallbacks.recompute import find_units, select_units
from tests.recompute.steps import allocated_bytes, assert_same, seed_all, train

pytestmark = pytest.mark.paddlenlp

VOCABULARY, LENGTH, ROWS = 50, 7, 3
IDS = paddle.to_tensor(np.random.RandomState(5).randint(3, VOCABULARY, (ROWS, LENGTH)))
MASK = paddle.to_tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 6 + [0]])
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1}


def bert():
    from paddlenlp.transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**SMALL, **DROPOUT, num_hidden_layers=3, num_labels=2))


def ernie():
    from paddlenlp.transformers import ErnieConfig, ErnieForSequenceClassification

    return ErnieForSequenceClassification(ErnieConfig(**SMALL, **DROPOUT, num_hidden_layers=3, num_labels=2))


def ernie_mlm():
    from paddlenlp.transformers import ErnieConfig, ErnieForMaskedLM

    return ErnieForMaskedLM(ErnieConfig(**SMALL, **DROPOUT, num_hidden_layers=2))


def gpt():
    from paddlenlp.transformers import GPTConfig, GPTForCausalLM

    return GPTForCausalLM(GPTConfig(**SMALL, **DROPOUT, num_hidden_layers=2, max_position_embeddings=32))


def llama():
    from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL, num_hidden_layers=2, use_flash_attention=False))


def t5():
    from paddlenlp.transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.2,
            bos_token_id=0,
        )
    )


def bart():
    from paddlenlp.transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            dropout=0.2,
            attention_dropout=0.1,
        )
    )


def albert():
    from paddlenlp.transformers import AlbertConfig, AlbertForSequenceClassification

    return AlbertForSequenceClassification(
        AlbertConfig(**SMALL, **DROPOUT, embedding_size=16, num_hidden_layers=3, inner_group_num=1, num_labels=2)
    )


def classified(model):
    loss, _ = model(IDS, attention_mask=MASK, labels=paddle.to_tensor([0, 1, 1]))[:2]
    return loss


def labelled(model):
    output = model(IDS, labels=IDS)
    return output[0] if isinstance(output, (tuple, list)) else output


def masked(model):
    return labelled(model)


def translated(model):
    return model(IDS, attention_mask=MASK, labels=IDS)[0]


def layers(prefix, count):
    return [f"{prefix}.{index}" for index in range(count)]


CASES = {
    "bert": (bert, classified, layers("bert.encoder.layers", 3)),
    "ernie": (ernie, classified, layers("ernie.encoder.layers", 3)),
    "ernie_mlm": (ernie_mlm, masked, layers("ernie.encoder.layers", 2)),
    "gpt": (gpt, labelled, layers("gpt.decoder.layers", 2)),
    "llama": (llama, labelled, layers("llama.layers", 2)),
    "t5": (t5, translated, layers("t5.encoder.block", 2) + layers("t5.decoder.block", 2)),
    "bart": (bart, translated, layers("bart.encoder.encoder.layers", 2) + layers("bart.decoder.decoder.layers", 2)),
    "albert": (albert, classified, None),
}


@pytest.mark.parametrize("name", CASES)
def test_bit_for_bit(name):
    make, loss_of, units = CASES[name]
    seed_all()
    with paddle.utils.unique_name.guard():
        found = find_units(make())
    assert found and (units is None or found == units)
    plain = train(make, loss_of, None, steps=2)
    assert_same(plain, train(make, loss_of, found, steps=2))


def test_patterns_on_a_real_model():
    model = bert()
    expected = tuple(layers("bert.encoder.layers", 3))
    for patterns in (["bert.encoder.layers.*"], ["TransformerEncoderLayer"], "auto", ["**.layers"]):
        assert select_units(model, patterns).names == expected
    assert select_units(model, "auto", every_n=2).names == (expected[0], expected[2])
    assert select_units(model, "auto", first=1, last=1).names == (expected[0], expected[2])


def test_held_after_forward_and_left_after_backward():
    from paddle_memcallbacks.recompute import recompute_units

    seed_all()
    model = ernie()
    units = find_units(model)
    ids = paddle.to_tensor(np.random.RandomState(5).randint(3, VOCABULARY, (16, 32)))

    def step(on):
        switch = recompute_units(model, units)
        if on:
            switch.apply()
        model.clear_gradients(set_to_zero=False)
        start = allocated_bytes()
        loss = model(ids, labels=paddle.zeros([16], "int64"))[0]
        held = allocated_bytes() - start
        loss.backward()
        # the loss still stands, and with it the graph's nodes
        left = allocated_bytes() - start
        switch.remove()
        return held, left

    step(False), step(True)
    (held_plain, left_plain), (held_on, left_on) = step(False), step(True)
    assert step(True) == (held_on, left_on)
    assert left_on == left_plain
    assert held_on < 0.2 * held_plain
