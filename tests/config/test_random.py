"""2,000 random configs: a config that round-trips, or a ConfigError; never anything else."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_memcallbacks.config import SECTIONS, ConfigError, MemoryConfig, json_schema, load_config
from tests.config.helpers import EVERY_KEY
from tests.config.mini_schema import valid

MANY = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
SCHEMA = json_schema()
KEYS = sorted({key for keys in EVERY_KEY.values() for key in keys})

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(), max_size=12),  # surrogates too
    st.binary(max_size=8),
    st.decimals(),
    st.fractions(),
    st.datetimes(),
    st.sampled_from([10**400, -(10**400), 2**31, "1e400", "9" * 5000, "8GiB", "auto", "O1", "on", "x" * 9999]),
    st.sampled_from([np.int64(3), np.float32(0.5), np.bool_(True), np.str_("O1"), np.datetime64("NaT"), np.zeros(())]),
    st.sampled_from([np.zeros(3), np.array(["a"]), np.array([None]), object(), type, len, Ellipsis, range(3), {1}]),
)
keys = st.one_of(st.sampled_from([*SECTIONS, *KEYS]), st.text(max_size=6), st.integers(), st.none(), st.booleans())
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
arbitrary = st.one_of(junk, st.dictionaries(st.sampled_from(SECTIONS), junk, max_size=6))


@st.composite
def sound(draw: Any) -> dict[str, dict[str, Any]]:
    """A valid config: some of the sections, some of their keys, values that the schema allows."""
    config = {}
    for section in draw(st.lists(st.sampled_from(SECTIONS), unique=True)):
        chosen = draw(st.lists(st.sampled_from(sorted(EVERY_KEY[section])), unique=True))
        schemas = SCHEMA["properties"][section]["anyOf"][1]["properties"]
        config[section] = {key: draw(_values_of(schemas[key])) for key in chosen}
    if config.get("gradient_accumulation", {}).get("steps") is not None:
        config["gradient_accumulation"].pop("micro_batch_size", None)
    elif "gradient_accumulation" in config:
        config["gradient_accumulation"]["micro_batch_size"] = draw(st.integers(1, 64))
    if "init_loss_scaling" in config.get("amp", {}):
        config["amp"]["init_loss_scaling"] = draw(st.floats(1, 2.0**126))
    if "loss_scale" in config:
        config["loss_scale"].pop("min_loss_scale", None)
    if "recompute" in config and "memory" in config:
        config["memory"].pop("plan", None)
    return config


def _values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "anyOf" in schema:
        return st.one_of(*(_values_of(part) for part in schema["anyOf"] if "pattern" not in part))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        return st.lists(st.from_regex(r"\A[a-f_.*]{1,9}\Z"), min_size=schema.get("minItems", 0), max_size=4)
    if schema["type"] in ("number", "integer"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1e-6)
        high = schema.get("maximum", schema.get("exclusiveMaximum", 1) - 1e-6)
        return st.integers(low, high) if schema["type"] == "integer" else st.floats(low, high)
    return {"boolean": st.booleans(), "null": st.none(), "string": st.from_regex(r"\A[a-f./]{1,9}\Z")}[schema["type"]]


@st.composite
def mutated(draw: Any) -> dict[Any, Any]:
    """A valid config with one to three faults, or what may be faults."""
    config: dict[Any, Any] = copy.deepcopy(draw(sound()))
    for _ in range(draw(st.integers(1, 3))):
        target = draw(st.sampled_from([config, *(part for part in config.values() if isinstance(part, dict))]))
        where = draw(st.one_of(st.sampled_from(list(target)), keys)) if target else draw(keys)
        change = draw(st.sampled_from(["value", "rename", "nest", "text"]))
        if change == "value" or where not in target:
            target[where] = draw(junk)
        elif change == "rename":
            target[draw(keys)] = target.pop(where)
        elif change == "nest":
            target[where] = {where: target[where]}
        else:
            target[where] = draw(st.sampled_from([str, repr, _listed, _boxed]))(target[where])
    return config


def _listed(value: Any) -> list[Any]:
    return [value]


def _boxed(value: Any) -> Any:
    box = np.empty((), dtype=object)
    box[()] = value
    return box


def check(source: Any) -> None:
    try:
        config = load_config(source)
    except ConfigError as error:
        str(error).encode("utf-8")
        assert error.complaints and all(complaint.text for complaint in error.complaints)
        assert "pydantic" not in str(error)
        return
    assert isinstance(config, MemoryConfig)
    plain = json.loads(json.dumps(config.as_dict(), allow_nan=False))
    assert load_config(plain) == config
    assert load_config(config.as_dict(only_given=True)).as_dict() == config.as_dict()
    assert valid(plain, SCHEMA)
    assert all(note.endswith(".") for note in config.notes())


@MANY
@given(arbitrary.filter(lambda source: source is None or not isinstance(source, str)))
def test_arbitrary_junk(source):
    check(source)


@MANY
@given(mutated())
def test_near_valid_configs(source):
    check(source)


@settings(MANY, max_examples=500)
@given(sound())
def test_valid_configs_are_accepted_and_kept(source):
    config = load_config(source)
    check(source)
    kept = config.as_dict(only_given=True)
    for section, values in source.items():
        for key, value in values.items():
            assert kept[section][key] == (round(value) if isinstance(value, float) and key == "budget" else value)


@given(st.text(st.characters(), max_size=30))
def test_any_name_of_a_file(source):
    check(f"no-such-folder/{source}")


def test_mappings_and_lists_that_hold_themselves():
    own: dict[str, Any] = {}
    own.update(dict.fromkeys([*SECTIONS, *KEYS], own))
    check(own)
    for section in SECTIONS:
        check({section: own})
        for key in EVERY_KEY[section]:
            looped: list[Any] = []
            looped.append(looped)
            check({section: {key: looped}})
            check({section: {key: own}})


def test_deep_nesting():
    deep: Any = "a"
    for _ in range(100_000):
        deep = [deep]
    for section in SECTIONS:
        check({section: deep})
        check({section: dict.fromkeys(EVERY_KEY[section], deep)})
