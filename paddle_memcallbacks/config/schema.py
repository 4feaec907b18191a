"""The keys as JSON Schema, for editors."""

from __future__ import annotations

from typing import Any

from paddle_memcallbacks.config.section import SECTION_TYPES, Section, kind_of


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a config file: what an editor may offer.

    The loader accepts more spellings (a number as a string) and refuses contradictions between keys.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "paddle_memcallbacks config",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _section_schema(section) for name, section in SECTION_TYPES.items()},
    }


def _section_schema(section: type[Section]) -> dict[str, Any]:
    properties = {}
    for key, field in section.model_fields.items():
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        properties[key] = {**kind_of(section, key).schema, "description": field.description, "default": default}
        if field.examples:
            properties[key]["examples"] = list(field.examples)
    mapping = {"type": "object", "additionalProperties": False, "properties": properties}
    return {
        "description": (section.__doc__ or "").strip(),
        "default": section.ON_WHEN_ABSENT,
        "anyOf": [{"type": "boolean"}, mapping],
    }
