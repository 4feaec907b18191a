"""Reading config files: safe YAML or JSON. Whatever is in a file, the answer is a mapping or a ConfigError."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from paddle_memcallbacks.config.errors import ConfigError, describe, quoted
from paddle_memcallbacks.config.names import nearest_key
from paddle_memcallbacks.config.yaml_text import parse_yaml

LARGEST_FILE_BYTES = 2**20
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SUFFIXES = (".yml", ".yaml", ".json")


def read_mapping(source: str | os.PathLike[str]) -> tuple[str, dict[Any, Any]]:
    """The file's name for messages, and the mapping that it holds; an empty file holds an empty one.

    Raises:
        ConfigError: no such file (with the nearest name), not readable, not text, too large, not YAML or JSON (with
            line and column), a key given twice, or no mapping at the top.
    """
    path = Path(_path_text(source))
    text = _decoded(path, _read(path))
    content = _parsed(path, text)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{_name(path)} holds {describe(content)}. Allowed: a mapping of sections, as 'amp: true'.")
    return _name(path), content


def _path_text(source: str | os.PathLike[str]) -> str:
    try:
        text = os.fspath(source)
    except Exception as error:  # a foreign path object may raise anything
        raise ConfigError(f"{describe(source)} is no path of a file.") from error
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{describe(text)} is no path of a file.")
    return os.path.expanduser(text)


def _shown(path: Path) -> str:
    return quoted(str(path), longest=300)


def _name(path: Path) -> str:
    return path.name if path.name.isprintable() else quoted(path.name)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(_missing(path)) from None
    except IsADirectoryError:
        raise ConfigError(f"{_shown(path)} is a folder.{_config_files(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name cannot be a file's"
        raise ConfigError(f"{_shown(path)} cannot be read: {reason}.") from error
    if len(content) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{_name(path)} is larger than {LARGEST_FILE_BYTES} bytes: it is no config file.")
    return content


def _missing(path: Path) -> str:
    folder = path.parent
    text = f"there is no file {_shown(path)}."
    if not folder.is_dir():
        return f"{text} The folder {_shown(folder)} does not exist."
    if any(sign in path.name for sign in ":{\n"):
        return f"{text} A config's text is not read, only a file or a mapping."
    # by the stem: any two names that end in .yml are alike
    stems = {Path(name).stem: name for name in [*_names(folder), *_names(folder, _SUFFIXES)]}
    nearest = nearest_key(path.stem, stems)
    if nearest is not None:
        return f"{text} Did you mean {_shown(folder / stems[nearest])}?"
    return f"{text}{_config_files(folder)}"


def _config_files(folder: Path) -> str:
    names = _names(folder, _SUFFIXES)
    return f" Config files in it: {', '.join(map(describe, names[:5]))}." if names else " It holds no config file."


def _names(folder: Path, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder)[:1000] if name.endswith(suffixes) and name.isprintable())
    except OSError:
        return []


def _decoded(path: Path, content: bytes) -> str:
    encoding, name = ("utf-16", "UTF-16") if content[:2] in _UTF16_MARKS else ("utf-8-sig", "UTF-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_name(path)} is not text: byte {error.start} is not {name}.") from error
    if "\0" in text:
        raise ConfigError(f"{_name(path)} is not text: it holds a zero byte.")
    return text


def _parsed(path: Path, text: str) -> Any:
    try:
        return _parse_json(text) if path.suffix.lower() == ".json" else parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{_name(path)}: {error}") from error
    except RecursionError:
        raise ConfigError(f"{_name(path)} is nested too deeply.") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        hint = " JSON has no comments; a .yml file has." if error.doc[error.pos : error.pos + 1] in ("#", "/") else ""
        raise ConfigError(f"{_name(path)} is not JSON: {place}: {error.msg}.{hint}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{_name(path)} is not YAML: {_yaml_fault(error)}") from error
    except ValueError as error:  # Python refuses to read numbers of more than 4300 digits
        raise ConfigError(f"{_name(path)} holds a number that is too long.") from error


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique) if text.strip() else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the key {describe(twice)} is given twice. Remove one of them.")
    return mapping


def _yaml_fault(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    if mark is None and isinstance(getattr(error, "position", None), int):
        place = f"character {error.position + 1}: "  # type: ignore[attr-defined]
    return f"{place}{problem}.{_yaml_hint(error, problem)}"


def _yaml_hint(error: yaml.YAMLError, problem: str) -> str:
    if "'\\t'" in problem:
        return " Indent with blanks, not with tabs."
    if "<block end>" in problem:
        return " The line is indented unlike the ones above it."
    if "alias" in f"{problem} {getattr(error, 'context', '')}":
        return ' A pattern that begins with * needs quotes: "*.layers".'
    return ""
