"""Where the first inf or NaN arose, judged from what one traced step saw. Plain data, no paddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

FLOAT16_MAX = 65504.0
NEAR_OVERFLOW = 0.5 * FLOAT16_MAX
_NAMES_SHOWN = 4

CauseKind = Literal["data", "forward", "function", "backward", "parameter", "elsewhere"]

# the op that a layer's forward runs, as auto_cast's lists call it; linear has two names over Paddle's versions
_OPS = {
    "Linear": "linear_v2, matmul_v2",
    "Conv1D": "conv2d",
    "Conv2D": "conv2d",
    "Conv3D": "conv3d",
    "Conv2DTranspose": "conv2d_transpose",
    "Embedding": "lookup_table_v2",
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    "BatchNorm2D": "batch_norm",
    "Softmax": "softmax",
    "GELU": "gelu",
    "Silu": "silu",
    "Swish": "swish",
}


class Counted(Protocol):
    """A parameter with non-finite gradients (`nonfinite.NonFinite`)."""

    @property
    def name(self) -> str: ...

    def text(self) -> str: ...


@dataclass(frozen=True)
class Event:
    """A layer's input or output in forward. ``parent`` is the layer that ran it, None for the model itself ("")."""

    layer: str
    kind: Literal["input", "output"]
    finite: bool
    parent: str | None = None
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class GradientEvent:
    """The gradient of one tensor among a layer's outputs, in backward's order."""

    layer: str
    finite: bool
    tensor: str = ""


