"""Names as command lines have them: dotted (`amp.level`) and flat (`amp_level`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle_memcallbacks.config.errors import Complaint, ConfigError, describe
from paddle_memcallbacks.config.names import nearest_key
from paddle_memcallbacks.config.section import keys_by_section


def flat_names() -> dict[str, tuple[str, str]]:
    """Flat name -> (section, key), e.g. ``recompute_layers`` -> ``("recompute", "layers")``."""
    return {f"{section}_{key}": (section, key) for section, keys in keys_by_section().items() for key in keys}


def from_flat(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat names to the nested mapping that `load_config` reads; a value of None counts as not given.

    A section's own name takes a bool (`recompute=True`). A section of which any key is given is on.

    Raises:
        ConfigError: a name that is neither a section nor a flat name, with the nearest one.
    """
    names = flat_names()
    nested: dict[str, dict[str, Any]] = {}
    complaints = []
    for name, value in flat.items():
        section, key = (name, "enable") if name in keys_by_section() else names.get(name, ("", ""))
        if not section:
            complaints.append(_unknown_flat(name, [*names, *keys_by_section()]))
        elif value is not None:
            nested.setdefault(section, {})[key] = value
    if complaints:
        raise ConfigError(complaints)
    return nested


def _unknown_flat(name: Any, valid: list[str]) -> Complaint:
    nearest = nearest_key(name, valid) if isinstance(name, str) else None
    hint = f" Did you mean {nearest}?" if nearest else ""
    return Complaint(describe(name), f"{describe(name)}: there is no such key.{hint}")


def expand_dotted(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names to a nested mapping: ``{"amp.level": "O2"}`` -> ``{"amp": {"level": "O2"}}``.

    Undotted names stay, and mix with dotted ones: ``{"amp": True, "amp.level": "O2"}`` is on with that level. The
    names themselves are checked by `load_config`.

    Raises:
        ConfigError: an empty part in a name, or one key given two values.
    """
    nested: dict[str, Any] = {}
    for name, value in dotted.items():
        parts = name.split(".") if isinstance(name, str) else [name]
        if "" in parts:
            raise ConfigError(f"{describe(name)}: a part of the name is empty.")
        _put(nested, parts, value, name)
    return nested


def _put(nested: dict[str, Any], parts: list[Any], value: Any, name: Any) -> None:
    for part in parts[:-1]:
        inner = nested.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = nested[part] = {"enable": inner}
        nested = inner
    last = parts[-1]
    if isinstance(nested.get(last), dict):
        given = value if isinstance(value, Mapping) else {"enable": value}
        for key, inner_value in given.items():
            _put(nested[last], [key], inner_value, f"{name}.{key}")
    elif last in nested:
        raise ConfigError(f"{describe(name)} is given twice: {describe(nested[last])} and {describe(value)}.")
    else:
        nested[last] = dict(value) if isinstance(value, Mapping) else value
