"""Reading config files: safe YAML, or JSON. Files are data; whatever is in them, the answer is a mapping or a ConfigError."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from paddle_memcallbacks.config.errors import ConfigError, describe


def read_mapping(source: str | os.PathLike[str]) -> tuple[str, dict[Any, Any]]:
    """The file's name for messages, and the mapping that it holds."""
    path = Path(source).expanduser()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{describe(str(path))} cannot be read: {error}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path.name} holds {describe(content)}, not a mapping of sections.")
    return path.name, content
