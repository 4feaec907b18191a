"""What a config error says: the key's full path, the value given, what is allowed, and how to mend it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST_TEXT = 60
_MOST_ITEMS = 3
# Python refuses to print integers above 4300 digits; no useful number comes near
_LONGEST_INT_BITS = 128


@dataclass(frozen=True)
class Complaint:
    """One fault of a config.

    Attributes:
        key: full path of the key, e.g. ``gradient_accumulation.steps``; empty for the config as a whole.
        text: the whole complaint in English, starting with the key.
        concerns: every key that it is about; a follow-up complaint about a faulty key is left out.
    """

    key: str
    text: str
    concerns: tuple[str, ...] = ()


class ConfigError(ValueError):
    """A config that cannot be used; the message holds every fault found.

    Attributes:
        complaints: the faults, one each.
        source: the file's name, or empty.
    """

    def __init__(self, complaints: Sequence[Complaint] | str, source: str = "") -> None:
        if isinstance(complaints, str):
            complaints = (Complaint("", complaints),)
        self.complaints = tuple(complaints)
        self.source = source
        super().__init__(_message(self.complaints, source))


def _message(complaints: Sequence[Complaint], source: str) -> str:
    if len(complaints) == 1:
        return f"{source}: {complaints[0].text}" if source else complaints[0].text
    place = f" in {source}" if source else " in the config"
    return "\n".join([f"{len(complaints)} faults{place}:", *(f"  - {complaint.text}" for complaint in complaints)])


def describe(value: Any) -> str:
    """A value as a short text that is safe to print, whatever the value: cut, escaped, never recursing."""
    try:
        return _describe(value)
    except Exception:  # a value's own len() or repr() may raise anything
        return f"an object of type {type(value).__name__}"


def quoted(text: str, longest: int = _LONGEST_TEXT) -> str:
    """The text in quotes, what cannot be printed escaped, cut after `longest` characters."""
    return repr(text) if len(text) <= longest else f"{text[:longest]!r}... ({len(text)} characters)"


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        if value.bit_length() > _LONGEST_INT_BITS:
            return f"a whole number of about {round(value.bit_length() * 0.30103)} digits"
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} {'key' if len(value) == 1 else 'keys'}" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return _describe_list(value)
    return f"an object of type {type(value).__name__}"


def _describe_list(values: Sequence[Any]) -> str:
    if any(isinstance(value, (list, tuple, Mapping)) for value in values[:_MOST_ITEMS]):
        return f"a nested list of {len(values)} {'value' if len(values) == 1 else 'values'}"
    shown = ", ".join(describe(value) for value in values[:_MOST_ITEMS])
    return f"[{shown}, ...] ({len(values)} values)" if len(values) > _MOST_ITEMS else f"[{shown}]"
