"""Error messages: the right nearest key for every misspelling, complete English, nothing of pydantic's own."""

from __future__ import annotations

import pickle
import re

import pytest
import yaml

from paddle_memcallbacks.config import SECTIONS, Complaint, ConfigError, load_config, nearest_key
from paddle_memcallbacks.config.errors import describe
from paddle_memcallbacks.config.names import FOREIGN_NAMES
from tests.config.helpers import EVERY_KEY, message_of

PATHS = [f"{section}.{key}" for section, keys in EVERY_KEY.items() for key in keys]


def misspellings(word):
    """A letter left out, doubled, replaced, two swapped; other case and dashes."""
    found = {word.upper(), word.replace("_", "-"), word.replace("_", ""), f"{word}s", f"{word}_"}
    for place in range(len(word)):
        found.add(word[:place] + word[place + 1 :])
        found.add(word[:place] + word[place] + word[place:])
        found.add(word[:place] + "x" + word[place + 1 :])
        found.add(word[:place] + word[place : place + 2][::-1] + word[place + 2 :])
    return sorted(found - {word})


def asked(source):
    """The keys that the message asks about: "Did you mean a.b or c.d?"."""
    found = re.search(r"Did you mean ([\w. ]+)\?", message_of(source))
    return found.group(1).split(" or ") if found else []


@pytest.mark.parametrize("path", PATHS)
def test_a_misspelt_key_is_answered_with_the_key(path):
    section, _, key = path.partition(".")
    for wrong in misspellings(key):
        if wrong not in EVERY_KEY[section]:
            assert asked({section: {wrong: 1}}) == [path], wrong


@pytest.mark.parametrize("section", SECTIONS)
def test_a_misspelt_section_is_answered_with_the_section(section):
    for wrong in misspellings(section):
        assert asked({wrong: {"enable": True}}) == [section], wrong


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith(".enable")])
def test_a_key_in_the_wrong_place_is_answered_with_its_own(path):
    owner, _, key = path.partition(".")
    holders = [f"{section}.{key}" for section in SECTIONS if key in EVERY_KEY[section]]
    assert asked({key: 1}) == holders
    for section in SECTIONS:
        if key not in EVERY_KEY[section]:
            assert asked({section: {key: 1}}) == holders
    assert asked({path.replace(".", "_"): 1}) == [path]
    assert f"'{owner}: {{{key}: ...}}'" in message_of({path: 1})


def test_a_misspelt_key_of_another_section_or_level():
    assert asked({"stepz": 4}) == ["gradient_accumulation.steps"]
    assert asked({"memory": {"layers": ["a"]}}) == ["recompute.layers"]
    assert asked({"memory": {"recompute": True}}) == ["recompute"]
    assert asked({"interval": 3}) == ["memory.interval", "visualdl.interval"]
    assert "It stands under recompute: 'recompute: {layers: ...}'." in message_of({"amp": {"layers": ["a"]}})


@pytest.mark.parametrize("name, path", FOREIGN_NAMES.items())
def test_names_of_other_tools(name, path):
    assert path in PATHS or path in SECTIONS
    assert asked({name: 1}) == [path]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "zzzz",
        "epoch",
        "LearningRate",
        "metric",
        "stage",
        "运行",
        "\ud800",
        "x" * 10_000,
        3,
        None,
        True,
        2.5,
        (1, 2),
        b"amp",
    ],
)
def test_a_key_like_none_is_answered_with_the_list(key):
    message = message_of({key: 1})
    assert message.endswith(f"Sections: {', '.join(SECTIONS)}.") and len(message) < 400
    message = message_of({"visualdl": {key: 1}})
    assert message.startswith("visualdl.") and message.endswith("Keys of visualdl: enable, logdir, interval.")
    message.encode("utf-8")


def test_a_lone_enable_belongs_to_no_section():
    assert asked({"enable": True}) == []
    assert asked({"amp_enabled": True}) == ["amp.enable"]


def test_nearest_key():
    assert nearest_key("steps", ["step", "steps"]) == "steps"
    assert nearest_key("STEPS", ["interval", "steps"]) == "steps"
    assert nearest_key("on-oom", ["on_oom"]) == "on_oom"
    assert nearest_key("zzz", ["steps"]) is None and nearest_key("steps", []) is None


BAD_VALUES = [
    None,
    True,
    -1,
    2.5,
    "",
    "?",
    [],
    [None],
    {},
    {"a": {}},
    b"x",
    10**400,
    float("nan"),
    object(),
    "x" * 9999,
]


@pytest.mark.parametrize("path", PATHS)
def test_every_refused_value_has_a_whole_message(path):
    section, _, key = path.partition(".")
    for value in BAD_VALUES:
        try:
            load_config({section: {key: value, **({"steps": 2} if path.startswith("gradient_acc") else {})}})
        except ConfigError as error:
            message = str(error)
            if key != "steps" and "exclude each other" not in message:
                assert message.startswith(f"{path}: {describe(value)} cannot be used. Allowed: "), message
            assert message.endswith((".", "?")) and len(message) < 500, message
            for alien in ("pydantic", "http", "Input should", "type=", "input_value", "Traceback", "  "):
                assert alien not in message


@pytest.mark.parametrize("path", PATHS)
def test_what_a_message_proposes_is_accepted(path):
    section, _, key = path.partition(".")
    proposed = re.search(r"Write for example '(.*)'\.", message_of({section: {key: object()}}))
    assert proposed is not None
    base = {"steps": 2} if section == "gradient_accumulation" and key not in ("steps", "micro_batch_size") else {}
    load_config({section: {**base, **yaml.safe_load(proposed.group(1))}})


def test_an_error_keeps_its_parts_through_pickle():
    error = ConfigError([Complaint("a.b", "a.b: no.", ("a.b",)), Complaint("c", "c: no.")], "mem.yml")
    again = pickle.loads(pickle.dumps(error))
    assert again.complaints == error.complaints and again.source == "mem.yml" and str(again) == str(error)
    assert str(ConfigError("plain words")) == "plain words" and isinstance(error, ValueError)


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "null"),
        (True, "true"),
        (4, "4"),
        (2.5, "2.5"),
        (10**400, "a whole number of about 400 digits"),
        ("a", "'a'"),
        ("x" * 100, "'" + "x" * 60 + "'... (100 characters)"),
        ("\ud800", "'\\ud800'"),
        ([1, 2, 3, 4], "[1, 2, 3, ...] (4 values)"),
        ([[1]], "a nested list of 1 value"),
        ({}, "an empty mapping"),
        (object(), "an object of type object"),
    ],
)
def test_describe(value, text):
    assert describe(value) == text


class Hostile(list):  # type: ignore[type-arg]
    def __len__(self):
        raise RuntimeError


def test_describe_survives_hostile_values():
    assert describe(10**5000) == "a whole number of about 5000 digits"
    assert describe(Hostile()) == "an object of type Hostile"
    own: list = []
    own.append(own)
    assert describe(own) == "a nested list of 1 value"
