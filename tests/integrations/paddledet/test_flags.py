"""Command-line flags: what nobody gave leaves the YAML file alone, and no override is lost."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from .conftest import ROOT, load_file

flags = load_file(ROOT / "integrations" / "paddledet" / "flags.py")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("-c", "--config")
    made.add_argument("-o", "--opt", nargs="*")
    made.add_argument("-r", "--resume", default=None)
    made.add_argument("--amp", action="store_true")
    made.add_argument("--use_vdl", type=bool, default=False)
    made.add_argument("--vdl_log_dir", default="vdl_log_dir/scalar")
    return made


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], set()),
        (["--amp"], {"amp"}),
        (["--use_vdl", "True"], {"use_vdl"}),
        (["--use_vdl=True", "-r", "output/3"], {"use_vdl", "resume"}),
        (["--vdl", "logs", "-o", "amp=true", "epoch=3"], {"vdl_log_dir"}),
    ],
)
def test_flags_that_were_given(words: list[str], given: set[str]) -> None:
    command_line = ["-c", "cfg.yml", *words]
    assert flags.given_by_parser(parser(), command_line) - {"config", "opt"} == given
    names = ["config", "opt", "resume", "amp", "use_vdl", "vdl_log_dir"]
    assert flags.given_by_words(names, command_line) - {"config", "opt"} == given, (
        "also where the parser is out of reach"
    )


def merged(yaml: dict[str, Any], *words: str) -> dict[str, Any]:
    args = parser().parse_args(["-c", "cfg.yml", *words])
    return flags.merge(dict(yaml), args, flags.given_by_parser(parser(), ["-c", "cfg.yml", *words]))


def test_yaml_is_only_overridden_by_a_flag_that_was_given() -> None:
    yaml = {"amp": {"level": "O2"}, "use_vdl": True, "vdl_log_dir": "here"}
    assert merged(yaml) == yaml | {"resume": None}
    assert merged(yaml, "--use_vdl", "") == yaml | {"resume": None, "use_vdl": False}
    assert merged(yaml, "--vdl_log_dir", "there")["vdl_log_dir"] == "there"
    assert merged({"amp": {"level": "O2", "enable": False}}, "--amp")["amp"] == {"level": "O2", "enable": True}
    assert merged({}) == {"resume": None, "amp": False, "use_vdl": False, "vdl_log_dir": "vdl_log_dir/scalar"}


def test_overrides_are_all_kept() -> None:
    words = ["X.a.b=1", "X.a.c=2", "amp.level=O2", "amp.enable=false", "recompute.layers=[backbone.*, neck]", "epoch=3"]
    assert flags.overrides(words) == {
        "X": {"a": {"b": 1, "c": 2}},
        "amp": {"level": "O2", "enable": False},
        "recompute": {"layers": ["backbone.*", "neck"]},
        "epoch": 3,
    }
    assert flags.overrides(["amp=true", "amp.level=O2"]) == {"amp": {"enable": True, "level": "O2"}}
    assert flags.overrides(["amp.level=O2", "amp=true"]) == {"amp": {"enable": True, "level": "O2"}}
    with pytest.raises(ValueError, match="write it as key=value"):
        flags.overrides(["amp.level"])


def test_late_arrival_mends_the_overrides_and_the_merge() -> None:
    """A `plugins:` line is read after the flags were parsed by the stock parser, which has lost X.a.b by then."""
    words = ["-c", "cfg.yml", "-o", "X.a.b=1", "X.a.c=2", "amp.level=O2"]
    args = parser().parse_args(words)
    args.opt = {"X": {"a": {"c": 2}}, "amp": {"level": "O2"}}
    merge_args = flags.careful_merge(lambda config, args: config, lambda: words)
    assert merge_args({"use_vdl": True}, args)["use_vdl"] is True
    assert args.opt == {"X": {"a": {"b": 1, "c": 2}}, "amp": {"level": "O2"}}


def test_flags_parsed_elsewhere_are_not_mistaken_for_the_processes_own() -> None:
    args = parser().parse_args(["-c", "cfg.yml", "-o", "epoch=3"])
    args.opt = {"epoch": 3}
    flags.careful_merge(lambda config, args: config, lambda: ["-o", "other=1"])({}, args)
    assert args.opt == {"epoch": 3}
