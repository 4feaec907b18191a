"""Safe YAML with what the safe loader lets pass or trips over: keys given twice, tags, values that cannot be built."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.constructor import ConstructorError

from paddle_memcallbacks.config.errors import ConfigError, describe

_MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:  # the safe constructors raise IndexError and more on junk as `!!int ""`
            raise ConstructorError(None, None, "the value cannot be read", node.start_mark) from error


def _refuse_tag(loader: _Loader, node: yaml.Node) -> Any:
    tag = node.tag.replace("tag:yaml.org,2002:", "!!")
    raise ConstructorError(
        None, None, f"the tag {tag[:60]!r} is not allowed, config files are data and not code", node.start_mark
    )


_Loader.add_constructor(None, _refuse_tag)


def parse_yaml(text: str) -> Any:
    """The document's value.

    Raises:
        ConfigError: a key is given twice in one mapping.
        yaml.YAMLError: not YAML, or a tag that is not plain data.
        RecursionError: nested too deeply.
    """
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_nodes(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check_nodes(root: yaml.Node) -> None:
    # an alias may point back at its own parent, so every node is visited once
    seen: set[int] = set()
    waiting: list[tuple[yaml.Node, str]] = [(root, "")]
    while waiting:
        node, path = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, path)
            waiting += [(value, f"{path}{_key_text(key)}.") for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(value, path) for value in node.value]


def _check_keys(node: yaml.MappingNode, path: str) -> None:
    first_lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag == _MERGE_TAG and not isinstance(value, yaml.MappingNode):
            # lists of merges of lists of merges grow exponentially
            raise ConfigError(f"line {line}: << takes one mapping, not a list.")
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in first_lines:
            first = first_lines[key.tag, key.value]
            lines = f"in line {line}" if first == line else f"in line {first} and in line {line}"
            raise ConfigError(f"{path}{_key_text(key)} is given twice {lines}. Remove one of them.")
        first_lines[key.tag, key.value] = line


def _key_text(key: yaml.Node) -> str:
    if not isinstance(key, yaml.ScalarNode):
        return "?"
    return key.value if key.value.isidentifier() and len(key.value) < 60 else describe(key.value)
