"""What each kind of key accepts: strings from command lines, numpy scalars, and nothing by accident."""

from __future__ import annotations

import decimal
import math
import numbers
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_memcallbacks.config.names import nearest_key

LARGEST_WHOLE = 2**31 - 1

_WHOLE = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_REAL = re.compile(r"[-+]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_TRUE = ("true", "on", "yes")
_FALSE = ("false", "off", "no")
_SHORT_NAMES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16"}
_NULL = ("none", "null", "~", "")


class BadValue(ValueError):
    """A value that a key does not accept; the text is a hint how to mend it, or empty."""


def unwrapped(value: Any) -> Any:
    """A numpy scalar (or an array of no axes) as the Python value it holds."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def as_number(value: Any) -> int | float:
    """A number, or a string that holds one ("4", "1e9", "1_000"); may be infinite or NaN."""
    value = unwrapped(value)
    if isinstance(value, bool):
        raise BadValue("true and false are not numbers.")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, (numbers.Real, decimal.Decimal)):
        return float(value)
    if isinstance(value, str):
        return _number_of_text(value.strip())
    raise BadValue("")


def _number_of_text(text: str) -> int | float:
    if len(text) > 400:
        raise BadValue("")
    if _WHOLE.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    if text.lower().lstrip("+-.") in ("nan", "inf", "infinity"):
        return float(text.lower().replace(".", ""))
    if "," in text and _REAL.fullmatch(text.replace(",", ".", 1)):
        raise BadValue(f"Write the decimal point as a point: {text.replace(',', '.', 1)}.")
    raise BadValue("")


def as_whole(value: Any, minimum: int = 1) -> int:
    """A whole number from `minimum` to 2**31 - 1; 4.0 and "4" count as 4, a boolean does not."""
    number = as_number(value)
    if isinstance(number, float):
        if not math.isfinite(number) or number != math.floor(number):
            raise BadValue("")
        number = int(number)
    if not minimum <= number <= LARGEST_WHOLE:
        raise BadValue("")
    return number


def as_real(value: Any) -> float:
    """A finite number."""
    number = float(as_number(value))
    if not math.isfinite(number):
        raise BadValue("The number must be finite.")
    return number


def as_flag(value: Any) -> bool:
    """True or false; strings as a command line or YAML 1.1 has them (on, off, yes, no) count too."""
    value = unwrapped(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE + _FALSE:
        return value.strip().lower() in _TRUE
    if isinstance(value, (int, float)) and value in (0, 1):
        raise BadValue(f"Did you mean {'true' if value else 'false'}?")
    raise BadValue("")


def as_choice(value: Any, choices: Sequence[str]) -> str:
    """One of the words."""
    value = unwrapped(value)
    if isinstance(value, str) and value.strip() in choices:
        return value.strip()
    meant = nearest_choice(value, choices)
    raise BadValue(f"Did you mean {meant}?" if meant else "")


def nearest_choice(value: Any, choices: Sequence[str]) -> str | None:
    """The word that was meant: fp16 for float16, or the number 1 (YAML reads `01` so) for O1."""
    text = str(value).strip() if isinstance(value, str) or type(value) is int else ""
    if re.fullmatch(r"[0o]?[1-9]", text, re.IGNORECASE | re.ASCII):
        return next((word for word in choices if word.endswith(text[-1]) and len(word) == 2), None)
    return nearest_key(_SHORT_NAMES.get(text.lower(), text), choices)


def as_names(value: Any) -> tuple[str, ...]:
    """Names as a list, or as one string with commas between them, in brackets or not ("a.*,b.*", "['a.*', 'b.*']")."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, str):
        text = value.strip().removeprefix("[").removesuffix("]")
        value = text.split(",") if text.strip() else []
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray, memoryview)):
        raise BadValue("")
    entries = [unwrapped(entry) for entry in value]
    if not all(isinstance(entry, str) for entry in entries):
        raise BadValue("Every entry must be a string.")
    # no name holds a comma, so a list of one command-line word may hold several
    names = tuple(part.strip().strip("'\"") for entry in entries for part in entry.split(","))
    for name in names:
        if not name:
            raise BadValue("An entry is empty.")
        if not name.isprintable() or any(letter.isspace() for letter in name):
            raise BadValue(f"The entry {name[:60]!r} holds a blank or a character that cannot be printed.")
    return names


def as_path(value: Any) -> str:
    """A path, as a string or a path object."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    value = unwrapped(value)
    if not isinstance(value, str) or not value.strip():
        raise BadValue("")
    if not value.isprintable():
        raise BadValue("It holds a character that cannot be printed.")
    return str(value)


def is_null(value: Any) -> bool:
    """None, or the word for it: a JSON null reaches PdArgumentParser's fields as "None"."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NULL)
