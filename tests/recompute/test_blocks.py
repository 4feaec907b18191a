"""The repeated blocks of well-known shapes of models, described as plain data. No paddle."""

from __future__ import annotations

import pytest

from paddle_memcallbacks.recompute.blocks import repeated_blocks
from paddle_memcallbacks.recompute.names import LayerInfo

# class -> what the layer is
KINDS = {
    "LayerList": {"called": False, "listing": True},
    "LayerDict": {"called": False},
    "Sequential": {"listing": True},
    "Linear": {"matrices": 1, "parameters": 2},
    "Conv": {"matrices": 1, "parameters": 1},
    "Embedding": {"matrices": 1, "parameters": 1},
    "Norm": {"parameters": 2},
    "LSTM": {"matrices": 8, "parameters": 16, "opaque": True, "listing": True},
}


class Described:
    """Collects layers; a row is its class and its children by name."""

    def __init__(self):
        self.infos = [LayerInfo("", "Model", key=0)]

    def add(self, name, kind, children=None, key=None):
        own = LayerInfo(name, kind, key=key if key is not None else len(self.infos), **KINDS.get(kind, {}))
        self.infos.append(own)
        for child, (child_kind, inner) in (children or {}).items():
            self.add(f"{name}.{child}", child_kind, inner)
        return self


def leaf(kind):
    return (kind, None)


def listed(*rows, kind="LayerList"):
    return (kind, {str(index): row for index, row in enumerate(rows)})


ENCODER_LAYER = (
    "EncoderLayer",
    {
        "attention": ("Attention", {"q": leaf("Linear"), "k": leaf("Linear"), "out": leaf("Linear")}),
        "linear1": leaf("Linear"),
        "linear2": leaf("Linear"),
        "norm": leaf("Norm"),
        "dropout": leaf("Dropout"),
    },
)
CONV_NORM = ("ConvNorm", {"conv": leaf("Conv"), "norm": leaf("Norm")})
RESIDUAL = ("Residual", {"conv1": leaf("Conv"), "norm1": leaf("Norm"), "conv2": leaf("Conv"), "norm2": leaf("Norm")})


def encoder(count):
    return ("Encoder", {"layers": listed(*[ENCODER_LAYER] * count), "norm": leaf("Norm")})


def bert(count):
    return (
        "Bert",
        {
            "embeddings": ("Embeddings", {"words": leaf("Embedding"), "positions": leaf("Embedding")}),
            "encoder": encoder(count),
            "pooler": ("Pooler", {"dense": leaf("Linear")}),
        },
    )


def model(**children):
    described = Described()
    for name, (kind, inner) in children.items():
        described.add(name, kind, inner)
    return described.infos


def test_encoder_layers():
    found = repeated_blocks(model(bert=bert(3), classifier=leaf("Linear")))
    assert found == ["bert.encoder.layers.0", "bert.encoder.layers.1", "bert.encoder.layers.2"]


def test_a_list_of_one_layer():
    assert repeated_blocks(model(bert=bert(1), classifier=leaf("Linear"))) == ["bert.encoder.layers.0"]


def test_encoder_and_decoder():
    def stack(kind):
        parts = listed(("SelfAttention", {"q": leaf("Linear"), "k": leaf("Linear")}), ("Feed", {"a": leaf("Linear")}))
        return (kind, {"block": listed(*[("T5Block", {"layer": parts})] * 2), "norm": leaf("Norm")})

    found = repeated_blocks(model(shared=leaf("Embedding"), encoder=stack("Stack"), decoder=stack("Stack")))
    assert found == ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]


def test_two_towers_are_opened():
    found = repeated_blocks(model(query=bert(2), title=bert(2)))
    assert found == [
        "query.embeddings",
        "query.encoder.layers.0",
        "query.encoder.layers.1",
        "title.embeddings",
        "title.encoder.layers.0",
        "title.encoder.layers.1",
    ]


def test_residual_blocks_rather_than_stages():
    stages = {f"layer{i}": listed(RESIDUAL, RESIDUAL, kind="Sequential") for i in (1, 2)}
    found = repeated_blocks(model(conv1=leaf("Conv"), bn1=leaf("Norm"), **stages, fc=leaf("Linear")))
    assert found == ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]


def test_a_stage_of_one_block():
    stages = {
        "layer1": listed(RESIDUAL, kind="Sequential"),
        "layer2": listed(RESIDUAL, RESIDUAL, kind="Sequential"),
    }
    assert repeated_blocks(model(**stages)) == ["layer1.0", "layer2.0", "layer2.1"]


