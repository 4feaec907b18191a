"""Our keys through PaddleNLP's parser: flat, dotted, nested in JSON and YAML; typos fail."""

import json

import pytest

pytestmark = pytest.mark.paddlenlp


@pytest.fixture
def parser():
    from paddle_memcallbacks.integrations.paddlenlp import MemoryArgumentParser, MemoryArguments
    from paddlenlp.trainer import TrainingArguments

    return MemoryArgumentParser((TrainingArguments, MemoryArguments))


NESTED = {
    "output_dir": "out",
    "recompute": {"enable": True, "layers": ["ernie.encoder.layers.*"]},
    "gradient_accumulation": {"steps": 4},
    "memory": {"budget": "2GiB", "plan": None},
    "amp": {"custom_black_list": []},
}


def check(training, memory):
    config = memory.to_config()
    assert config.recompute.layers == ("ernie.encoder.layers.*",)
    assert config.memory.budget == 2**31
    assert training.gradient_accumulation_steps == 4
    assert not training.recompute


@pytest.mark.parametrize("suffix", ["json", "yml"])
def test_nested_in_a_file(parser, tmp_path, suffix):
    import yaml

    file = tmp_path / f"run.{suffix}"
    file.write_text(json.dumps(NESTED) if suffix == "json" else yaml.safe_dump(NESTED))
    check(*parser.parse_json_file(str(file)))


def test_nested_in_a_mapping(parser):
    check(*parser.parse_dict(NESTED))


def test_flat_and_dotted_on_the_command_line(parser):
    common = ["--output_dir", "out", "--gradient_accumulation_steps", "4"]
    flat = ["--recompute_layers", "ernie.encoder.layers.*", "--memory_budget", "2GiB"]
    check(*parser.parse_args_into_dataclasses([*common, *flat]))
    dotted = ["--recompute.layers", "ernie.encoder.layers.*", "--memory.budget=2GiB"]
    check(*parser.parse_args_into_dataclasses([*common, *dotted]))


def test_a_file_then_the_command_line(parser, tmp_path, monkeypatch):
    file = tmp_path / "run.yml"
    file.write_text(json.dumps(NESTED))
    monkeypatch.setattr("sys.argv", ["train.py", str(file), "--memory.budget", "3GiB"])
    _, memory = parser.parse_json_file_and_cmd_lines()
    assert memory.to_config().memory.budget == 3 * 2**30


def test_an_unknown_nested_key_names_the_nearest(parser):
    from paddle_memcallbacks import ConfigError

    with pytest.raises(ConfigError, match="recompute.layerz.*recompute.layers"):
        parser.parse_dict({"output_dir": "out", "recompute": {"layerz": ["a"]}})


def test_unknown_names_and_abbreviations_fail(parser):
    with pytest.raises(ValueError, match="--recomp"):
        parser.parse_dict({"output_dir": "out", "recomp": True})


def test_a_bare_bool_is_the_trainers_own_flag(parser):
    training, memory = parser.parse_dict({"output_dir": "out", "recompute": True, "amp": True})
    assert training.recompute
    assert memory.to_config().amp.enable


def test_auto_is_a_word(parser):
    _, memory = parser.parse_args_into_dataclasses(["--output_dir", "out", "--recompute_layers", "auto"])
    assert memory.to_config().recompute.layers == "auto"
