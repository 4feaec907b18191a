"""Our keys for PaddleNLP's PdArgumentParser: flat on the command line, nested in a JSON or YAML file."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, Optional, get_args

from paddlenlp.trainer import PdArgumentParser, TrainingArguments

from paddle_memcallbacks.config import SECTIONS, MemoryConfig, flat_names, from_flat, load_config, read_mapping

_NATIVE = {field.name for field in dataclasses.fields(TrainingArguments)}


def _to_config(self: Any) -> MemoryConfig:
    """The checked config of the arguments that were given.

    Raises:
        ConfigError: a value is wrong, or two contradict each other.
    """
    given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return load_config(from_flat({name: value for name, value in given.items() if value is not None}))


def _fields() -> list[tuple[str, Any, Any]]:
    """A field for each key that the Trainer's arguments do not have already; those are read from there."""
    fields = []
    for flat, (section, key) in flat_names().items():
        if flat in _NATIVE:
            continue
        section_type: Any = MemoryConfig.model_fields[section].annotation
        info = section_type.model_fields[key]
        help_text = (info.description or "").replace("%", "%%")
        field: Any = dataclasses.field(default=None, metadata={"help": help_text})
        # PdArgumentParser knows Optional[X] only in this spelling
        fields.append((flat, Optional[_command_line_type(info.annotation)], field))  # noqa: UP045
    return fields


def _command_line_type(annotation: Any) -> Any:
    """A list where the key takes names, else text: the config's own parsing knows sizes, counts and words."""
    text = str(annotation)
    return list[str] if "tuple[str" in text or any("tuple" in str(part) for part in get_args(annotation)) else str


MemoryArguments = dataclasses.make_dataclass(
    "MemoryArguments",
    _fields(),
    namespace={"to_config": _to_config, "__doc__": "Our keys as command-line arguments: ``--<section>_<key>``."},
)


class MemoryArgumentParser(PdArgumentParser):
    """PdArgumentParser that reads our keys nested in a JSON or YAML file, takes no abbreviations, and fails on typos.

    ``MemoryArgumentParser((ModelArguments, TrainingArguments, MemoryArguments))``; then as PdArgumentParser.
    """

    def __init__(self, dataclass_types: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(dataclass_types, **kwargs)

    def read_json(self, json_file: str) -> list[str]:
        """A JSON or YAML file as command-line words; our sections may be nested or dotted.

        Raises:
            ConfigError: a nested key is unknown, with the nearest valid one.
        """
        return _as_words(_flatten(read_mapping(json_file)[1]))

    def parse_json_file_and_cmd_lines(self, return_remaining_strings: bool = False) -> Any:
        """The file that the first word names, then the command line, which goes before it."""
        words = self.read_json(sys.argv[1]) + [_dots_to_underscores(word) for word in sys.argv[2:]]
        return self.common_parse(words, return_remaining_strings)

    def parse_args_into_dataclasses(self, args: Any = None, *more: Any, **kwargs: Any) -> Any:
        """As PdArgumentParser; ``--recompute.layers`` is ``--recompute_layers``."""
        words = sys.argv[1:] if args is None else args
        return super().parse_args_into_dataclasses([_dots_to_underscores(word) for word in words], *more, **kwargs)

    def parse_dict(self, args: Mapping[str, Any]) -> Any:
        """A mapping, nested or flat.

        Raises:
            ValueError: a name that no dataclass has.
        """
        return self.common_parse(_as_words(_flatten(dict(args))), False)


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    load_config({name: value for name, value in values.items() if name in SECTIONS and isinstance(value, Mapping)})
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name in SECTIONS and isinstance(value, Mapping):
            flat.update({f"{name}_{key}": inner for key, inner in value.items()})
        elif name in SECTIONS and name not in _NATIVE:
            flat[f"{name}_enable"] = value
        else:
            flat[name.replace(".", "_") if name.split(".")[0] in SECTIONS else name] = value
    return flat


def _as_words(flat: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in flat.items():
        if value is None or value == []:
            continue
        items = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(item).lower() if isinstance(item, bool) else str(item) for item in items)]
    return words


def _dots_to_underscores(word: str) -> str:
    name, equals, value = word.partition("=")
    if not name.startswith("--") or name[2:].split(".")[0] not in SECTIONS:
        return word
    return name.replace(".", "_") + equals + value
