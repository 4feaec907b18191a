"""Patterns over plain descriptions of layers. No paddle."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_memcallbacks.recompute.errors import RecomputeError
from paddle_memcallbacks.recompute.names import LayerInfo, choose_units, matches, nearest_names, thin_out


def tree(*rows):
    """Rows are ``name`` or ``(name, class_name)`` or ``(name, class_name, options)``; parents are added."""
    infos = {"": LayerInfo("", "Model", key=0)}
    for index, row in enumerate(rows, start=1):
        name, class_name, options = (row, "Layer", {}) if isinstance(row, str) else (*row, {})[:3]
        parts = name.split(".")
        for depth in range(1, len(parts)):
            outer = ".".join(parts[:depth])
            infos.setdefault(outer, LayerInfo(outer, "Layer", key=1000 * index + depth))
        infos[name] = LayerInfo(name, class_name, key=options.pop("key", index), **options)
    return list(infos.values())


BERT = tree(
    ("bert.embeddings", "Embeddings"),
    ("bert.embeddings.words", "Embedding", {"parameters": 1, "matrices": 1}),
    ("bert.encoder", "Encoder"),
    ("bert.encoder.layers", "LayerList", {"called": False, "listing": True}),
    *(
        (f"bert.encoder.layers.{i}{rest}", kind, {"parameters": 2, "matrices": 1})
        for i in range(4)
        for rest, kind in (("", "EncoderLayer"), (".attention", "Attention"), (".linear", "Linear"))
    ),
    ("classifier", "Linear", {"parameters": 2, "matrices": 1}),
)
LAYERS = tuple(f"bert.encoder.layers.{i}" for i in range(4))


@pytest.mark.parametrize(
    "patterns",
    [
        ["bert.encoder.layers.*"],
        ["bert.encoder.layers"],
        ["**.layers"],
        ["**.layers.*"],
        ["EncoderLayer"],
        ["bert.encoder.layers.[0-1]", "bert.encoder.layers.[23]"],
        ["bert.encoder.layers.?"],
        ["**.layers.*", "**.attention"],
        ["bert.encoder.**"],
        [*LAYERS],
        "EncoderLayer",
    ],
)
def test_ways_to_say_all_layers(patterns):
    assert choose_units(BERT, patterns).names == LAYERS


def test_order_is_the_models_not_the_patterns():
    assert choose_units(BERT, ["classifier", LAYERS[2], LAYERS[0]]).names == (LAYERS[0], LAYERS[2], "classifier")


def test_a_star_stays_within_one_part():
    assert choose_units(BERT, ["bert.*"]).names == ("bert.embeddings", "bert.encoder")
    assert choose_units(BERT, ["*.words", "bert.*.words"][1:]).names == ("bert.embeddings.words",)
    with pytest.raises(RecomputeError, match=r"'\*.words' matches no layer"):
        choose_units(BERT, ["*.words"])


def test_of_nested_matches_the_outermost_is_kept_and_said():
    selection = choose_units(BERT, ["bert.encoder.**"])
    assert selection.names == LAYERS
    selection = choose_units(BERT, ["**.layers.*", "**.linear"])
    assert selection.names == LAYERS
    assert any("4 of the matched layers lie inside another" in note for note in selection.notes)
    assert any(f"'{LAYERS[0]}.linear' inside '{LAYERS[0]}'" in note for note in selection.notes)
    assert choose_units(BERT, ["**"]).names == ("bert", "classifier")


def test_a_name_in_a_wider_match_is_not_an_error():
    assert choose_units(BERT, ["bert.encoder.layers.*", f"{LAYERS[1]}.attention"]).names == LAYERS
    assert choose_units(BERT, ["bert.encoder", "bert.encoder.layers.*"]).names == ("bert.encoder",)


def test_nested_names_one_by_one_are_an_error():
    with pytest.raises(RecomputeError, match=f"'{LAYERS[0]}.attention' lies inside '{LAYERS[0]}'"):
        choose_units(BERT, [LAYERS[0], f"{LAYERS[0]}.attention"])


def test_a_container_and_one_of_its_children_is_not_nesting():
    assert choose_units(BERT, ["bert.encoder.layers", LAYERS[2]]).names == LAYERS


def test_containers_in_containers():
    layers = tree(
        ("stages", "LayerList", {"called": False}),
        ("stages.0", "LayerList", {"called": False}),
        "stages.0.0",
        "stages.0.1",
        ("stages.1", "LayerDict", {"called": False}),
        "stages.1.a",
    )
    assert choose_units(layers, ["stages"]).names == ("stages.0.0", "stages.0.1", "stages.1.a")


def test_each_pattern_must_match():
    with pytest.raises(RecomputeError, match=r"'decoder.\*' matches no layer"):
        choose_units(BERT, ["bert.encoder.layers.*", "decoder.*"])
    with pytest.raises(RecomputeError, match="no layers were named"):
        choose_units(BERT, [])


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("encoder.layers.*", "bert.encoder.layers.*"),
        ("layers.3", "bert.encoder.layers.3"),
        ("model.bert.encoder.layers.*", "bert.encoder.layers.*"),
        ("EncoderLayr", "EncoderLayer"),
        ("clasifier", "classifier"),
        ("bert.encoder.layer.1", "bert.encoder.layers.1"),
    ],
)
def test_nearest_names(wanted, near):
    assert near in nearest_names(BERT, wanted)
    with pytest.raises(RecomputeError, match=re.escape(f"'{near}'")):
        choose_units(BERT, [wanted])


def test_nothing_is_near():
    with pytest.raises(RecomputeError, match="no such layer"):
        choose_units(BERT, ["xyz9"])


def test_a_name_goes_before_a_class():
    layers = tree(("Linear", "Block"), ("other", "Linear"))
    selection = choose_units(layers, ["Linear"])
    assert selection.names == ("Linear",)
    assert any("a layer and a class" in note for note in selection.notes)


def test_a_layer_under_two_names_is_one_unit():
    layers = tree(("a", "Layer", {"key": 7}), ("b", "Layer", {"key": 7}), "c")
    selection = choose_units(layers, ["*"])
    assert selection.names == ("a", "c")
    assert any("'b' and 'a' are one layer" in note for note in selection.notes)
    assert choose_units(layers, ["b"]).names == ("b",)


def test_one_big_unit_is_remarked_on():
    assert any("only unit" in note for note in choose_units(BERT, ["bert"]).notes)
    assert choose_units(BERT, [LAYERS[0], LAYERS[1]]).notes == ()
    assert choose_units(BERT, ["classifier"]).notes == ()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "abcdef"),
        ({"every_n": 2}, "ace"),
        ({"every_n": 6}, "a"),
        ({"first": 2}, "ab"),
        ({"last": 2}, "ef"),
        ({"first": 2, "last": 1}, "abf"),
        ({"first": 5, "last": 5}, "abcdef"),
        ({"first": 99}, "abcdef"),
        ({"first": 4, "every_n": 3}, "ad"),
    ],
)
def test_thin_out(options, expected):
    assert "".join(thin_out("abcdef", **options)) == expected


@pytest.mark.parametrize("options", [{"every_n": 0}, {"first": 0}, {"last": -1}])
def test_thin_out_refuses(options):
    with pytest.raises(RecomputeError, match="must be 1 or more"):
        thin_out("abc", **options)


part = st.text("ab1_", min_size=1, max_size=3)
dotted = st.lists(part, min_size=1, max_size=5).map(".".join)
pattern_part = st.one_of(part, st.sampled_from(["*", "**", "a*", "?", "[ab]", "*1"]))
pattern = st.lists(pattern_part, min_size=1, max_size=5).map(".".join)


def by_regex(name, wanted):
    """The same rule said by another means: a regular expression over parts that each end in a dot."""
    parts = wanted.split(".")
    expression = ""
    for index, each in enumerate(parts):
        if each == "**":
            expression += r"(?:[^.]+\.)" + ("+" if index == len(parts) - 1 else "*")
        else:
            expression += each.replace("*", "[^.]*").replace("?", "[^.]") + r"\."
    return re.fullmatch(expression, name + ".") is not None


@given(dotted, pattern)
def test_matching_agrees_with_a_regular_expression(name, wanted):
    assert matches(name, wanted) == by_regex(name, wanted)


@given(dotted)
def test_a_name_matches_itself_and_the_wildcards(name):
    assert matches(name, name)
    assert matches(name, "**")
    assert matches(name, ".".join("*" * len(name.split("."))))
    assert not matches(name, ".".join("*" * (len(name.split(".")) + 1)))
    assert matches(name, f"**.{name}")
    assert not matches(name, f"{name}.**") and matches(f"{name}.a.b", f"{name}.**")


@given(st.sets(dotted, min_size=1, max_size=12), st.lists(pattern, min_size=1, max_size=3))
def test_any_choice_is_ordered_matched_and_not_nested(names, patterns):
    layers = tree(*sorted(names))
    try:
        selection = choose_units(layers, patterns)
    except RecomputeError:
        return
    order = [layer.name for layer in layers]
    positions = [order.index(name) for name in selection.names]
    assert positions == sorted(set(positions))
    for name in selection.names:
        assert any(matches(name, each) or each == "Layer" for each in patterns)
        assert not any(name.startswith(f"{other}.") for other in selection.names)


def test_no_paddle_is_needed():
    import subprocess

    code = (
        "import sys; import paddle_memcallbacks.recompute.names, paddle_memcallbacks.recompute.blocks, "
        "paddle_memcallbacks.recompute.savings; assert 'paddle' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
