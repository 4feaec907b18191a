"""Sizes in bytes, as people write them: ``8GiB``, ``512MiB``, ``8 GB``, ``8e9``."""

from __future__ import annotations

import re
from typing import Any

from paddle_memcallbacks.config.errors import ConfigError, describe
from paddle_memcallbacks.config.values import BadValue, as_number

# no training fits in less, and a bare 14 (GiB) or 16384 (MiB), forgotten units, lie below it
SMALLEST_BYTES = 256 * 2**10
LARGEST_BYTES = 2**50

UNITS = {"b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgt", start=1):
    UNITS[f"{_letter}b"] = 1000**_power
    UNITS[f"{_letter}ib"] = 1024**_power

_SIZE = re.compile(r"([-+]?[0-9._]+(?:e[-+]?[0-9]+)?)\s*([a-z]+)", re.ASCII | re.IGNORECASE)

ALLOWED = "a size as 14GiB, 512MiB, 16GB (GB is 10**9 bytes) or 8e9 (bytes), from 256KiB to 1024TiB"


def parse_size(size: str | int | float) -> int:
    """Bytes of a size: ``"8GiB"`` (2**30), ``"8 GB"`` (10**9), ``"512MiB"``, ``"8e9"``, ``8e9``; case does not matter.

    Raises:
        ConfigError: not a size, not finite, not positive, or so small that a unit was forgotten (below 256 KiB).
    """
    try:
        return size_bytes(size)
    except BadValue as bad:
        hint = f" {bad}" if str(bad) else ""
        raise ConfigError(f"{describe(size)} cannot be used as a size. Allowed: {ALLOWED}.{hint}") from None


def size_bytes(value: Any) -> int:
    """As `parse_size`, for the rules of a key: raises BadValue with a hint."""
    if isinstance(value, str) and re.search(r"[0-9],[0-9]", value):
        raise BadValue("Write it without commas, the decimal point as a point: 8.5GiB.")
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        amount, unit = as_number(value), 1
    else:
        amount, unit = as_number(match.group(1)), _unit_bytes(match.group(1), match.group(2))
    if isinstance(amount, int) and abs(amount) > LARGEST_BYTES:
        raise BadValue("That is more than any machine has.")
    if amount != amount or amount in (float("inf"), float("-inf")):
        raise BadValue("A size must be finite.")
    if amount <= 0:
        raise BadValue("A size must be above 0; leave the key out to set no size.")
    if amount * unit > LARGEST_BYTES:
        raise BadValue("That is more than any machine has.")
    total_bytes = round(amount * unit)
    if total_bytes < SMALLEST_BYTES:
        raise BadValue(_forgotten_unit(amount, unit))
    return total_bytes


def _unit_bytes(amount: str, unit: str) -> int:
    if unit.lower() in UNITS:
        return UNITS[unit.lower()]
    letter = unit[0].upper()
    if unit.lower() in ("k", "m", "g", "t", "ki", "mi", "gi", "ti"):
        raise BadValue(f"Did you mean {amount}{letter}iB (binary) or {amount}{letter}B (decimal)?")
    raise BadValue(f"The unit {unit!r} is unknown; units are B, KB, MB, GB, TB, KiB, MiB, GiB and TiB.")


def _forgotten_unit(amount: int | float, unit: int) -> str:
    if unit != 1:
        return "That is too small for any training."
    return f"Did you mean {amount:g}{'GiB' if amount <= 1024 else 'MiB'}?"
