"""On and off: what a switched layer looks like from outside, and that nothing of it stays."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from paddle_memcallbacks.recompute import RecomputeError, in_second_pass, recompute_units, strip
from tests.recompute.steps import data, gradients, seed_all

WIDTH = 8


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1D(WIDTH)

    def forward(self, x, scale=1.0):
        return F.tanh(self.norm(self.a(x))) * scale


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.LayerList([Block(), Block()])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


NAMES = ["blocks.0", "blocks.1"]


def passes(model, train=True):
    """How often a block inside the model runs in one step: 2 where it is recomputed."""
    count = []
    handle = model.blocks[1].a.register_forward_post_hook(lambda *_: count.append(in_second_pass()))
    loss = model(data(4, WIDTH)).mean()
    if train:
        loss.backward()
    handle.remove()
    return count


def test_on_and_off():
    model = Net()
    switch = recompute_units(model, NAMES)
    assert not switch.active
    assert passes(model) == [False]
    switch.apply()
    assert switch.active
    assert passes(model) == [False, True]
    switch.apply()
    assert passes(model) == [False, True]
    switch.remove()
    switch.remove()
    assert not switch.active
    assert passes(model) == [False]
    assert type(model.blocks[0]) is Block
    assert not in_second_pass()


def test_nothing_of_it_stays():
    model = Net()
    before = [(type(layer), dict(layer.__dict__)) for layer in model.sublayers(include_self=True)]
    with recompute_units(model, NAMES):
        model(data(4, WIDTH)).mean().backward()
    after = [(type(layer), dict(layer.__dict__)) for layer in model.sublayers(include_self=True)]
    for (kind, attributes), (other_kind, other_attributes) in zip(before, after, strict=True):
        assert kind is other_kind
        assert attributes.keys() == other_attributes.keys()


def test_it_is_off_after_an_error_inside():
    model = Net()
    with pytest.raises(ZeroDivisionError), recompute_units(model, NAMES):
        raise ZeroDivisionError
    assert type(model.blocks[0]) is Block


def test_what_a_switched_layer_looks_like():
    model = Net()
    plain_names = [layer.full_name() for layer in model.sublayers()]
    keys = list(model.state_dict())
    parameter_names = [parameter.name for parameter in model.parameters()]
    with recompute_units(model, NAMES):
        block = model.blocks[0]
        assert isinstance(block, Block)
        assert type(block).__name__ == "Block"
        assert type(block).__qualname__ == Block.__qualname__
        assert type(block).__module__ == Block.__module__
        assert type(block) is type(model.blocks[1])
        assert [layer.full_name() for layer in model.sublayers()] == plain_names
        assert list(model.state_dict()) == keys
        assert [parameter.name for parameter in model.parameters()] == parameter_names
        assert list(inspect.signature(block.forward).parameters) == ["x", "scale"]
        assert repr(model) == repr(model)


def test_names_are_not_used_up():
    with paddle.utils.unique_name.guard():
        model = Net()
        with recompute_units(model, NAMES):
            model(data(4, WIDTH)).mean().backward()
        name = nn.Linear(2, 2).full_name()
    with paddle.utils.unique_name.guard():
        Net()
        assert nn.Linear(2, 2).full_name() == name


def test_save_and_load(tmp_path):
    seed_all()
    model = Net()
    with recompute_units(model, NAMES):
        paddle.save(model.state_dict(), str(tmp_path / "weights.pdparams"))
        seed_all(11)
        other = Net()
        other.set_state_dict(paddle.load(str(tmp_path / "weights.pdparams")))
        model.set_state_dict(other.state_dict())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes()


def test_a_deepcopy_uses_its_own_weights_and_is_recomputed():
    model = Net()
    with recompute_units(model, NAMES):
        passes(model)
        other = copy.deepcopy(model)
        assert passes(other) == [False, True]
        with paddle.no_grad():
            for parameter in model.parameters():
                parameter.set_value(paddle.zeros_like(parameter))
        model.clear_gradients()
        other.clear_gradients()
        assert float(other(data(4, WIDTH)).abs().sum()) > 0
        other(data(4, WIDTH)).mean().backward()
        assert float(other.blocks[0].a.weight.grad.abs().sum()) > 0
        assert model.blocks[0].a.weight.grad is None or float(model.blocks[0].a.weight.grad.abs().sum()) == 0
    assert passes(other) == [False, True]
    assert strip(other) == tuple(NAMES)
    assert passes(other) == [False]
    assert type(other.blocks[0]) is Block
    assert strip(other) == ()


def test_a_class_with_its_own_deepcopy_keeps_it():
    class Careful(Block):
        def __deepcopy__(self, memo):
            other = Careful()
            other.copied = True
            return other

    model = nn.Sequential(Careful())
    with recompute_units(model, ["0"]):
        other = copy.deepcopy(model)
    assert other[0].copied
    strip(other)
    assert type(other[0]) is Careful


def test_a_pickle_is_plain():
    seed_all()
    model = Net()
    with recompute_units(model, NAMES):
        state = model.blocks[0].__reduce_ex__(4)[1]
    assert state[0] is Block
    assert set(state[1]) == set(Block().__dict__)
    # a layer of an importable class goes through pickle itself
    linear = nn.Sequential(nn.Linear(2, 2))
    with recompute_units(linear, ["0"]):
        again = pickle.loads(pickle.dumps(linear[0].__reduce_ex__(4)[1][0]))
    assert again is nn.Linear


def test_a_forward_put_on_the_instance():
    model = Net()
    called = []

    def forward(x):
        called.append(1)
        return Block.forward(model.blocks[0], x, scale=2.0)

    model.blocks[0].__dict__["forward"] = forward
    seed_all()
    model(data(4, WIDTH)).mean().backward()
    want = gradients(model)
    model.clear_gradients()
    called.clear()
    with recompute_units(model, NAMES):
        seed_all()
        model(data(4, WIDTH)).mean().backward()
        assert len(called) == 2
    assert {k: v.tobytes() for k, v in gradients(model).items()} == {k: v.tobytes() for k, v in want.items()}
    assert model.blocks[0].__dict__["forward"] is forward


def test_a_bound_forward_on_the_instance_of_a_deepcopy_uses_the_copys_weights():
    import types

    model = Net()
    model.blocks[0].__dict__["forward"] = types.MethodType(Block.forward, model.blocks[0])
    with recompute_units(model, NAMES):
        other = copy.deepcopy(model)
        other(data(4, WIDTH)).mean().backward()
    assert other.blocks[0].a.weight.grad is not None
    assert model.blocks[0].a.weight.grad is None


def test_eval_and_no_grad_run_once():
    model = Net()
    with recompute_units(model, NAMES):
        with paddle.no_grad():
            assert passes(model, train=False) == [False]
        model.eval()
        want = model(data(4, WIDTH)).numpy()
        with paddle.no_grad():
            assert model(data(4, WIDTH)).numpy().tobytes() == want.tobytes()


def test_the_units_own_hooks_run_once():
    model = Net()
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda layer, inputs: seen.append("pre"))
    model.blocks[0].register_forward_post_hook(lambda layer, inputs, outputs: outputs * 2)
    model.blocks[0].register_forward_post_hook(lambda layer, inputs, outputs: seen.append("post"))
    with recompute_units(model, NAMES):
        model(data(4, WIDTH)).mean().backward()
    assert seen == ["pre", "post"]


def test_other_units_at_run_time():
    model = Net()
    switch = recompute_units(model, ["blocks.0"])
    switch.set(["blocks.1"])
    assert not switch.active and switch.names == ("blocks.1",)
    switch.apply()
    assert passes(model) == [False, True]
    switch.set(["blocks.0"])
    assert passes(model) == [False]
    assert type(model.blocks[1]) is Block
    switch.set([])
    assert type(model.blocks[0]) is Block
    switch.set(["blocks.1"])
    assert passes(model) == [False, True]
    switch.set(NAMES)
    assert switch.idle_units() == ("blocks.0",)
    assert passes(model) == [False, True]
    switch.remove()
    assert type(model.blocks[0]) is type(model.blocks[1]) is Block


def test_a_class_that_cannot_be_extended():
    class Closed(Block):
        def __init_subclass__(cls):
            raise TypeError("no subclasses")

    model = Net()
    model.closed = Closed()
    with pytest.raises(RecomputeError, match=r"'closed' \(Closed\): its class cannot be extended"):
        recompute_units(model, ["blocks.0", "closed"]).apply()
    # the one before it has been let go
    assert type(model.blocks[0]) is Block
    assert type(model.closed) is Closed
    with recompute_units(model, ["blocks.0"]) as switch:
        with pytest.raises(RecomputeError, match="cannot be extended"):
            switch.set(["blocks.1", "closed"])
        assert switch.names == ("blocks.0",)
        assert type(model.blocks[0]) is not Block
        model(data(4, WIDTH)).mean().backward()


def test_a_set_that_is_refused_changes_nothing():
    model = Net()
    model.first.use_recompute = True
    switch = recompute_units(model, ["blocks.0"]).apply()
    with pytest.raises(RecomputeError, match="first.use_recompute is on"):
        switch.set(["blocks.1", "first"])
    assert switch.names == ("blocks.0",)
    with pytest.raises(RecomputeError, match="is no layer"):
        switch.set(["blocks.7"])
    assert passes(model) == [False]
    assert type(model.blocks[0]) is not Block
    switch.remove()
    assert type(model.blocks[0]) is Block


def test_a_graph_made_before_it_was_removed():
    seed_all()
    model = Net()
    model(data(4, WIDTH)).mean().backward()
    want = gradients(model)
    model.clear_gradients()
    seed_all()
    with recompute_units(model, NAMES):
        loss = model(data(4, WIDTH)).mean()
    loss.backward()
    assert {k: v.tobytes() for k, v in gradients(model).items()} == {k: v.tobytes() for k, v in want.items()}


def test_idle_units_are_named():
    model = Net()
    model.unused = Block()
    with recompute_units(model, [*NAMES, "unused"]) as switch:
        assert switch.idle_units() == (*NAMES, "unused")
        model(data(4, WIDTH))
        assert switch.idle_units() == ("unused",)


def test_names_that_are_refused():
    model = Net()
    with pytest.raises(RecomputeError, match="'block.0' is no layer of Net -> did you mean 'blocks.0'"):
        recompute_units(model, ["block.0"])
    with pytest.raises(RecomputeError, match="'' is no layer"):
        recompute_units(model, [""])
    with pytest.raises(RecomputeError, match=r"'blocks' \(LayerList\).*never called"):
        recompute_units(model, ["blocks"])
    with pytest.raises(RecomputeError, match="'blocks.0.a' lies inside 'blocks.0'"):
        recompute_units(model, ["blocks.0", "blocks.0.a"])


def test_two_switches_on_one_layer():
    model = Net()
    with recompute_units(model, ["blocks.0"]):
        with pytest.raises(RecomputeError, match="another switch"):
            recompute_units(model, NAMES).apply()
        # the refused one has let go of what it had taken
        assert type(model.blocks[1]) is Block
        with recompute_units(model, ["blocks.1"]):
            assert passes(model) == [False, True]


def test_one_layer_under_two_names_is_one_unit():
    model = Net()
    model.again = model.blocks[0]
    with recompute_units(model, ["blocks.0", "again"]) as switch:
        assert switch.names == ("blocks.0",)
        model(data(4, WIDTH)).mean().backward()
    assert type(model.blocks[0]) is Block


def test_the_model_may_be_collected():
    import gc
    import weakref

    model = Net()
    switch = recompute_units(model, NAMES).apply()
    switch.remove()
    model(data(4, WIDTH))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    with pytest.raises(RecomputeError, match="gone"):
        switch.set(NAMES)


def test_second_pass_is_seen_in_backward_alone():
    model = Net()
    seen = []
    model.blocks[0].a.register_forward_pre_hook(lambda *_: seen.append(in_second_pass()))
    with recompute_units(model, NAMES):
        loss = model(data(4, WIDTH)).mean()
        assert seen == [False]
        loss.backward()
    assert seen == [False, True]
    assert not in_second_pass()


def test_static_graphs_pass_through():
    from paddle.static import InputSpec

    model = Net()
    model.eval()
    with paddle.no_grad():
        want = model(data(4, WIDTH)).numpy()
        with recompute_units(model, NAMES):
            static = paddle.jit.to_static(model, input_spec=[InputSpec([None, WIDTH])], full_graph=True)
            np.testing.assert_allclose(static(data(4, WIDTH)).numpy(), want, rtol=1e-6)
