"""What a config means: sections on and off, values as people and command lines write them, round trips."""

from __future__ import annotations

import copy
import decimal
import fractions
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

import paddle_memcallbacks as pm
from paddle_memcallbacks.config import SECTIONS, AccumulationConfig, AmpConfig, ConfigError, MemoryConfig, load_config
from tests.config.helpers import EVERY_KEY, message_of


def test_absent_sections_are_off_where_they_change_the_run_and_on_where_they_only_watch():
    config = load_config({})
    assert {name: getattr(config, name).enable for name in SECTIONS} == {
        "amp": False,
        "gradient_accumulation": False,
        "recompute": False,
        "memory": True,
        "loss_scale": True,
        "visualdl": True,
    }
    assert load_config(None) == load_config() == MemoryConfig() == config


def test_a_written_section_is_on():
    config = load_config({"amp": {}, "recompute": {"every_n": 2}, "gradient_accumulation": {"steps": 2}})
    assert (config.amp.enable, config.recompute.enable, config.gradient_accumulation.enable) == (True, True, True)
    assert config.recompute.layers == "auto"


@pytest.mark.parametrize("section", SECTIONS)
def test_a_bare_bool_stands_for_the_section(section):
    assert getattr(load_config({section: False}), section).enable is False
    if section == "gradient_accumulation":
        assert "neither gradient_accumulation.steps nor" in message_of({section: True})
    else:
        assert getattr(load_config({section: True}), section).enable is True


@pytest.mark.parametrize("word, on", [("true", True), ("On", True), ("yes", True), ("off", False), ("FALSE", False)])
def test_a_section_or_flag_takes_the_words_of_command_lines(word, on):
    assert load_config({"amp": word}).amp.enable is on
    assert load_config({"recompute": {"verify": word}}).recompute.verify is on


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_section_is_refused(section):
    message = message_of({section: None})
    assert f"{section}: nothing stands under it" in message and f"'{section}: false'" in message


def test_enable_false_is_off_whatever_else_stands_there_and_the_rest_is_still_checked():
    config = load_config({"amp": {"enable": False, "level": "O2"}, "gradient_accumulation": {"enable": False}})
    assert config.amp.enable is False and config.gradient_accumulation.enable is False
    message = message_of({"amp": {"enable": False, "level": "O3"}})
    assert message.startswith("amp.level: 'O3' cannot be used. Allowed: O1 or O2.")
    assert "amp is off, but the keys of a section that is off are checked too" in message
    assert "is off" not in message_of({"amp": {"level": "O3"}})


def test_every_key_is_kept_and_none_is_forgotten_here():
    config = load_config(EVERY_KEY)
    assert config.as_dict() == EVERY_KEY
    default = MemoryConfig().as_dict()
    assert {section: set(keys) for section, keys in EVERY_KEY.items()} == {s: set(k) for s, k in default.items()}


def test_the_example_of_the_design_loads():
    text = """
    amp:        {enable: true, level: O1, dtype: float16, master_weight: null, master_grad: null,
                 init_loss_scaling: 65536, incr_ratio: 2.0, decr_ratio: 0.5, incr_every_n_steps: 2000,
                 decr_every_n_nan_or_inf: 1, use_dynamic_loss_scaling: true, custom_white_list: [],
                 custom_black_list: []}
    gradient_accumulation: {enable: true, steps: 4}
    recompute:  {enable: true, layers: ["backbone.*"], every_n: 1, verify: false}
    memory:     {enable: true, budget: 14GiB, margin: 0.03, plan: null, interval: 10, per_layer: true, on_oom: replay}
    loss_scale: {enable: true, min_loss_scale: 1.0, max_consecutive_skips: 5, max_skip_rate: 0.1,
                 on_storm: checkpoint, on_floor: warn}
    visualdl:   {enable: true, logdir: null, interval: 10}
    """
    config = load_config(yaml.safe_load(text))
    # written out in full, the example says what the defaults say
    assert config.amp == AmpConfig() and config.loss_scale == MemoryConfig().loss_scale
    assert config.memory == MemoryConfig().memory.model_copy(update={"budget": 14 * 2**30})
    assert config.recompute.layers == ("backbone.*",) and config.gradient_accumulation.steps == 4


@pytest.mark.parametrize(
    "value", [4, 4.0, "4", " 4 ", "4.0", "4e0", np.int64(4), np.float32(4), np.array(4), fractions.Fraction(4)]
)
def test_whole_numbers(value):
    steps = load_config({"gradient_accumulation": {"steps": value}}).gradient_accumulation.steps
    assert steps == 4 and type(steps) is int


