"""A key's kind: how its value is read, what is allowed in words, and the same as JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import core_schema

from paddle_memcallbacks.config import sizes
from paddle_memcallbacks.config.values import (
    LARGEST_WHOLE,
    BadValue,
    as_choice,
    as_flag,
    as_names,
    as_path,
    as_real,
    as_whole,
    is_null,
    unwrapped,
)


@dataclass(frozen=True)
class Kind:
    """Stands in the annotation of a field; pydantic then reads the field by `parse` alone.

    Attributes:
        parse: value -> the value kept; raises BadValue.
        allowed: what may be given, in words that follow "Allowed:".
        schema: JSON Schema of what may be given.
    """

    parse: Callable[[Any], Any]
    allowed: str
    schema: dict[str, Any]

    def __call__(self, value: Any) -> Any:
        try:
            return self.parse(value)
        except BadValue:
            raise
        except Exception as error:  # numbers and strings of foreign types may raise anything when they are asked
            raise BadValue("") from error

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return dict(self.schema)


def flag() -> Kind:
    """true or false."""
    return Kind(as_flag, "true or false", {"type": "boolean"})


def choice(*words: str) -> Kind:
    """One of the words."""
    return Kind(lambda value: as_choice(value, words), " or ".join(words), {"enum": list(words)})


def whole() -> Kind:
    """A whole number from 1."""
    schema = {"type": "integer", "minimum": 1, "maximum": LARGEST_WHOLE}
    return Kind(as_whole, f"a whole number from 1 to {LARGEST_WHOLE}", schema)


def real(
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    percent: bool = False,
) -> Kind:
    """A number between bounds; `above` and `below` leave the bound itself out."""
    low = f"above {above:g}" if above is not None else f"at least {least:g}"
    high = f"below {below:g}" if below is not None else f"at most {most:g}"
    bounds = {"exclusiveMinimum": above, "minimum": least, "exclusiveMaximum": below, "maximum": most}

    def fits(number: float) -> bool:
        return not (
            (above is not None and number <= above)
            or (least is not None and number < least)
            or (below is not None and number >= below)
            or (most is not None and number > most)
        )

    def parse(value: Any) -> float:
        if percent and isinstance(value, str) and value.strip().endswith("%"):
            raise BadValue(f"Did you mean {as_real(value.strip()[:-1]) / 100:g}?")
        number = as_real(value)
        if fits(number):
            return number
        raise BadValue(f"Did you mean {number / 100:g}?" if percent and fits(number / 100) and number > 0 else "")

    schema = {"type": "number", **{name: bound for name, bound in bounds.items() if bound is not None}}
    return Kind(parse, f"a number {low} and {high}", schema)


def size() -> Kind:
    """A size in bytes."""
    units = sorted(sizes.UNITS, key=len, reverse=True)
    pattern = r"^\s*[0-9._]+([eE][-+]?[0-9]+)?\s*(" + "|".join(_any_case(unit) for unit in units) + r")?\s*$"
    number = {"type": "number", "minimum": sizes.SMALLEST_BYTES, "maximum": sizes.LARGEST_BYTES}
    return Kind(sizes.size_bytes, sizes.ALLOWED, {"anyOf": [number, {"type": "string", "pattern": pattern}]})


_NAME = {"type": "string", "pattern": r"^\S+$"}


def names(what: str) -> Kind:
    """A list of names, which may be empty."""
    schema = {"anyOf": [{"type": "array", "items": _NAME}, {"type": "string", "pattern": r"^\S*$"}]}
    return Kind(as_names, f"a list of {what}", schema)


def names_or_auto(what: str) -> Kind:
    """A list of names that is not empty, or auto."""

    def parse(value: Any) -> Any:
        found = as_names(value)
        if not found:
            raise BadValue("The list is empty; set enable: false to turn the section off.")
        # argparse delivers a lone word as a list of one where a key takes a list
        return "auto" if [name.lower() for name in found] == ["auto"] else found

    schema = {"anyOf": [{"const": "auto"}, {"type": "array", "items": _NAME, "minItems": 1}, _NAME]}
    return Kind(parse, f"a list of {what}; or auto", schema)


def path() -> Kind:
    """A path."""
    return Kind(as_path, "a path", {"type": "string", "minLength": 1})


def or_word(word: str, kind: Kind) -> Kind:
    """The word, or else the kind."""

    def parse(value: Any) -> Any:
        bare = unwrapped(value)
        return word if isinstance(bare, str) and bare.strip().lower() == word else kind(value)

    return Kind(parse, f"{kind.allowed}; or {word}", _any_of({"const": word}, kind.schema))


def or_null(kind: Kind) -> Kind:
    """null (the key counts as not set), or else the kind."""
    return Kind(
        lambda value: None if is_null(value) else kind(value),
        f"{kind.allowed}; or null",
        _any_of(kind.schema, {"type": "null"}),
    )


def _any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    flat: Sequence[Any] = [part for schema in schemas for part in schema.get("anyOf", [schema])]
    return {"anyOf": list(flat)}


def _any_case(word: str) -> str:
    return "".join(f"[{letter.upper()}{letter}]" for letter in word)
