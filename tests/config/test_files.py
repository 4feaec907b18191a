"""Config files: whatever is in one, the answer is a config or a ConfigError that says where the fault is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_memcallbacks.config import ConfigError, load_config, read_mapping
from paddle_memcallbacks.config.files import LARGEST_FILE_BYTES
from tests.config.helpers import EVERY_KEY, message_of


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="mem.yml"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write_file


def test_yaml_and_json_say_the_same(write):
    config = load_config(EVERY_KEY)
    assert load_config(write(yaml.safe_dump(EVERY_KEY))) == config
    assert load_config(str(write(yaml.safe_dump(EVERY_KEY), "mem.yaml"))) == config
    assert load_config(write(json.dumps(EVERY_KEY), "mem.json")) == config
    assert read_mapping(write(json.dumps(EVERY_KEY), "mem.json")) == ("mem.json", EVERY_KEY)


def test_what_yaml_1_1_reads_otherwise_than_people(write):
    config = load_config(
        write("memory: {budget: 1e9}\namp: {enable: on, level: O2}\nrecompute: {enable: off}\nvisualdl: no\n")
    )
    assert config.memory.budget == 10**9
    assert (config.amp.enable, config.amp.level) == (True, "O2")
    assert (config.recompute.enable, config.visualdl.enable) == (False, False)
    assert message_of(write("amp: {level: 01}")) == (
        "mem.yml: amp.level: 1 cannot be used. Allowed: O1 or O2. Did you mean O1?"
    )
    assert "YAML reads the words on, off, yes and no as booleans" in message_of(write("on: {level: O1}"))


def test_an_empty_file_is_the_default(write):
    for content in ("", "# nothing\n", "---\n", "{}"):
        assert load_config(write(content)) == load_config({})
        assert load_config(write("", "mem.json")) == load_config({})


def test_anchors_and_merges_work(write):
    config = load_config(write("memory: &a {interval: 7}\nvisualdl:\n  <<: *a\n  logdir: runs\n"))
    assert (config.visualdl.interval, config.visualdl.logdir) == (7, "runs")


def test_other_encodings(write):
    text = "visualdl: {logdir: 运行}\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert load_config(write(text.encode(encoding))).visualdl.logdir == "运行"
        json_text = json.dumps({"visualdl": {"logdir": "运行"}}, ensure_ascii=False)
        assert load_config(write(json_text.encode(encoding), "mem.json")).visualdl.logdir == "运行"


@pytest.mark.parametrize(
    "content, words",
    [
        ("amp:\n\tlevel: O1\n", "line 2, column 1: found character '\\t' that cannot start any token. Indent with"),
        ("amp:\n  level: O1\n dtype: x\n", "line 3, column 2: expected <block end>"),
        ("recompute: {layers: [*.x]}", 'A pattern that begins with * needs quotes: "*.layers".'),
        ("recompute: {layers: [*x]}", 'A pattern that begins with * needs quotes: "*.layers".'),
        ("amp: {", "line 1, column 7"),
        ("amp: true\n---\namp: true\n", "line 2, column 1: but found another document"),
        ("amp: !!python/object/apply:os.system [x]", "config files are data and not code"),
        ("amp: !!python/name:os.system", "config files are data and not code"),
        ("amp: !custom x", "config files are data and not code"),
        ("a: !!int ''", "line 1, column 4: the value cannot be read"),
        ("a: !!bool x", "the value cannot be read"),
        ("a: !!timestamp x", "the value cannot be read"),
        ("a: 2001-99-99", "the value cannot be read"),
        ("a: " + "1" * 5000, "the value cannot be read"),
        ("? [a]\n: b", "found unhashable key"),
        ("- amp", "mem.yml holds ['amp']. Allowed: a mapping of sections"),
        ("amp", "mem.yml holds 'amp'. Allowed: a mapping of sections"),
        ("3", "mem.yml holds 3."),
        ("amp: '\x07'", "special characters are not allowed"),
        (b"amp: \xff\xfe", "mem.yml is not text: byte 5 is not UTF-8."),
        (b"amp\x00: true", "mem.yml is not text: it holds a zero byte."),
        (b"\xff\xfea", "mem.yml is not text: byte 2 is not UTF-16."),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("#" * (LARGEST_FILE_BYTES + 1), "it is no config file"),
        ("a: &a [*a]", "a: there is no such key at the top level"),
        ("memory: &a {budget: *a}", "memory.budget: a mapping of 1 key cannot be used"),
        ("memory: &a\n  memory: *a\n", "memory.memory: there is no such key in the section memory"),
    ],
)
def test_faults_of_yaml(write, content, words):
    message = message_of(write(content))
    assert words in message and message.startswith("mem.yml")


@pytest.mark.parametrize(
    "content, words",
    [
        ('{"amp": true,}', "mem.json is not JSON: line 1, column 1"),
        ('{\n"amp": true, // x\n}', "line 2, column 14"),
        ('{"amp": true // x\n}', "JSON has no comments; a .yml file has."),
        ('{"amp": NaN}', "amp: nan cannot be used"),
        ('{"memory": {"budget": Infinity}}', "A size must be finite."),
        ('{"memory": {"budget": 1%s}}' % ("0" * 400), "more than any machine has"),
        ('{"memory": {"budget": 1%s}}' % ("0" * 5000), "a number that is too long"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "mem.json holds [1]."),
        ('{"amp": true, "amp": false}', "mem.json: the key 'amp' is given twice"),
        ('{"\\ud800": 1}', "'\\ud800': there is no such key"),
    ],
)
def test_faults_of_json(write, content, words):
    assert words in message_of(write(content, "mem.json"))


@pytest.mark.parametrize(
    "content, words",
    [
        ("amp: true\nmemory: false\namp: false\n", "amp is given twice in line 1 and in line 3"),
        ("amp: {level: O1, level: O2}", "amp.level is given twice in line 1."),
        ("recompute:\n  layers: [a]\n  every_n: 1\n  layers: [b]\n", "recompute.layers is given twice in line 2 and"),
        ("'amp': true\namp: true\n", "amp is given twice in line 1 and in line 2"),
        ("a: &a {x: 1}\nb: {<<: *a, <<: *a}\n", "'<<' is given twice"),
    ],
)
def test_a_key_given_twice(write, content, words):
    assert words in message_of(write(content))


def test_merges_cannot_grow_exponentially(write):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 30)]
    assert "<< takes one mapping, not a list" in message_of(write("\n".join(lines)))


def test_missing_files_are_answered_with_the_nearest(tmp_path, write):
    write("", "memory.yml")
    write("", "notes.txt")
    assert message_of(tmp_path / "memroy.yml").endswith(f"Did you mean {str(tmp_path / 'memory.yml')!r}?")
    assert message_of(tmp_path / "memory.yaml").endswith(f"Did you mean {str(tmp_path / 'memory.yml')!r}?")
    assert message_of(tmp_path / "zz.yml").endswith("Config files in it: 'memory.yml'.")
    assert message_of(tmp_path / "gone" / "memory.yml").endswith(f"{str(tmp_path / 'gone')!r} does not exist.")
    assert message_of(tmp_path / "memory.yml" / "x.yml").startswith("there is no file")
    assert message_of(tmp_path).startswith(f"{str(tmp_path)!r} is a folder. Config files in it: 'memory.yml'.")
    assert "A config's text is not read, only a file or a mapping." in message_of("amp: true")


@pytest.mark.parametrize("source", ["", " ", "a\0b", "\ud800", "x" * 5000, "~nobody-of-that-name/mem.yml", Path("\0")])
def test_names_that_no_file_can_have(source):
    message_of(source).encode("utf-8")


class BadPath(os.PathLike):  # type: ignore[type-arg]
    def __init__(self, answer):
        self.answer = answer

    def __fspath__(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [OSError("no"), b"mem.yml", None])
def test_path_objects_that_are_none(answer):
    assert "is no path of a file" in message_of(BadPath(answer))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(write):
    path = write("amp: true")
    path.chmod(0)
    assert message_of(path).endswith("cannot be read: Permission denied.")


def test_the_error_of_a_file_names_it(write):
    with pytest.raises(ConfigError) as caught:
        load_config(write("amp: {levle: O1}\nmemory: {budget: 14}\n"))
    assert caught.value.source == "mem.yml"
    assert str(caught.value).startswith("2 faults in mem.yml:\n  - amp.levle: ")
    assert message_of(write("stepz: 4")).startswith("mem.yml: stepz: ")


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text("amp:leO12{}[]&*<!|>-'\"\n\t #,?~", max_size=60).map(str.encode)))
def test_any_bytes_are_a_config_or_a_config_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yml"
    for name in ("any.yml", "any.json"):
        path = path.with_name(name)
        path.write_bytes(content)
        try:
            load_config(path)
        except ConfigError as error:
            assert str(error)
