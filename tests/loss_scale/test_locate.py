"""From what the hooks saw to the layer, on plain data."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from paddle_memcallbacks.loss_scale.locate import (
    Event,
    GradientEvent,
    Trace,
    execution_order,
    locate,
    name_parameters,
    nearest_the_loss,
)

TYPES = {"": "Net", "a": "Linear", "b": "Block", "b.x": "LayerNorm", "b.y": "Linear", "c": "GELU"}
# the model runs a, then b (which runs b.x and b.y), then c
CALLS = [
    ("", "input", None, "t0"),
    ("a", "input", "", "t0"),
    ("a", "output", "", "t1"),
    ("b", "input", "", "t1"),
    ("b.x", "input", "b", "t1"),
    ("b.x", "output", "b", "t2"),
    ("b.y", "input", "b", "t2"),
    ("b.y", "output", "b", "t3"),
    ("b", "output", "", "t3"),
    ("c", "input", "", "t3"),
    ("c", "output", "", "t4"),
    ("", "output", None, "t4"),
]
BACKWARD = [("c", "t4"), ("", "t4"), ("b.y", "t3"), ("b", "t3"), ("b.x", "t2"), ("a", "t1")]


def _trace(bad_events=(), bad_gradients=()):
    events = tuple(
        Event(layer, kind, (layer, kind) not in bad_events, parent, (tensor,)) for layer, kind, parent, tensor in CALLS
    )
    gradients = tuple(GradientEvent(layer, layer not in bad_gradients, tensor) for layer, tensor in BACKWARD)
    return Trace(events, gradients, TYPES)


def _from(layer, kind):
    """Everything from this event on is bad."""
    index = [(name, what) for name, what, _, _ in CALLS].index((layer, kind))
    return {(name, what) for name, what, _, _ in CALLS[index:]}


def test_all_finite_is_no_cause():
    assert locate(_trace(), []) is None


@pytest.mark.parametrize(
    ("bad_from", "kind", "layer", "words"),
    [
        (("", "input"), "data", "a", "the model's own input is not finite"),
        (("a", "output"), "forward", "a", "`a` (Linear); its input was finite"),
        (("b.x", "input"), "function", "b", "made by a function in `b` (Block)"),
        (("b.y", "output"), "forward", "b.y", "`b.y` (Linear)"),
        (("b", "output"), "forward", "b", "the layers inside it gave finite ones"),
        (("c", "input"), "function", "", "made by a function in the model (Net)"),
        (("c", "output"), "forward", "c", "`c` (GELU)"),
        (("", "output"), "forward", "", "the model (Net); the layers inside it gave finite ones"),
    ],
)
def test_the_first_bad_output_names_the_layer_or_the_code_before_it(bad_from, kind, layer, words):
    cause = locate(_trace(_from(*bad_from)), ["a.weight", "b.y.weight"])
    assert (cause.kind, cause.layer) == (kind, layer) and words in cause.text


def test_a_bad_input_whose_layer_copes_is_no_cause():
    assert locate(_trace({("b", "input"), ("b.x", "input")}), []) is None


@pytest.mark.parametrize(
    ("bad_gradients", "parameters", "kind", "layer"),
    [
        ({"b.y", "b", "b.x", "a"}, ["a.weight", "b.x.weight", "b.y.weight"], "backward", "b.y"),
        ({"b", "b.x", "a"}, ["a.weight", "b.x.weight", "b.y.weight"], "backward", "b"),  # its output, not that of b.y
        ({"a"}, ["a.weight"], "backward", "a"),
        ({"b.x", "a"}, ["a.weight", "b.x.weight", "b.y.weight"], "parameter", "b.y"),  # b.y's own backward
        (set(), ["b.x.weight"], "parameter", "b.x"),
        ({"c", "", "b.y", "b", "b.x", "a"}, ["a.weight"], "backward", "c"),
        ({"a"}, [], "backward", "a"),
    ],
)
def test_in_backward_the_layer_nearest_the_loss_is_named(bad_gradients, parameters, kind, layer):
    cause = locate(_trace(bad_gradients=bad_gradients), parameters)
    assert (cause.kind, cause.layer) == (kind, layer) and "forward was finite" in cause.text


def test_where_the_bad_gradient_came_from_is_named_too():
    cause = locate(_trace(bad_gradients={"b.x", "a"}), [])
    assert cause.layer == "b.x" and "leads to `b.y` (Linear)" in cause.text and "matmul_v2" in cause.op
    cause = locate(_trace(bad_gradients={"c", "", "b.y", "b", "b.x", "a"}), [])
    assert "leads to" not in cause.text


def test_on_several_ranks_a_clean_trace_means_another_rank():
    assert locate(_trace(), ["b.y.weight", "a.weight"], ranks=2).kind == "elsewhere"
    assert locate(_trace(), ["b.y.weight", "a.weight"], ranks=2).layer == "b.y"
    assert locate(_trace(bad_gradients={"a"}), ["a.weight"], ranks=2).kind == "backward"
    assert locate(_trace(), ["b.y.weight"], ranks=1).kind == "parameter"
    # this rank saw a bad gradient itself, further from the loss: b.y made it
    assert locate(_trace(bad_gradients={"b.x", "a"}), ["b.y.weight"], ranks=2).kind == "parameter"


def test_a_neighbour_that_was_bad_in_another_micro_batch_is_not_called_finite():
    fine, bad = _trace(), (GradientEvent("b.x", False, "t2"), GradientEvent("b.y", False, "t3"))
    cause = locate(Trace(fine.events, fine.gradients + bad, TYPES), [])
    assert cause.layer == "b.x" and "b.y" not in cause.text


def test_the_order_is_that_of_execution_not_of_the_model():
    assert execution_order(_trace()) == ["a", "b.x", "b.y", "b", "c", ""]
    assert nearest_the_loss(["head.weight", "a.weight"], ["head", "a"]) == "a"
    assert nearest_the_loss(["head.weight", "a.weight"]) == "a"
    assert nearest_the_loss(["a.weight", "head.weight"]) == "head"
    assert nearest_the_loss([]) is None and nearest_the_loss(["weight"]) == ""


@dataclass(frozen=True)
class Counted:
    name: str

    def text(self):
        return f"{self.name} (1 of 1)"


def test_the_layers_own_parameters_come_first_then_those_nearest_the_loss():
    counted = [Counted(name) for name in ("a.w", "a.b", "b.x.w", "b.y.w", "ba.w", "c.w")]
    line = name_parameters(counted, 9, "b", ["a", "b.x", "b.y", "ba", "c"])
    assert line.startswith(
        "non-finite gradients in 6 of 9 parameters: b.x.w (1 of 1), b.y.w (1 of 1), c.w (1 of 1), ba.w"
    )
    assert line.endswith(" and 2 more")
    assert name_parameters(counted[:1], 1, None) == "non-finite gradients in 1 of 1 parameters: a.w (1 of 1)"
    assert name_parameters([], 3, None) == "no gradient is left that is not finite"
    # without an order the model's own stands for it
    assert "c.w (1 of 1), ba.w (1 of 1)" in name_parameters(counted, 6, None)
