"""Command-line flags of PaddleDetection's tools: which were truly given, and several `-o` overrides of one section.

PaddleDetection's own `merge_args` writes every flag into the config, also the ones nobody gave, and so destroys a
YAML file's `amp:`, `use_vdl:`, `vdl_log_dir:`, `fleet:` and `to_static:`. Its `-o` loses all but the last of several
overrides that share their first two parts. Pure functions, but for the two wrappers at the end.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from paddle_memcallbacks.config import SECTIONS

_NOT_GIVEN = object()
_NOT_MERGED = ("config", "opt", "slim_config")

# the last parsed command line and the flags that it truly had
_parsed: tuple[argparse.Namespace, frozenset[str]] | None = None


def given_by_words(names: Sequence[str], words: Sequence[str]) -> frozenset[str]:
    """The flags among `names` that a command line's words mention; for command lines parsed before we were there.

    ``--use_vdl True``, ``--use_vdl=True`` and argparse's abbreviations (``--use_v``) count, and a short option for
    the flags that start with its letter.
    """
    long_words = [word[2:].split("=")[0] for word in words if word.startswith("--") and len(word) > 2]
    short_words = {word[1] for word in words if len(word) > 1 and word[0] == "-" and word[1].isalpha()} - {"c", "o"}
    return frozenset(
        name for name in names if any(name.startswith(word) for word in long_words) or name[0] in short_words
    )


def given_by_parser(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> frozenset[str]:
    """The flags that a command line gives: argparse fills in a default only where a value is missing."""
    marked = argparse.Namespace(**{action.dest: _NOT_GIVEN for action in parser._actions})
    argparse.ArgumentParser.parse_args(parser, words, marked)
    return frozenset(name for name, value in vars(marked).items() if value is not _NOT_GIVEN)


def overrides(words: Sequence[str]) -> dict[str, Any]:
    """`-o` overrides as a nested mapping: ``["amp.level=O2", "amp.enable=true"]`` keeps both.

    Values are read as YAML, as PaddleDetection reads them. A section's own value beside its keys stands for
    ``enable``: ``["amp=true", "amp.level=O2"]``.

    Raises:
        ValueError: a word without ``=``.
    """
    nested: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.strip().partition("=")
        if not equals:
            raise ValueError(f"-o {word}: write it as key=value")
        value = yaml.load(text, Loader=yaml.Loader)
        parts = name.split(".")
        place = nested
        for part in parts[:-1]:
            inner = place.get(part, {})
            if not isinstance(inner, dict):
                inner = {"enable": inner}
            place[part] = inner
            place = inner
        if isinstance(place.get(parts[-1]), dict) and not isinstance(value, dict):
            place[parts[-1]]["enable"] = value
        else:
            place[parts[-1]] = value
    return nested


def override_words(words: Sequence[str]) -> list[str]:
    """The words that follow the last `-o` or `--opt` of a command line."""
    found: list[str] = []
    collecting = False
    for word in words:
        if word.startswith("-"):
            collecting = word in ("-o", "--opt")
            found = [] if collecting else found
        elif collecting:
            found.append(word)
    return found


def merge(config: Any, args: argparse.Namespace, given: frozenset[str], excluded: Sequence[str] = _NOT_MERGED) -> Any:
    """`merge_args` as it should be: a flag nobody gave leaves the config alone, or fills in a missing key."""
    for name, value in vars(args).items():
        if name in excluded or (name in config and name not in given):
            continue
        if name in SECTIONS and isinstance(value, bool) and isinstance(config.get(name), dict):
            config[name]["enable"] = value
        else:
            config[name] = value
    return config


def remembering_parse(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `ArgsParser.parse_args`: remembers which flags were given."""

    @functools.wraps(original)
    def parse_args(self: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
        global _parsed
        args = original(self, argv)
        _parsed = (args, given_by_parser(self, argv))
        return args

    return parse_args


def careful_merge(original: Callable[..., Any], command_line: Callable[[], Sequence[str]]) -> Callable[..., Any]:
    """Wraps `merge_args`. `command_line` gives the words of the process where the flags were parsed before we came."""

    @functools.wraps(original)
    def merge_args(config: Any, args: argparse.Namespace, exclude_args: Sequence[str] = _NOT_MERGED) -> Any:
        if _parsed is not None and _parsed[0] is args:
            given = _parsed[1]
        else:
            words = command_line()
            given = given_by_words(list(vars(args)), words)
            _mend_overrides(args, override_words(words))
        return merge(config, args, given, exclude_args)

    return merge_args


def _mend_overrides(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Put back the overrides that the stock parser lost, in place: the script merges the same mapping later."""
    found = getattr(args, "opt", None)
    if not isinstance(found, dict) or not words:
        return
    mended = overrides(words)
    if set(mended) == set(found):
        found.clear()
        found.update(mended)
