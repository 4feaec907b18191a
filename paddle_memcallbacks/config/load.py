"""From a file or a mapping to a checked config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paddle_memcallbacks.config.errors import ConfigError, describe
from paddle_memcallbacks.config.files import read_mapping
from paddle_memcallbacks.config.root import MemoryConfig, checked_sections
from paddle_memcallbacks.config.section import plain_items


def load_config(source: str | os.PathLike[str] | Mapping[str, Any] | MemoryConfig | None = None) -> MemoryConfig:
    """Read a config from a YAML or JSON file, or from a mapping.

    A section that is not written stands for off (amp, gradient_accumulation, recompute) or for on with its defaults
    (memory, loss_scale, visualdl). A section written as a mapping, even an empty one (`amp: {}`), is on unless it says
    `enable: false`. A bare bool stands for a section. A section with nothing under it (`amp:`, null) says neither
    on nor off and is refused. The keys of a section that is off are checked all the same.

    Values may be strings, as command lines deliver them ("4", "1e9", "true", "a.*,b.*"), or numpy scalars.

    Args:
        source: a file's path (`.json` is read as JSON, everything else as safe YAML), a mapping of sections, a config
            (returned as it is), or None for the defaults.

    Raises:
        ConfigError: with every fault found: the key's path, its value, what is allowed, the nearest valid key.
    """
    if isinstance(source, MemoryConfig):
        return source
    if source is None:
        return MemoryConfig()
    if isinstance(source, Mapping):
        return _checked(plain_items(source, "the config"), "")
    if isinstance(source, (str, os.PathLike)):
        name, mapping = read_mapping(source)
        return _checked(mapping, name)
    raise ConfigError(f"{describe(source)} is no config. Give a file's path or a mapping of sections.")


def _checked(given: Mapping[Any, Any], source: str) -> MemoryConfig:
    sections, complaints = checked_sections(given)
    if complaints:
        raise ConfigError(complaints, source)
    return MemoryConfig(**sections)
