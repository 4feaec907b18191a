"""A validator for the part of JSON Schema that the config's schema uses; unknown keywords are an error."""

from __future__ import annotations

import re
from typing import Any

_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_NOTES = {"$schema", "title", "description", "default", "examples"}
_RULES = {
    "type": lambda value, type_: (
        isinstance(value, _TYPES[type_]) and (type_ == "boolean" or not isinstance(value, bool))
    ),
    "enum": lambda value, words: value in words,
    "const": lambda value, word: value == word,
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "minLength": lambda value, length: len(value) >= length,
    "minItems": lambda value, length: len(value) >= length,
    "items": lambda value, schema: all(valid(item, schema) for item in value),
    "anyOf": lambda value, schemas: any(valid(value, schema) for schema in schemas),
    "properties": lambda value, schemas: all(
        valid(item, schemas[key]) for key, item in value.items() if key in schemas
    ),
}


def valid(value: Any, schema: dict[str, Any]) -> bool:
    """Whether the value fits; a keyword of another type counts only after `type` has held."""
    if "type" in schema and not _RULES["type"](value, schema["type"]):
        return False
    if schema.get("additionalProperties") is False and set(value) - set(schema["properties"]):
        return False
    return all(
        _RULES[keyword](value, argument)
        for keyword, argument in schema.items()
        if keyword not in _NOTES and keyword not in ("type", "additionalProperties")
    )