def test_one_long_sequence_with_other_layers_in_it():
    features = listed(CONV_NORM, RESIDUAL, RESIDUAL, CONV_NORM, kind="Sequential")
    assert repeated_blocks(model(features=features, fc=leaf("Linear"))) == ["features.1", "features.2"]


def test_blocks_in_stages_in_a_list():
    stage = ("Stage", {"blocks": listed(ENCODER_LAYER, ENCODER_LAYER), "merge": leaf("Linear")})
    found = repeated_blocks(model(stages=listed(stage, stage)))
    assert found == [f"stages.{i}.blocks.{j}" for i in (0, 1) for j in (0, 1)]


def test_blocks_that_are_attributes():
    children = {f"inception{i}": ("Inception", {"a": CONV_NORM, "b": CONV_NORM}) for i in range(3)}
    assert repeated_blocks(model(stem=CONV_NORM, **children)) == ["inception0", "inception1", "inception2"]


def test_blocks_numbered_inside_a_stage():
    dense = ("DenseLayer", {"conv1": leaf("Conv"), "norm": leaf("Norm"), "conv2": leaf("Conv")})
    stage = ("DenseBlock", {f"conv_{i}": dense for i in (1, 2, 10)})
    assert repeated_blocks(model(a=stage, b=stage)) == [f"{s}.conv_{i}" for s in "ab" for i in (1, 2, 10)]


def test_two_attentions_do_not_make_a_list():
    attention = ("Attention", {"q": leaf("Linear"), "k": leaf("Linear")})
    layer = ("DecoderLayer", {"attention1": attention, "attention2": attention, "linear": leaf("Linear")})
    assert repeated_blocks(model(layers=listed(layer, layer))) == ["layers.0", "layers.1"]


def test_experts_belong_to_their_layer():
    expert = ("Expert", {"up": leaf("Linear"), "down": leaf("Linear")})
    layer = ("MoELayer", {"attention": leaf("Linear"), "moe": ("Moe", {"experts": listed(*[expert] * 4)})})
    assert repeated_blocks(model(layers=listed(layer, layer))) == ["layers.0", "layers.1"]


def test_sequences_in_a_list_are_blocks():
    block = listed(leaf("Linear"), leaf("Gelu"), leaf("Linear"), kind="Sequential")
    assert repeated_blocks(model(blocks=listed(block, block))) == ["blocks.0", "blocks.1"]


def test_small_repeated_layers_where_there_are_no_larger_ones():
    found = repeated_blocks(model(body=listed(CONV_NORM, CONV_NORM, kind="Sequential"), fc=leaf("Linear")))
    assert found == ["body.0", "body.1"]


def test_top_layers_where_nothing_is_repeated():
    features = listed(leaf("Conv"), leaf("Relu"), leaf("Conv"), kind="Sequential")
    head = listed(leaf("Linear"), leaf("Relu"), leaf("Linear"), kind="Sequential")
    assert repeated_blocks(model(features=features, pool=leaf("Pool"), classifier=head)) == ["features", "classifier"]
    wrapped = Described()
    wrapped.add("net", "Net", {"features": features, "fc": leaf("Linear")})
    assert repeated_blocks(wrapped.infos) == ["net.features"]


def test_a_recurrent_layer_is_not_opened():
    lstm = ("LSTM", {"0": ("RNN", {"cell": leaf("Cell")}), "1": ("RNN", {"cell": leaf("Cell")})})
    assert repeated_blocks(model(words=leaf("Embedding"), lstm=lstm, fc=leaf("Linear"))) == ["lstm"]
    assert repeated_blocks(model(layers=listed(lstm, lstm))) == ["layers.0", "layers.1"]


def test_one_object_under_two_names_comes_once():
    described = Described()
    described.add("first", *RESIDUAL, key=50)
    described.add("again", *RESIDUAL, key=50)
    described.add("other", *RESIDUAL, key=51)
    assert repeated_blocks(described.infos) == ["first", "other"]


@pytest.mark.parametrize("children", [{}, {"fc": leaf("Linear")}, {"a": leaf("Linear"), "b": leaf("Linear")}])
def test_nothing_to_find(children):
    assert repeated_blocks(model(**children)) == []


def test_names_that_hold_dots_find_their_parent():
    """PaddleDetection: ``add_sublayer("cls_conv_dw0.0", ...)`` makes a child whose own name holds a dot."""
    import paddle

    from paddle_memcallbacks.recompute import find_units

    class Head(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            for index in range(3):
                self.add_sublayer(
                    f"conv{index}.0", paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 4))
                )

    assert find_units(Head()) == ["conv0.0", "conv1.0", "conv2.0"]
