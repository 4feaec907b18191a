"""The hooks themselves: recompute, DataParallel, containers, and nothing left behind."""

from __future__ import annotations

import gc
import inspect
import weakref

import paddle
import pytest
from paddle.distributed.fleet.utils import recompute as paddles_recompute

from paddle_memcallbacks.loss_scale import FirstNonFinite, nonfinite_parameters
from paddle_memcallbacks.loss_scale.locate import locate
from paddle_memcallbacks.recompute import recompute_units
from tests.loss_scale.plants import Plant, planted

_HOOKS_SEE_KEYWORDS = "with_kwargs" in inspect.signature(paddle.nn.Layer.register_forward_pre_hook).parameters


class Block(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = paddle.nn.Linear(4, 8), paddle.nn.GELU(), paddle.nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Blocks(paddle.nn.Layer):
    def __init__(self, native=False):
        super().__init__()
        self.first = paddle.nn.Linear(4, 4)
        self.blocks = paddle.nn.LayerList([Block() for _ in range(3)])
        self.native = native

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = paddles_recompute(block, x) if self.native else block(x)
        return x


def _cause(model, plant=None):
    trace = FirstNonFinite(model)
    trace.attach()
    batch = paddle.randn([2, 4])
    if plant is None:
        model(batch).sum().backward()
    else:
        with planted(model, plant):
            model(batch).sum().backward()
    seen = trace.finish()
    cause = locate(seen, [one.name for one in nonfinite_parameters(model)])
    model.clear_gradients()
    return cause, seen


@pytest.mark.parametrize("how", ["forward", "backward"])
@pytest.mark.parametrize("layer", ["blocks.0.up", "blocks.1.act", "blocks.2.down", "blocks.1", "first"])
def test_under_recompute_the_same_layer_is_named_and_each_event_counts_once(layer, how):
    plain, switched = Blocks(), Blocks()
    units = ["blocks.0", "blocks.1", "blocks.2"]
    plant = Plant(layer, how, float("inf"))
    with recompute_units(switched, units):
        cause, seen = _cause(switched, plant)
        assert (cause.kind, cause.layer) == (how, layer)
        _, healthy = _cause(switched)
    expected, seen_plain = _cause(plain, plant)
    assert (expected.kind, expected.layer) == (how, layer)
    assert [(event.layer, event.kind) for event in seen.events] == [
        (event.layer, event.kind) for event in seen_plain.events
    ]
    assert len(healthy.events) == 28 and all(event.finite for event in healthy.events)


@pytest.mark.parametrize("layer", ["blocks.0.up", "blocks.2.down", "first"])
def test_under_paddles_own_reentrant_recompute_a_forward_fault_is_named(layer):
    model = Blocks(native=True)
    cause, _ = _cause(model, Plant(layer, "forward", float("nan")))
    assert (cause.kind, cause.layer) == ("forward", layer)
    cause, _ = _cause(model)
    assert cause is None


def test_the_graph_is_let_go():
    model = Blocks()
    trace = FirstNonFinite(model)
    trace.attach()
    output = model(paddle.randn([2, 4]))
    alive = weakref.ref(output)
    output.sum().backward()
    del output
    trace.finish()
    gc.collect()
    assert alive() is None
    assert not trace.active and trace.finish().events == ()


def test_gradients_are_not_changed_by_watching():
    def gradients(watched):
        paddle.seed(3)
        model = Blocks()
        trace = FirstNonFinite(model)
        if watched:
            trace.attach()
        model(paddle.randn([2, 4])).sum().backward()
        trace.discard()
        return [parameter.grad.numpy().tobytes() for parameter in model.parameters()]

    assert gradients(True) == gradients(False)


def test_dicts_tuples_integers_and_keywords_are_looked_into():
    class Inner(paddle.nn.Layer):
        def forward(self, ids, *, scale):
            return {"values": (ids.astype("float32") * scale, None, 3)}

    class Outer(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.weight = self.create_parameter([1])

        def forward(self, ids, scale):
            return self.inner(ids, scale=scale)["values"][0] * self.weight

    model = Outer()
    trace = FirstNonFinite(model)
    trace.attach()
    model(paddle.to_tensor([1, 2]), scale=paddle.to_tensor(float("nan"))).sum().backward()
    seen = trace.finish()
    # paddle 2.6 shows hooks the positional inputs only: the layer is named, not the data
    assert locate(seen, []).kind == ("data" if _HOOKS_SEE_KEYWORDS else "forward")
    inner = next(event for event in seen.events if event.layer == "inner" and event.kind == "output")
    assert not inner.finite and inner.parent == ""


def test_a_layer_that_raises_does_not_confuse_the_next_forward():
    model = Blocks()
    trace = FirstNonFinite(model)
    trace.attach()
    with pytest.raises(ValueError):
        model(paddle.randn([2, 5]))
    with planted(model, Plant("blocks.1.act", "forward", float("inf"))):
        model(paddle.randn([2, 4])).sum().backward()
    assert locate(trace.finish(), []).layer == "blocks.1.act"


def test_an_exception_that_a_layer_catches_leaves_the_nesting_right():
    class Tries(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.wrong, self.right = paddle.nn.Linear(9, 4), paddle.nn.Linear(4, 4)

        def forward(self, x):
            try:
                return self.wrong(x)
            except ValueError:
                return self.right(x)

    model = paddle.nn.Sequential(Tries(), paddle.nn.GELU())
    trace = FirstNonFinite(model)
    trace.attach()
    model(paddle.randn([2, 4]))
    parents = {(event.layer, event.kind): event.parent for event in trace.finish().events}
    assert parents[("0", "output")] == "" and parents[("1", "input")] == "" and parents[("1", "output")] == ""


def test_float16_gradients_and_outputs_are_looked_at():
    class Half(paddle.nn.Layer):
        def forward(self, x):
            return x.astype("float16")

    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), Half())
    model[0].weight.set_value(paddle.full([2, 2], 1e5))
    trace = FirstNonFinite(model)
    trace.attach()
    model(paddle.ones([1, 2])).astype("float32").sum().backward()
    seen = trace.finish()
    # 2e5 is over float16's 65504
    assert locate(seen, []).layer == "1"
    assert seen.near_overflow[0][0] == "1"


def test_a_frozen_model_has_nothing_to_hook_in_backward():
    model = Blocks()
    for parameter in model.parameters():
        parameter.stop_gradient = True
    trace = FirstNonFinite(model)
    trace.attach()
    model(paddle.randn([2, 4]))
    seen = trace.finish()
    assert seen.gradients == () and len(seen.events) == 28
