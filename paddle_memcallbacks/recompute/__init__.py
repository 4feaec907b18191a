"""Recompute units: found by name, class or as the repeated blocks of a model; switched on and off; exact to the bit.

The names are loaded on first use: matching names needs no paddle.
"""

import importlib
from typing import TYPE_CHECKING, Any

# public name -> the module that holds it
_PUBLIC = {
    "RecomputeError": "errors",
    "RecomputeSwitch": "switch",
    "UnitSelection": "names",
    "VerifyResult": "verify",
    "find_units": "units",
    "in_second_pass": "passes",
    "recompute_units": "switch",
    "savings_report": "savings",
    "select_units": "units",
    "strip": "switch",
    "verify_units": "verify",
}

__all__ = [
    "RecomputeError",
    "RecomputeSwitch",
    "UnitSelection",
    "VerifyResult",
    "find_units",
    "in_second_pass",
    "recompute_units",
    "savings_report",
    "select_units",
    "strip",
    "verify_units",
]

if TYPE_CHECKING:
    from paddle_memcallbacks.recompute.errors import RecomputeError
    from paddle_memcallbacks.recompute.names import UnitSelection
    from paddle_memcallbacks.recompute.passes import in_second_pass
    from paddle_memcallbacks.recompute.savings import savings_report
    from paddle_memcallbacks.recompute.switch import RecomputeSwitch, recompute_units, strip
    from paddle_memcallbacks.recompute.units import find_units, select_units
    from paddle_memcallbacks.recompute.verify import VerifyResult, verify_units


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value