@pytest.mark.parametrize(
    "value",
    [0, -1, 4.5, "4.5", True, False, np.bool_(True), "four", "", [4], (4,), {"a": 4}, b"4", 2**31, 10**400, -(10**400)]
    + [float("inf"), float("nan"), "inf", "nan", "1e400", "9" * 500, "٤", "0x4", 4 + 0j, object(), "\ud800", "4 4"],
)
def test_what_is_no_whole_number(value):
    message = message_of({"recompute": {"every_n": value}})
    assert message.startswith("recompute.every_n: ")
    assert "Allowed: a whole number from 1 to 2147483647." in message


@pytest.mark.parametrize("value", [0.1, "0.1", "1e-1", ".1", np.float64(0.1), decimal.Decimal("0.1")])
def test_fractions(value):
    assert load_config({"memory": {"margin": value}}).memory.margin == 0.1


@pytest.mark.parametrize("value", [-0.01, 1, 1.0, float("nan"), "nan", "-inf", True, "x", None, [0.1], "0,1", 10**400])
def test_what_is_no_margin(value):
    message = message_of({"memory": {"margin": value}})
    assert message.startswith("memory.margin: ") and "Allowed: a number at least 0 and below 1." in message


@pytest.mark.parametrize("value", ["3%", 3])
def test_percent_is_answered_with_the_fraction(value):
    assert message_of({"memory": {"margin": value}}).endswith("Did you mean 0.03?")


def test_bounds_of_the_loss_scale():
    amp = load_config({"amp": {"init_loss_scaling": 2.0**126}}).amp
    assert amp.init_loss_scaling == 2.0**126
    for value in (2.0**127, 0, -1, float("inf")):
        assert "amp.init_loss_scaling" in message_of({"amp": {"init_loss_scaling": value}})
    assert "amp.incr_ratio" in message_of({"amp": {"incr_ratio": 1}})
    assert "amp.decr_ratio" in message_of({"amp": {"decr_ratio": 1}})
    assert "loss_scale.max_skip_rate" in message_of({"loss_scale": {"max_skip_rate": 0}})


@pytest.mark.parametrize(
    "value, layers",
    [
        ("auto", "auto"),
        (" AUTO ", "auto"),
        (["auto"], "auto"),
        (["a.*", "b.**"], ("a.*", "b.**")),
        (("a",), ("a",)),
        (np.array(["a", "b"]), ("a", "b")),
        ("a.*", ("a.*",)),
        ("a.*, b", ("a.*", "b")),
        (["a.*,b"], ("a.*", "b")),
        ("[a.*, 'b', \"c\"]", ("a.*", "b", "c")),
    ],
)
def test_layers(value, layers):
    assert load_config({"recompute": {"layers": value}}).recompute.layers == layers


@pytest.mark.parametrize("value", [[], "", "[]", [1], [""], ["a,"], "a b", [["a"]], {"a"}, {"a": 1}, b"a", 3, ["a\tb"]])
def test_what_is_no_list_of_layers(value):
    assert message_of({"recompute": {"layers": value}}).startswith("recompute.layers: ")


@pytest.mark.parametrize("value", [b"", bytearray(), memoryview(b""), {}, None, 0, False])
def test_what_is_no_empty_list_of_ops(value):
    assert load_config({"amp": {"custom_white_list": []}}).amp.custom_white_list == ()
    assert message_of({"amp": {"custom_white_list": value}}).startswith("amp.custom_white_list: ")


def test_null_unsets_a_key_that_has_no_default_value():
    for null in (None, "None", "null", "~", ""):
        config = load_config({"memory": {"budget": null, "plan": null}, "amp": {"master_grad": null}})
        assert config.memory.budget is None and config.memory.plan is None and config.amp.master_grad is None
    assert message_of({"amp": {"level": None}}).endswith("Leave the key out for its default, O1.")


def test_paths():
    assert load_config({"memory": {"plan": Path("a") / "plan.yml"}}).memory.plan == "a/plan.yml"
    for value in (True, 3, ["a"], b"a", "a\nb", "a\0"):
        assert message_of({"visualdl": {"logdir": value}}).startswith("visualdl.logdir: ")


def test_words_that_yaml_or_other_tools_mangle():
    assert message_of({"amp": {"level": 1}}).endswith("Did you mean O1?")  # YAML 1.1 reads `01` as one
    assert message_of({"amp": {"level": "o2"}}).endswith("Did you mean O2?")
    assert message_of({"amp": {"level": "02"}}).endswith("Did you mean O2?")
    assert message_of({"amp": {"dtype": "fp16"}}).endswith("Did you mean float16?")
    assert message_of({"amp": {"dtype": "bf16"}}).endswith("Did you mean bfloat16?")
    assert message_of({"memory": {"on_oom": False}}).startswith("memory.on_oom: false cannot be used.")


