"""What all sections share: they are checked key by key, and every fault is reported at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from paddle_memcallbacks.config import kinds
from paddle_memcallbacks.config.errors import Complaint, ConfigError, describe
from paddle_memcallbacks.config.names import unknown_key
from paddle_memcallbacks.config.values import BadValue

Check = Callable[[Mapping[str, Any]], list[Complaint]]

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

    enable: Annotated[bool, kinds.flag()] = Field(True, description="false turns the section off.", examples=[False])

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


def checked_keys(section: type[Section], given: Mapping[Any, Any]) -> tuple[dict[str, Any], list[Complaint]]:
    """The section's values parsed, and every fault in them: unknown keys, values, contradictions."""
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
    faulty = {key for complaint in complaints for key in complaint.concerns}
    # a contradiction with a key that is faulty itself would only mislead
    complaints += [
        complaint for complaint in section.contradictions(values) if not faulty.intersection(complaint.concerns)
    ]
    if complaints and values.get("enable") is False:
        text = f"({section.NAME}.enable is false, but the keys of a section that is off are checked too.)"
        complaints[-1] = Complaint(complaints[-1].key, f"{complaints[-1].text} {text}", complaints[-1].concerns)
    return values, complaints


def checked_section(name: str, given: Any) -> tuple[Section | None, list[Complaint]]:
    """A section from what stands under its name: a mapping, a bare bool, or the section itself."""
    section = SECTION_TYPES[name]
    if isinstance(given, section):
        return given, []
    if isinstance(given, Mapping):
        try:
            given = dict(given.items())
        except Exception as error:  # a foreign mapping may raise anything
            return None, [Complaint(name, f"{name}: its keys cannot be read: {error!r}.", (name,))]
        values, complaints = checked_keys(section, given)
        return (None if complaints else section(**values)), complaints
    try:
        return _switched(section, kinds.flag()(given)), []
    except BadValue:
        return None, [_bad_section(section, given)]
    except ConfigError as error:
        return None, list(error.complaints)


def _switched(section: type[Section], on: bool) -> Section:
    return section(enable=on)


def _bad_value(section: type[Section], key: str, value: Any, hint: str) -> Complaint:
    path = f"{section.NAME}.{key}"
    field, kind = section.model_fields[key], kind_of(section, key)
    if not hint:
        example = field.examples[0] if field.examples else field.default
        hint = f"Write for example '{key}: {_as_written(example)}'."
    return Complaint(path, f"{path}: {describe(value)} cannot be used. Allowed: {kind.allowed}. {hint}", (path,))


def _bad_section(section: type[Section], given: Any) -> Complaint:
    name = section.NAME
    text = f"{name}: {describe(given)} cannot be used. Allowed: a mapping of keys, true or false."
    if given is None:
        text = f"{name}: nothing stands under it, which says neither on nor off."
        return Complaint(name, f"{text} Write '{name}: true', '{name}: false' or the section's keys.", (name,))
    for key in section.MAIN_KEYS:
        try:
            kind_of(section, key)(given)
        except BadValue:
            continue
        return Complaint(name, f"{text} Did you mean '{name}: {{{key}: {_as_written(given)}}}'?", (name,))
    keys = ", ".join(section.model_fields)
    return Complaint(name, f"{text} Its keys are {keys}.", (name,))


def _as_written(value: Any) -> str:
    text = describe(value)
    return text.strip("'") if isinstance(value, str) else text
