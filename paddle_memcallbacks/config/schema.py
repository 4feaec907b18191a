"""The keys as JSON Schema, for editors."""

from __future__ import annotations

from typing import Any

from paddle_memcallbacks.config.section import SECTION_TYPES, Section, kind_of


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a config file."""
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
        properties[key] = {
            **kind_of(section, key).schema,
            "description": field.description,
            "default": list(field.default) if isinstance(field.default, tuple) else field.default,
        }
    mapping = {"type": "object", "additionalProperties": False, "properties": properties}
    return {"description": (section.__doc__ or "").strip(), "anyOf": [{"type": "boolean"}, mapping]}
