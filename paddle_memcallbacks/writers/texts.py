"""Tags, hyper-parameters and numbers as VisualDL and JSON take them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

# VisualDL keeps a scalar as float32 and an int as 64 bits
LARGEST = 3.4028234e38
_INT_RANGE = range(-(2**63), 2**63)
_NOT_IN_TAGS = re.compile(r"[^\w\-./ ]")


def sanitise_tag(tag: object) -> str:
    """A tag that VisualDL takes: ``mem/util%`` -> ``mem/util_pct``."""
    return _NOT_IN_TAGS.sub("_", str(tag).replace("%", "_pct")) or "_"


def hparams_for_visualdl(values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that add_hparams takes: numbers and text; bools, None, lists, NaN, huge ints as text."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        number = None if isinstance(value, bool) else finite(value) if isinstance(value, Real) else None
        if number is None or (isinstance(value, Integral) and int(value) not in _INT_RANGE):
            plain[str(name)] = value if isinstance(value, str) else str(value)
        else:
            plain[str(name)] = int(value) if isinstance(value, Integral) else number
    return plain


def finite(value: Any) -> float | None:
    """The value as a finite number; None for anything else, such as an array or NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
