"""What ``recompute.layers: auto`` means for a detector: the stages of its backbone, neck and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddle_memcallbacks.recompute.names import LayerInfo
from paddle_memcallbacks.recompute.units import describe_layers

# below two weight matrices a unit's saved input is most of what it holds
_STAGE_MATRICES = 2


def stage_names(layers: Sequence[LayerInfo]) -> list[str]:
    """Names of the stages, in the model's order, none inside another.

    A stage is a layer right below a part of the detector (backbone, neck, head) that holds at least two weight
    matrices. A list of such layers stands for them, also a Sequential: PaddleDetection's backbones go through theirs
    one by one.

    Args:
        layers: every layer, parents before children; names may hold dots of their own.
    """
    below: dict[str, list[LayerInfo]] = {}
    known: set[str] = set()
    weight: dict[str, int] = {}
    for layer in layers:
        parent = _parent(layer.name, known) if layer.name else None
        known.add(layer.name)
        if parent is not None:
            below.setdefault(parent, []).append(layer)
        for above in _ancestors(layer.name, known):
            weight[above] = weight.get(above, 0) + layer.matrices
    names: list[str] = []
    for part in below.get("", []):
        for child in below.get(part.name, []):
            names += _stages(child, below, weight)
    return names


def find_stages(model: Any) -> tuple[str, ...]:
    """The stages of a detector; empty where it has none."""
    return tuple(stage_names(describe_layers(model)))


def _stages(layer: LayerInfo, below: dict[str, list[LayerInfo]], weight: dict[str, int]) -> list[str]:
    heavy = [child for child in below.get(layer.name, []) if weight[child.name] >= _STAGE_MATRICES]
    if not layer.called or (layer.listing and len(heavy) >= 2):
        return [name for child in below.get(layer.name, []) for name in _stages(child, below, weight)]
    return [layer.name] if weight[layer.name] >= _STAGE_MATRICES else []


def _parent(name: str, known: set[str]) -> str:
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return ""


def _ancestors(name: str, known: set[str]) -> list[str]:
    """The layer itself and every layer above it."""
    found = [name]
    while name:
        name = _parent(name, known)
        found.append(name)
    return found
