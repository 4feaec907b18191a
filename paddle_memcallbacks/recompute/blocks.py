"""The repeated blocks of a model: what recompute switches where nobody named layers. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paddle_memcallbacks.recompute.names import LayerInfo

# below two weight matrices (a convolution with its norm, say) the saved input is most of what a block holds
_BLOCK_MATRICES = 2
_NUMBER = re.compile(r"\d+")


@dataclass
class _Node:
    info: LayerInfo
    children: list[_Node] = field(default_factory=list)
    matrices: int = 0
    with_parameters: int = 0

    @property
    def name(self) -> str:
        return self.info.name


def repeated_blocks(layers: Sequence[LayerInfo]) -> list[str]:
    """Names of the repeated blocks, in the model's order, none inside another.

    A block is a layer that has layers inside, holds at least two weight matrices and comes twice or stands in a list.
    A layer that holds a list of such blocks is passed by for the blocks in it: residual blocks rather than stages,
    encoder layers rather than two towers. Where there is none: repeated layers with one matrix; then the top layers
    that hold several layers with parameters.

    Args:
        layers: every layer, parents before children, one entry a name; the root's name is empty.
    """
    root = _tree(layers)
    for matrices in (_BLOCK_MATRICES, 1):
        found = _unique(_blocks(root, _class_counts(root, matrices), matrices))
        if found:
            return found
    return _top_layers(root)


def _tree(layers: Sequence[LayerInfo]) -> _Node:
    root = _Node(LayerInfo(name="", class_name="", key=-1))
    nodes = {"": root}
    for layer in layers:
        if layer.name == "":
            root.info = layer
            continue
        node = nodes[layer.name] = _Node(layer)
        # a name may hold dots itself: add_sublayer("conv.0", ...)
        parent = layer.name.rpartition(".")[0]
        while parent not in nodes:
            parent = parent.rpartition(".")[0]
        nodes[parent].children.append(node)
    _weigh(root)
    return root


def _weigh(node: _Node) -> None:
    node.matrices = node.info.matrices
    node.with_parameters = 1 if node.info.parameters else 0
    for child in node.children:
        _weigh(child)
        node.matrices += child.matrices
        node.with_parameters += child.with_parameters


def _walk(node: _Node) -> Iterator[_Node]:
    for child in node.children:
        yield child
        yield from _walk(child)


def _is_plain_sequence(node: _Node) -> bool:
    return node.info.class_name == "Sequential"


def _could_be_block(node: _Node, matrices: int) -> bool:
    return node.info.called and node.matrices >= matrices and (bool(node.children) or node.info.opaque)


def _class_counts(root: _Node, matrices: int) -> Counter[str]:
    layer_keys = {
        (node.info.class_name, node.info.key)
        for node in _walk(root)
        if _could_be_block(node, matrices) and not _is_plain_sequence(node)
    }
    return Counter(class_name for class_name, _ in layer_keys)


def _holds_list_of_blocks(node: _Node, matrices: int) -> bool:
    return any(_is_list_of_blocks(inner, matrices) for inner in (node, *_walk(node)) if not inner.info.opaque)


def _is_list_of_blocks(node: _Node, matrices: int) -> bool:
    # experts run side by side: the layer around them is the block
    if "expert" in node.name.rpartition(".")[2].lower():
        return False
    could_be = [child for child in node.children if _could_be_block(child, matrices)]
    if node.info.listing:
        return any(count >= 2 for count in Counter(child.info.class_name for child in could_be).values())
    # children numbered like a list; two may be the two attentions of a decoder layer
    numbered = Counter((child.info.class_name, _NUMBER.sub("#", child.name)) for child in could_be)
    return any(count >= 3 for count in numbered.values())


def _blocks(node: _Node, counts: Counter[str], matrices: int) -> Iterator[tuple[str, int]]:
    if node.info.opaque:
        return
    siblings = Counter(child.info.class_name for child in node.children)
    for child in node.children:
        if _is_plain_sequence(child):
            repeated = node.info.listing and siblings["Sequential"] >= 2
        else:
            # a list of one is still a list: a model configured with a single layer, or one layer shared by all calls
            repeated = counts[child.info.class_name] >= 2 or (node.info.listing and not node.info.called)
        if _could_be_block(child, matrices) and repeated and not _holds_list_of_blocks(child, matrices):
            yield child.name, child.info.key
        else:
            yield from _blocks(child, counts, matrices)


def _unique(found: Iterator[tuple[str, int]]) -> list[str]:
    names: dict[int, str] = {}
    for name, key in found:
        names.setdefault(key, name)
    return list(names.values())


def _top_layers(root: _Node) -> list[str]:
    node = root
    while len(node.children) == 1 and node.children[0].children and not node.children[0].info.opaque:
        node = node.children[0]
    found: list[tuple[str, int]] = []
    waiting = list(node.children)
    while waiting:
        child = waiting.pop(0)
        if not child.info.called:
            waiting = child.children + waiting
        elif child.with_parameters >= 2 or (child.info.opaque and child.matrices):
            found.append((child.name, child.info.key))
    return _unique(iter(found))
