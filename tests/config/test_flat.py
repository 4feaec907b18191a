"""Names as command lines have them, and overrides."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from paddle_memcallbacks.config import (
    SECTIONS,
    ConfigError,
    expand_dotted,
    flat_names,
    from_flat,
    load_config,
    merged,
)
from tests.config.helpers import EVERY_KEY


def test_flat_names_cover_every_key_once():
    names = flat_names()
    assert names["recompute_layers"] == ("recompute", "layers")
    assert names["memory_budget"] == ("memory", "budget")
    assert names["gradient_accumulation_steps"] == ("gradient_accumulation", "steps")
    assert set(names.values()) == {(section, key) for section, keys in EVERY_KEY.items() for key in keys}
    assert len(names) == sum(map(len, EVERY_KEY.values()))
    assert not set(names) & set(SECTIONS)


def test_every_key_arrives_flat_as_it_does_nested():
    flat = {f"{section}_{key}": value for section, keys in EVERY_KEY.items() for key, value in keys.items()}
    assert load_config(from_flat(flat)) == load_config(EVERY_KEY)


def test_every_key_arrives_as_command_line_text():
    def text(value):
        return ",".join(value) if isinstance(value, list) else str(value)

    flat = {f"{section}_{key}": text(value) for section, keys in EVERY_KEY.items() for key, value in keys.items()}
    assert load_config(from_flat(flat)) == load_config(EVERY_KEY)


def test_none_is_not_given():
    assert from_flat(dict.fromkeys(flat_names())) == {}
    assert load_config(from_flat({"recompute_first": None, "recompute_every_n": 2})).recompute.enable is True


def test_a_section_name_takes_a_bool():
    assert from_flat({"recompute": True, "recompute_every_n": 2}) == {"recompute": {"enable": True, "every_n": 2}}
    assert load_config(from_flat({"memory": False})).memory.enable is False
    with pytest.raises(ConfigError, match="given twice: true and false"):
        from_flat({"recompute": True, "recompute_enable": False})


@pytest.mark.parametrize(
    "name, words",
    [
        ("recompute_layer", "Did you mean recompute_layers?"),
        ("amp_levle", "Did you mean amp_level?"),
        ("memroy", "Did you mean memory?"),
        ("zzzz", "section_key, as recompute_layers"),
        (3, "there is no such key"),
    ],
)
def test_an_unknown_flat_name(name, words):
    with pytest.raises(ConfigError) as caught:
        from_flat({name: None})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "dotted, nested",
    [
        ({}, {}),
        ({"amp.level": "O2"}, {"amp": {"level": "O2"}}),
        ({"amp.level": "O2", "amp.dtype": "float16"}, {"amp": {"level": "O2", "dtype": "float16"}}),
        ({"amp": True, "amp.level": "O2"}, {"amp": {"enable": True, "level": "O2"}}),
        ({"amp.level": "O2", "amp": False}, {"amp": {"enable": False, "level": "O2"}}),
        ({"amp": {"dtype": "x"}, "amp.level": "O2"}, {"amp": {"dtype": "x", "level": "O2"}}),
        ({"amp.level": "O2", "amp": {"level": "O2"}}, {"amp": {"level": "O2"}}),
        ({"a.b.c": 1, "a.b.d": 2}, {"a": {"b": {"c": 1, "d": 2}}}),
        ({3: 1}, {3: 1}),
    ],
)
def test_expand_dotted(dotted, nested):
    before = copy.deepcopy(dotted)
    assert expand_dotted(dotted) == nested
    assert dotted == before


@pytest.mark.parametrize("name", ["", ".", "amp.", ".level", "amp..level"])
def test_an_empty_part_of_a_dotted_name(name):
    with pytest.raises(ConfigError, match="a part of the name is empty"):
        expand_dotted({name: 1})


def test_one_key_with_two_values():
    with pytest.raises(ConfigError, match="'amp.level' is given twice: 'O1' and 'O2'"):
        expand_dotted({"amp": {"level": "O1"}, "amp.level": "O2"})
    with pytest.raises(ConfigError, match=r"'amp\.level' is given twice: 'O2' and 'O1'"):
        expand_dotted({"amp.level": "O2", "amp": {"level": "O1"}})


def test_long_lists_that_differ_late_are_two_values():
    with pytest.raises(ConfigError, match="given twice"):
        expand_dotted({"recompute": {"layers": list("abcd")}, "recompute.layers": list("abce")})
    with pytest.raises(ConfigError, match="given twice"):
        expand_dotted({"a": {"b": np.zeros(3)}, "a.b": np.zeros(3)})


def test_mappings_that_hold_themselves():
    own = {}
    own["a"] = own
    with pytest.raises(ConfigError, match="holds itself"):
        expand_dotted({"a": own, "a.a": own})


def test_overrides_count():
    file = {"amp": {"level": "O1", "dtype": "bfloat16"}, "recompute": True, "memory": False}
    before = copy.deepcopy(file)
    over = {"amp": {"level": "O2"}, "recompute": {"every_n": 2}, "memory": True, "visualdl": False}
    assert merged(file, over) == {
        "amp": {"level": "O2", "dtype": "bfloat16"},
        "recompute": {"enable": True, "every_n": 2},
        "memory": True,
        "visualdl": False,
    }
    assert merged({"amp": {"level": "O1"}}, {"amp": False}) == {"amp": {"level": "O1", "enable": False}}
    assert file == before
