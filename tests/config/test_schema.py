"""The JSON Schema: every key with its description, the loader's own examples and defaults valid under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paddle_memcallbacks.config import MemoryConfig, json_schema, load_config
from paddle_memcallbacks.config.table import keys_markdown
from tests.config.helpers import EVERY_KEY
from tests.config.mini_schema import valid

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json_schema()
KEYS = {
    f"{section}.{key}": schema
    for section, whole in SCHEMA["properties"].items()
    for key, schema in whole["anyOf"][1]["properties"].items()
}


def test_it_is_plain_json_of_the_current_draft():
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["additionalProperties"] is False


def test_the_default_of_a_section_is_its_state_when_absent():
    states = {section: keys["enable"] for section, keys in MemoryConfig().as_dict().items()}
    assert {section: whole["default"] for section, whole in SCHEMA["properties"].items()} == states


def test_every_key_is_there_with_a_description():
    assert set(KEYS) == {f"{section}.{key}" for section, keys in EVERY_KEY.items() for key in keys}
    for path, schema in KEYS.items():
        assert 10 < len(schema["description"]) < 200 and schema["description"].endswith("."), path


@pytest.mark.parametrize("path", KEYS)
def test_defaults_and_examples_fit_the_schema_and_the_loader(path):
    section, _, key = path.partition(".")
    default = MemoryConfig().as_dict()[section][key]
    assert KEYS[path]["default"] == default or key == "enable"
    base = {"steps": 2} if section == "gradient_accumulation" and key not in ("steps", "micro_batch_size") else {}
    for value in KEYS[path].get("examples", [default]):
        assert valid(value, KEYS[path])
        load_config({section: {**base, key: value}})
    assert valid(default, KEYS[path])
    assert len(KEYS[path].get("examples", [])) > 0 or default is not None


@pytest.mark.parametrize(
    "config",
    [
        EVERY_KEY,
        MemoryConfig().as_dict(),
        {},
        {"amp": True, "recompute": False},
        {"memory": {"budget": "14GiB"}},
        {"memory": {"budget": " 8.5 gb"}},
        {"memory": {"budget": "8e9"}},
        {"memory": {"budget": "auto"}, "gradient_accumulation": {"micro_batch_size": "auto"}},
        {"recompute": {"layers": "auto"}},
        {"recompute": {"layers": "backbone.*"}},
    ],
)
def test_valid_for_both(config):
    assert valid(config, SCHEMA)
    load_config(config)


@pytest.mark.parametrize(
    "config",
    [
        {"stepz": 4},
        {"amp": {"levle": "O1"}},
        {"amp": {"level": "O3"}},
        {"amp": 3},
        {"amp": None},
        {"memory": {"budget": 14}},
        {"memory": {"budget": "8G"}},
        {"memory": {"budget": True}},
        {"memory": {"margin": 1}},
        {"memory": {"interval": 0}},
        {"recompute": {"layers": []}},
        {"recompute": {"layers": [""]}},
        {"recompute": {"first": 0}},
        {"visualdl": {"logdir": ""}},
        {"amp": {"custom_white_list": "a b"}},
        {"amp": {"init_loss_scaling": 0}},
        [],
    ],
)
def test_invalid_for_both(config):
    assert not valid(config, SCHEMA)
    if config != {"visualdl": {"logdir": ""}}:  # a command line's empty word unsets a key
        with pytest.raises(ValueError):
            load_config(config)


def test_the_written_table_is_the_code_s():
    written = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    assert written == keys_markdown(), "run: python docs/make_keys.py"


def test_the_table_holds_every_key_with_its_default():
    rows = [line.split(" | ") for line in keys_markdown().splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == [path.partition(".")[2] for path in KEYS]
    assert ["| `on_oom`", "`replay`", "replay or raise"] in [row[:3] for row in rows]
    assert all(len(row) == 4 for row in rows)