@dataclass(frozen=True)
class Trace:
    """What one step's hooks saw.

    Attributes:
        events: forward, in order of time.
        gradients: backward, in order of time.
        types: class name of each layer.
        near_overflow: float16 outputs over half of the range: layer and largest magnitude, the largest first.
    """

    events: tuple[Event, ...] = ()
    gradients: tuple[GradientEvent, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    near_overflow: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Cause:
    """Where it arose.

    Attributes:
        kind: ``data`` the model's own input; ``forward`` a layer's output; ``function`` code between layers, inside
            ``layer``; ``backward`` the gradient of a layer's output; ``parameter`` a layer's own gradient;
            ``elsewhere`` nothing on this rank.
        layer: its dotted name; "" is the model itself.
        text: the finding in words, with the layer's class and its neighbours.
        op: what to put into ``amp.custom_black_list``; empty where none is known.
    """

    kind: CauseKind
    layer: str
    text: str
    op: str = ""


def layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def nearest_the_loss(parameters: Sequence[str], order: Sequence[str] = ()) -> str | None:
    """The layer of those parameters that runs last. Without an order of execution the model's own order counts."""
    if not parameters:
        return None
    rank = {layer: index for index, layer in enumerate(order)}
    layers = [layer_of(name) for name in parameters]
    known = [layer for layer in layers if layer in rank]
    return max(known, key=rank.__getitem__) if known else layers[-1]


def execution_order(trace: Trace) -> list[str]:
    """Layers in the order in which their (last) forward ended."""
    last = {event.layer: index for index, event in enumerate(trace.events) if event.kind == "output"}
    return sorted(last, key=last.__getitem__)


def locate(trace: Trace, parameters: Sequence[str], *, ranks: int = 1) -> Cause | None:
    """The cause of a skipped step; None where everything was finite.

    Args:
        trace: what the hooks saw in that step.
        parameters: names of the parameters with non-finite gradients, in the model's order.
        ranks: gradients of several ranks are summed before they are checked.
    """
    for index, event in enumerate(trace.events):
        if event.kind == "output" and not event.finite:
            return _forward_cause(trace, index)
    if not parameters and all(gradient.finite for gradient in trace.gradients):
        return None
    return _backward_cause(trace, parameters, ranks)


def _forward_cause(trace: Trace, index: int) -> Cause:
    event = trace.events[index]
    shown = show(event.layer, trace.types)
    bad_inputs = [
        earlier
        for earlier in trace.events[:index]
        if earlier.kind == "input" and not earlier.finite and (earlier.layer == event.layer or _holds(earlier, event))
    ]
    if not bad_inputs:
        inside = any(other.parent == event.layer for other in trace.events[:index])
        if inside:
            text = f"the first non-finite output is that of {shown}; the layers inside it gave finite ones"
        else:
            text = f"the first non-finite output is that of {shown}; its input was finite"
        return Cause("forward", event.layer, text, _OPS.get(trace.types.get(event.layer, ""), ""))
    outermost = bad_inputs[0]
    if outermost.parent is None:
        text = f"the model's own input is not finite (the batch itself); the first layer it reached is {shown}"
        return Cause("data", event.layer, text)
    text = (
        f"the input of {show(outermost.layer, trace.types)} was not finite already: made by a function in "
        f"{show(outermost.parent, trace.types)}"
    )
    return Cause("function", outermost.parent, text)


def _holds(outer: Event, event: Event) -> bool:
    return outer.layer == "" or event.layer.startswith(outer.layer + ".")


def _backward_cause(trace: Trace, parameters: Sequence[str], ranks: int) -> Cause:
    order = execution_order(trace)
    rank = {layer: index for index, layer in enumerate(order)}
    first = next((gradient for gradient in trace.gradients if not gradient.finite), None)
    nearest = nearest_the_loss(parameters, order)
    if first is not None and (nearest is None or rank.get(first.layer, -1) >= rank.get(nearest, -1)):
        return _output_gradient_cause(trace, first)
    assert nearest is not None
    shown = show(nearest, trace.types)
    if ranks > 1 and first is None:
        text = f"forward and backward were finite on this rank: it came from another; nearest the loss is {shown}"
        return Cause("elsewhere", nearest, text)
    text = f"forward was finite; nearest the loss, the first non-finite gradient is that of the parameters of {shown}"
    return Cause("parameter", nearest, text, _OPS.get(trace.types.get(nearest, ""), ""))


def _output_gradient_cause(trace: Trace, first: GradientEvent) -> Cause:
    text = "forward was finite; the first non-finite gradient in backward is that of the output of "
    text += show(first.layer, trace.types)
    users = _users(trace, first)
    if users:
        names = " and ".join(show(user, trace.types) for user in users)
        text += f"; it leads to {names}, where the output's gradient was finite still"
    op = _OPS.get(trace.types.get(users[0] if users else first.layer, ""), "")
    return Cause("backward", first.layer, text, op)


def _users(trace: Trace, gradient: GradientEvent) -> list[str]:
    """The innermost layers that took this tensor as an input and whose own output gradients were finite.

    Where only functions took it, the layer that ran next stands for them.
    """
    finite = {event.layer for event in trace.gradients if event.finite}
    finite -= {event.layer for event in trace.gradients if not event.finite}
    takers = [
        event.layer
        for event in trace.events
        if event.kind == "input" and gradient.tensor and gradient.tensor in event.tensors and event.layer in finite
    ]
    if not takers:
        last = max((i for i, event in enumerate(trace.events) if gradient.tensor in event.tensors), default=None)
        later = trace.events[last + 1 :] if last is not None else ()
        takers = [event.layer for event in later if event.kind == "input" and event.layer in finite][:1]
    takers = list(dict.fromkeys(takers))
    return [layer for layer in takers if not any(other.startswith(layer + ".") for other in takers)][:2]


def show(layer: str, types: Mapping[str, str]) -> str:
    """``encoder.0.linear1`` (Linear); the model itself by its class."""
    kind = types.get(layer, "")
    if not layer:
        return f"the model ({kind})" if kind else "the model"
    return f"`{layer}` ({kind})" if kind else f"`{layer}`"


def name_parameters(
    counted: Sequence[Counted], with_gradient: int, layer: str | None, order: Sequence[str] = ()
) -> str:
    """The parameters in one line: those of ``layer`` first, then those nearest the loss.

    Args:
        counted: the parameters with non-finite gradients, in the model's order.
        with_gradient: how many parameters had a gradient at all.
        order: layers in their order of execution; without it the model's own order stands for it.
    """
    if not counted:
        return "no gradient is left that is not finite"
    rank = {name: index for index, name in enumerate(order)}
    last_first = list(reversed(counted))
    last_first.sort(key=lambda one: -rank.get(layer_of(one.name), -1))
    own = [one for one in counted if layer is not None and (layer_of(one.name) + ".").startswith(layer + ".")]
    others = [one for one in last_first if one not in own]
    shown = [one.text() for one in [*own, *others][:_NAMES_SHOWN]]
    more = f" and {len(counted) - len(shown)} more" if len(counted) > len(shown) else ""
    return f"non-finite gradients in {len(counted)} of {with_gradient} parameters: {', '.join(shown)}{more}"
