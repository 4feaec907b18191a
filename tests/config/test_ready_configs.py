"""The ready files under configs/: our sections in each load, and fit the schema that editors use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from paddle_memcallbacks.config import SECTIONS, ConfigError, json_schema, load_config
from tests.config.mini_schema import valid

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*") if path.suffix in (".yml", ".yaml", ".json"))


class _TagsAside(yaml.SafeLoader):
    """A toolkit's own YAML has tags (`!!python/module:`, `!RandomFlip`); our sections have none."""


_TagsAside.add_multi_constructor("", lambda loader, suffix, node: None)


def our_sections(text: str) -> dict[str, Any]:
    """What of a toolkit's config file is ours."""
    content = yaml.load(text, _TagsAside) or {}
    return {section: content[section] for section in SECTIONS if section in content}


def check(text: str) -> None:
    sections = our_sections(text)
    assert valid(sections, json_schema())
    load_config(sections)


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(CONFIGS)) for path in FILES])
def test_a_ready_config_loads(path):
    check(path.read_text(encoding="utf-8"))


def test_the_check_itself():
    check("plugins: !!python/module:x.y\nepoch: 3\nmemory: {budget: 8GiB}\n")
    with pytest.raises(ConfigError):
        check("amp: {level: O1}\nmemory: {plan: p.yml}\nrecompute: {layers: [a]}\n")
    with pytest.raises(AssertionError):
        check("memory: {budgte: 8GiB}\n")
