"""Names as command lines have them: dotted (`amp.level`) and flat (`amp_level`); and overrides over a file's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle_memcallbacks.config.errors import Complaint, ConfigError, describe
from paddle_memcallbacks.config.names import nearest_key
from paddle_memcallbacks.config.section import keys_by_section, plain_items


def flat_names() -> dict[str, tuple[str, str]]:
    """Flat name -> (section, key), e.g. ``recompute_layers`` -> ``("recompute", "layers")``."""
    return {f"{section}_{key}": (section, key) for section, keys in keys_by_section().items() for key in keys}


def from_flat(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Flat names to the nested mapping that `load_config` reads; a value of None counts as not given.

    A section's own name takes a bool or a mapping (`recompute=True`). A section of which any key is given is on.

    Raises:
        ConfigError: a name that is neither a section nor a flat name, with the nearest one; a key given two values.
    """
    dotted: dict[str, Any] = {}
    complaints = []
    paths = {**{section: section for section in keys_by_section()}, **{n: ".".join(p) for n, p in flat_names().items()}}
    for name, value in plain_items(flat, "the flat names").items():
        if name not in paths:
            complaints.append(_unknown_flat(name, list(paths)))
        elif value is not None:
            dotted[paths[name]] = value
    if complaints:
        raise ConfigError(complaints)
    return expand_dotted(dotted)


def _unknown_flat(name: Any, valid: list[str]) -> Complaint:
    nearest = nearest_key(name, valid) if isinstance(name, str) else None
    hint = f"Did you mean {nearest}?" if nearest else "A flat name is section_key, as recompute_layers."
    return Complaint(describe(name), f"{describe(name)}: there is no such key. {hint}")


def expand_dotted(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names to a nested mapping: ``{"amp.level": "O2"}`` -> ``{"amp": {"level": "O2"}}``.

    Undotted names stay, and mix with dotted ones: ``{"amp": True, "amp.level": "O2"}`` is on with that level. The
    names themselves are checked by `load_config`.

    Raises:
        ConfigError: an empty part in a name, or one key given two values.
    """
    try:
        return _expanded(plain_items(dotted, "the dotted names"))
    except RecursionError:
        raise ConfigError("A mapping holds itself.") from None


def _expanded(dotted: Mapping[Any, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in dotted.items():
        parts = name.split(".") if isinstance(name, str) else [name]
        if "" in parts:
            raise ConfigError(f"{describe(name)}: a part of the name is empty. Write section.key, as amp.level.")
        target = nested
        for part in parts[:-1]:
            # copied, so that a mapping of the caller's is never written to
            target[part] = target = _as_mapping(target.get(part, {}))
        _put(target, parts[-1], value, name)
    return nested


def _as_mapping(value: Any) -> dict[Any, Any]:
    return plain_items(value, "a section") if isinstance(value, Mapping) else {"enable": value}


def _put(target: dict[Any, Any], key: Any, value: Any, name: Any) -> None:
    if key not in target:
        target[key] = value
    elif isinstance(target[key], Mapping):
        target[key] = inner = _as_mapping(target[key])
        for inner_key, inner_value in _as_mapping(value).items():
            _put(inner, inner_key, inner_value, f"{name}.{inner_key}")
    elif isinstance(value, Mapping):
        earlier, target[key] = target[key], value
        _put(target, key, earlier, name)
    elif not _same(target[key], value):
        raise ConfigError(
            f"{describe(name)} is given twice: {describe(target[key])} and {describe(value)}. Remove one."
        )


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays and foreign types may refuse to be compared
        return False


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested keys laid over others, as command-line flags over a file: where both give a key, `over` counts.

    ``merged({"amp": {"level": "O1"}}, {"amp": False})`` is off and keeps its level. Not checked; `load_config` does.
    """
    result = plain_items(base, "the config")
    for section, value in plain_items(over, "the overrides").items():
        both_given = section in result and (isinstance(result[section], Mapping) or isinstance(value, Mapping))
        result[section] = {**_as_mapping(result[section]), **_as_mapping(value)} if both_given else value
    return result