@pytest.mark.parametrize(
    "section, value, meant",
    [
        ("gradient_accumulation", 4, "gradient_accumulation: {steps: 4}"),
        ("gradient_accumulation", "auto", "gradient_accumulation: {micro_batch_size: auto}"),
        ("recompute", ["a.*"], 'recompute: {layers: ["a.*"]}'),
        ("recompute", "auto", "recompute: {layers: auto}"),
        ("memory", "14GiB", "memory: {budget: 14GiB}"),
        ("amp", "O2", "amp: {level: O2}"),
        ("amp", "bfloat16", "amp: {dtype: bfloat16}"),
        ("visualdl", "./runs", "visualdl: {logdir: ./runs}"),
    ],
)
def test_a_bare_value_is_answered_with_the_key_it_was_meant_for(section, value, meant):
    assert message_of({section: value}).endswith(f"Did you mean '{meant}'?")
    load_config(yaml.safe_load(meant) | ({"memory": {"budget": "1GiB"}} if section != "memory" else {}))


@pytest.mark.parametrize("value", [4, [], "x y", object(), b"true", 1, 0, 2.5])
def test_a_bare_value_that_means_nothing_is_answered_with_the_keys(value):
    message = message_of({"loss_scale": value})
    assert message.startswith("loss_scale: ") and "Its keys are enable, min_loss_scale" in message


def test_a_config_is_returned_as_it_is():
    config = load_config({"amp": True})
    assert load_config(config) is config


def test_round_trips():
    for given in ({}, EVERY_KEY, {"amp": True, "memory": {"budget": "14GiB"}}):
        config = load_config(given)
        assert load_config(config.as_dict()) == config
        assert load_config(json.loads(json.dumps(config.as_dict()))) == config
        assert load_config(yaml.safe_load(yaml.safe_dump(config.as_dict()))) == config
        assert load_config(config.as_dict(only_given=True)) == config
        for again in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
            assert again == config and again.notes() == config.notes()


def test_only_given_is_what_the_user_wrote():
    given = {"amp": {"level": "O2"}, "memory": {"budget": "1GiB"}}
    assert load_config(given).as_dict(only_given=True) == {"amp": {"level": "O2"}, "memory": {"budget": 2**30}}


def test_nothing_can_be_changed_afterwards():
    config = load_config(EVERY_KEY)
    with pytest.raises(ValidationError):
        config.amp = AmpConfig()  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.amp.level = "O1"  # type: ignore[misc]
    hash(config)


def test_the_given_mapping_is_left_alone():
    given = {"recompute": {"layers": ["a", "b"]}, "amp": True}
    before = copy.deepcopy(given)
    load_config(given)
    assert given == before


def test_sections_and_configs_built_directly_raise_config_errors_too():
    with pytest.raises(ConfigError, match=r"amp\.level: 'O3'"):
        AmpConfig(level="O3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"gradient_accumulation is on, but neither"):
        AccumulationConfig()
    with pytest.raises(ConfigError, match=r"Did you mean amp\.level"):
        MemoryConfig(amp={"levle": "O1"})  # type: ignore[arg-type]
    assert MemoryConfig(amp=AmpConfig(level="O2")).amp.level == "O2"


def test_the_public_names():
    assert pm.load_config is load_config and pm.ConfigError is ConfigError and pm.MemoryConfig is MemoryConfig


def test_paddle_is_not_imported():
    code = "import sys, paddle_memcallbacks as pm; pm.load_config({}); sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


class Raising(Mapping):  # type: ignore[type-arg]
    def __getitem__(self, key):
        raise OSError("no")

    def __iter__(self):
        raise OSError("no")

    def __len__(self):
        raise OSError("no")


def test_foreign_mappings_that_raise():
    assert "its keys cannot be read" in message_of(Raising())
    assert message_of({"amp": Raising()}).startswith("amp: its keys cannot be read")
    assert message_of({"amp": {"level": Raising()}}).startswith("amp.level: an object of type Raising cannot be used")


@pytest.mark.parametrize("source", [3, 2.5, True, [], ["amp"], b"mem.yml", {"amp"}, object(), np.float32(1)])
def test_what_is_no_source(source):
    assert "Give a file's path or a mapping of sections." in message_of(source)
