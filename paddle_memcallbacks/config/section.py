"""What all sections share: they are checked key by key, and every fault is reported at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from paddle_memcallbacks.config import kinds
from paddle_memcallbacks.config.errors import Complaint, ConfigError, describe
from paddle_memcallbacks.config.names import unknown_key
from paddle_memcallbacks.config.values import BadValue

# section name -> its class, in the order in which they are written; filled by the classes themselves
SECTION_TYPES: dict[str, type[Section]] = {}


class Section(BaseModel):
    """A section of the config. Built with faulty values it raises ConfigError, never pydantic's own error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    NAME: ClassVar[str] = ""
    # keys that a bare value given for the section may have been meant for
    MAIN_KEYS: ClassVar[tuple[str, ...]] = ()
    # what a section that is not written at all stands for
    ON_WHEN_ABSENT: ClassVar[bool] = True

    enable: Annotated[bool, kinds.flag()] = Field(True, description="false turns the section off.")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        SECTION_TYPES[cls.NAME] = cls

    def __init__(self, **data: Any) -> None:
        values, complaints = checked_keys(type(self), data)
        if complaints:
            raise ConfigError(complaints)
        super().__init__(**values)

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> list[Complaint]:
        """Keys of this section that exclude each other; `values` holds the given keys, parsed."""
        return []


def keys_by_section() -> dict[str, tuple[str, ...]]:
    """Section name -> its keys."""
    return {name: tuple(section.model_fields) for name, section in SECTION_TYPES.items()}


def kind_of(section: type[Section], key: str) -> kinds.Kind:
    """The rule that a key's value is read by."""
    return next(rule for rule in section.model_fields[key].metadata if isinstance(rule, kinds.Kind))


def plain_items(mapping: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    """The mapping as a dict; a foreign mapping may raise anything when it is asked, which becomes a ConfigError."""
    try:
        return dict(mapping.items())
    except Exception as error:
        text = f"{name}: its keys cannot be read ({type(error).__name__})."
        raise ConfigError([Complaint(name, text, (name,))]) from error


def checked_keys(section: type[Section], given: Mapping[Any, Any]) -> tuple[dict[str, Any], list[Complaint]]:
    """The section's sound values parsed, and every fault: unknown keys, values, contradictions."""
    values: dict[str, Any] = {}
    complaints: list[Complaint] = []
    for key, value in given.items():
        if not isinstance(key, str) or key not in section.model_fields:
            complaints.append(unknown_key(key, keys_by_section(), section.NAME))
            continue
        try:
            values[key] = kind_of(section, key)(value)
        except BadValue as bad:
            complaints.append(_bad_value(section, key, value, str(bad)))
    complaints += unrelated(section.contradictions(values), complaints)
    if complaints and values.get("enable") is False:
        last = complaints.pop()
        text = f"{last.text} ({section.NAME} is off, but the keys of a section that is off are checked too.)"
        complaints.append(Complaint(last.key, text, last.concerns))
    return values, complaints


def unrelated(found: list[Complaint], earlier: list[Complaint]) -> list[Complaint]:
    """Those complaints that are about no key that an earlier one is about already: they would only mislead."""
    faulty = {key for complaint in earlier for key in complaint.concerns}
    faulty |= {key for complaint in found for key in complaint.concerns if key.partition(".")[0] in faulty}
    return [complaint for complaint in found if not faulty.intersection(complaint.concerns)]


def checked_section(name: str, given: Any) -> tuple[Section | None, list[Complaint]]:
    """A section from what stands under its name: a mapping, a bare bool, or the section itself.

    With complaints it holds the sound values only, for checks against other sections.
    """
    section = SECTION_TYPES[name]
    if isinstance(given, section):
        return given, []
    try:
        values, complaints = checked_keys(section, _items_of(section, given))
    except ConfigError as error:
        return None, list(error.complaints)
    return section.model_construct(**values), complaints


def _items_of(section: type[Section], given: Any) -> dict[Any, Any]:
    if isinstance(given, Mapping):
        return plain_items(given, section.NAME)
    try:
        return {"enable": kinds.flag()(given)}
    except BadValue:
        raise ConfigError([_bad_section(section, given)]) from None


def _bad_value(section: type[Section], key: str, value: Any, hint: str) -> Complaint:
    path = f"{section.NAME}.{key}"
    field, kind = section.model_fields[key], kind_of(section, key)
    if not hint:
        example = field.examples[0] if field.examples else field.default
        hint = f"Write for example '{key}: {as_written(example)}'."
        if value is None:
            hint = f"Leave the key out for its default, {as_written(field.default)}."
    return Complaint(path, f"{path}: {describe(value)} cannot be used. Allowed: {kind.allowed}. {hint}", (path,))


def _bad_section(section: type[Section], given: Any) -> Complaint:
    name = section.NAME
    if given is None:
        text = f"{name}: nothing stands under it, which says neither on nor off."
        return Complaint(name, f"{text} Write '{name}: true', '{name}: false' or keys under it.", (name,))
    text = f"{name}: {describe(given)} cannot be used. Allowed: true, false, or a mapping of keys."
    for key in section.MAIN_KEYS:
        try:
            kind_of(section, key)(given)
        except BadValue:
            continue
        return Complaint(name, f"{text} Did you mean '{name}: {{{key}: {as_written(given)}}}'?", (name,))
    return Complaint(name, f"{text} Its keys are {', '.join(section.model_fields)}.", (name,))


def as_written(value: Any) -> str:
    """A value as it is written in YAML."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_written, value))}]" if len(value) < 4 else "[...]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.1f}"
    if not isinstance(value, str) or len(value) > 60:
        return describe(value)
    return (
        value if re.fullmatch(r"[\w./-]+", value, re.ASCII) else json.dumps(value, ensure_ascii=not value.isprintable())
    )
