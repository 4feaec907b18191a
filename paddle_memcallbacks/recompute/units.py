"""The layers of a model as plain data, and the two ways to choose units among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import paddle

from paddle_memcallbacks.recompute.blocks import repeated_blocks
from paddle_memcallbacks.recompute.errors import RecomputeError
from paddle_memcallbacks.recompute.names import LayerInfo, UnitSelection, choose_units, thin_out


def find_units(model: paddle.nn.Layer) -> list[str]:
    """Names of the repeated blocks of ``model`` (encoder layers, residual blocks), in the model's order.

    Empty where the model has no layer with layers inside.
    """
    return repeated_blocks(describe_layers(model))


def select_units(
    model: paddle.nn.Layer,
    layers: Sequence[str] | Literal["auto"],
    every_n: int = 1,
    first: int | None = None,
    last: int | None = None,
) -> UnitSelection:
    """The units that the config key ``recompute.layers`` means.

    Args:
        layers: patterns or class names (see `names.choose_units`), or ``auto`` for the repeated blocks.
        every_n, first, last: thin the ordered list out: the first and last so many, then each n-th.

    Raises:
        RecomputeError: a pattern fits nothing (the nearest names are given), names given one by one lie in each other,
            or ``auto`` finds no repeated block.
    """
    infos = describe_layers(model)
    if layers != "auto":
        return choose_units(infos, layers, every_n, first, last)
    names = thin_out(repeated_blocks(infos), every_n, first, last)
    if not names:
        raise RecomputeError(
            f"recompute: {type(model).__name__} has no repeated block -> name the layers to recompute, e.g. "
            "recompute: {layers: [backbone.*]}"
        )
    return UnitSelection(tuple(names))


def describe_layers(model: paddle.nn.Layer) -> list[LayerInfo]:
    """Every layer under every name it has, the model itself first with an empty name, parents before children."""
    infos: list[LayerInfo] = []
    _describe(model, "", infos, frozenset())
    return infos


def _describe(layer: paddle.nn.Layer, name: str, infos: list[LayerInfo], above: frozenset[int]) -> None:
    if id(layer) in above:
        return
    infos.append(_info(layer, name))
    for child_name, child in layer._sub_layers.items():
        if child is not None:
            _describe(child, f"{name}.{child_name}" if name else child_name, infos, above | {id(layer)})


def _info(layer: paddle.nn.Layer, name: str) -> LayerInfo:
    parameters = [parameter for parameter in layer._parameters.values() if parameter is not None]
    called = is_called(layer)
    return LayerInfo(
        name=name,
        class_name=type(layer).__name__,
        key=id(layer),
        called=called,
        listing=isinstance(layer, (paddle.nn.LayerList, paddle.nn.Sequential)),
        opaque=isinstance(layer, paddle.nn.layer.rnn.RNNBase),
        matrices=sum(1 for parameter in parameters if len(parameter.shape) >= 2),
        parameters=len(parameters),
    )


def is_called(layer: paddle.nn.Layer) -> bool:
    """Whether the layer has a forward; containers such as LayerList have none."""
    return "forward" in layer.__dict__ or type(layer).forward is not paddle.nn.Layer.forward
