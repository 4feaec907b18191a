"""Recompute changes no bit: kinds of layers, of inputs and outputs, and of state that a forward changes."""

from __future__ import annotations

import random

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.base import core
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F

from paddle_memcallbacks.recompute import find_units, recompute_units
from paddle_memcallbacks.recompute.tensors import hooks_keep_storage
from tests.recompute.steps import assert_same, data, gradients, on_host, seed_all, state, train

WIDTH = 8


class Stack(nn.Layer):
    """Blocks one after another, each given and giving a tensor."""

    def __init__(self, make_block, count=2):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.LayerList([make_block() for _ in range(count)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def square_loss(model):
    return (model(data(4, WIDTH)) ** 2).mean()


def assert_exact(make, loss_of=square_loss, units=("blocks.0", "blocks.1"), **options):
    plain = train(make, loss_of, None, **options)
    assert_same(plain, train(make, loss_of, units, **options))
    return plain


class Dropped(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        return x + self.drop(self.b(F.gelu(self.a(self.drop(x)))))


def test_dropout():
    assert_exact(lambda: Stack(Dropped))


def test_sgd_and_momentum():
    assert_exact(lambda: Stack(Dropped), optimizer=paddle.optimizer.SGD)
    assert_exact(lambda: Stack(Dropped), optimizer=paddle.optimizer.Momentum)


def test_transformer_encoder():
    def make():
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.3, attn_dropout=0.2, act_dropout=0.1)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.TransformerEncoder(layer, 2))

    def loss_of(model):
        return (model(data(2, 5, WIDTH)) ** 2).mean()

    with paddle.utils.unique_name.guard():
        units = find_units(make())
    assert units == ["1.layers.0", "1.layers.1"]
    assert_exact(make, loss_of, units)


def test_lstm():
    class Recurrent(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.rnn = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.3, direction="bidirect")

        def forward(self, x):
            out, (h, c) = self.rnn(self.first(x))
            return out.mean(axis=-1) + h.mean() + c.mean()

    assert_exact(Recurrent, lambda model: (model(data(2, 4, WIDTH)) ** 2).mean(), ["rnn"])


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.weight_norm])
def test_norms_that_make_the_weight_anew(norm):
    class Normed(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = norm(nn.Linear(WIDTH, WIDTH))

        def forward(self, x):
            return F.tanh(self.inner(x))

    plain = assert_exact(lambda: Stack(Normed))
    if norm is nn.utils.spectral_norm:
        name = "buffer blocks.0.inner.weight_u"
        assert not np.array_equal(plain[0][name], plain[1][name])


def test_spectral_norm_layer():
    class Normed(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.SpectralNorm([WIDTH, WIDTH], power_iters=2)

        def forward(self, x):
            return x @ self.norm(self.inner.weight) + self.inner.bias

    assert_exact(lambda: Stack(Normed))


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm1D(WIDTH),
        lambda: nn.BatchNorm(WIDTH),
        lambda: nn.BatchNorm1D(WIDTH, momentum=0.3),
        lambda: nn.BatchNorm1D(WIDTH, use_global_stats=True),
    ],
)
def test_batch_norm(norm):
    assert_exact(lambda: Stack(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), norm(), nn.Dropout(0.2))))


def test_instance_and_group_norm():
    def block():
        return nn.Sequential(nn.Conv1D(4, 4, 1), nn.InstanceNorm1D(4), nn.GroupNorm(2, 4))

    class Net(Stack):
        def forward(self, x):
            for unit in self.blocks:
                x = unit(x)
            return x

    assert_exact(lambda: Net(block), lambda model: (model(data(3, 4, WIDTH)) ** 2).mean())


class Outputs(nn.Layer):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        a, b = F.tanh(self.a(x)), F.sigmoid(self.b(x))
        return {
            "dict": {"a": a, "b": b},
            "list": [a, b],
            "tuple": (a, b),
            "nested": {"x": (a, [b, None]), "n": 3},
            "none": (a, None, b, 7),
        }[self.kind]


def sum_of(value):
    if isinstance(value, dict):
        return sum((sum_of(item) for item in value.values()), paddle.zeros([]))
    if isinstance(value, (list, tuple)):
        return sum((sum_of(item) for item in value), paddle.zeros([]))
    return (value**2).mean() if isinstance(value, paddle.Tensor) else paddle.zeros([])


@pytest.mark.parametrize("kind", ["dict", "list", "tuple", "nested", "none"])
def test_outputs(kind):
    def make():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Outputs(kind))

    assert_exact(make, lambda model: sum_of(model(data(4, WIDTH))), ["1"])


def test_an_output_that_is_the_input():
    class Same(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x, F.tanh(self.a(x))

    assert_exact(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Same()), lambda m: sum_of(m(data(4, WIDTH))), ["1"])


def test_keyword_only_and_containers_as_inputs():
    class Picky(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, *, parts, extra=None, **rest):
            x = parts["x"] * rest["scale"] + parts["more"][0]
            return F.tanh(self.a(x)) + (0 if extra is None else extra[1])

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.unit = Picky()

        def forward(self, x):
            h = self.first(x)
            return self.unit(parts={"x": h, "more": [h * 2, None]}, extra=(None, h), scale=h.mean())

    assert_exact(Net, units=["unit"])


def test_a_forward_that_changes_its_containers():
    class Greedy(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, batch, seen):
            x = batch.pop("x")
            out = F.tanh(self.a(x)) * (len(seen) + 1)
            seen.append(out)
            return out

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.unit = Greedy()

        def forward(self, x):
            seen = []
            first = self.unit({"x": self.first(x)}, seen)
            second = self.unit({"x": first}, seen)
            assert len(seen) == 2
            return first + second

    assert_exact(Net, units=["unit"])


def test_no_input_needs_a_gradient():
    class Embedded(nn.Layer):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(10, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)
            self.drop = nn.Dropout(0.2)

        def forward(self, ids):
            return self.drop(self.norm(self.words(ids)))

    ids = paddle.to_tensor([[1, 2, 3], [4, 5, 6]])
    assert_exact(
        lambda: nn.Sequential(Embedded(), nn.Linear(WIDTH, WIDTH)), lambda model: (model(ids) ** 2).mean(), ["0"]
    )


def test_frozen_parameters_and_frozen_inputs():
    def make():
        net = Stack(Dropped)
        for parameter in (*net.first.parameters(), net.blocks[0].a.weight, net.blocks[1].b.bias):
            parameter.stop_gradient = True
        return net

    assert_exact(make)


def test_a_wholly_frozen_unit():
    def make():
        net = Stack(Dropped)
        for parameter in net.blocks[0].parameters():
            parameter.stop_gradient = True
        return net

    assert_exact(make)


def test_one_layer_called_several_times():
    class Shared(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.unit = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1D(WIDTH), nn.Dropout(0.3), nn.Tanh())

        def forward(self, x):
            x = self.first(x)
            for _ in range(3):
                x = self.unit(x)
            return x

    assert_exact(Shared, units=["unit"])


def test_a_unit_shared_with_the_inside_of_another():
    class Outer(nn.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.own = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return F.tanh(self.own(self.inner(x)))

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.small = Dropped()
            self.outer = Outer(self.small)

        def forward(self, x):
            return self.outer(self.small(x))

    assert_exact(Net, units=["small", "outer"])


def test_weights_tied_between_units():
    def make():
        net = Stack(Dropped)
        net.blocks[1].a.weight = net.blocks[0].a.weight
        return net

    assert_exact(make)


def test_numpy_and_python_random_numbers():
    class Noisy(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            noise = paddle.to_tensor(np.random.rand(WIDTH).astype("float32"))
            return F.tanh(self.a(x)) * noise * (0.5 + random.random()) + paddle.rand([WIDTH]) * x

    assert_exact(lambda: Stack(Noisy))


def test_fleets_named_random_numbers():
    from paddle.distributed.fleet.layers.mpu.random import get_rng_state_tracker

    class Named(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            with tracker.rng_state("local_seed"):
                x = F.dropout(F.tanh(x), p=0.4)
            return F.tanh(self.a(x))

    def run(units):
        tracker.reset()
        seed_all()
        tracker.add("local_seed", 17)
        return train(lambda: Stack(Named), square_loss, units, steps=2)

    tracker = get_rng_state_tracker()
    try:
        assert_same(run(None), run(["blocks.0", "blocks.1"]))
    finally:
        tracker.reset()


class Counting(nn.Layer):
    """State of every kind that a forward may change."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.calls = 0
        self.history = []
        self.table = {"nested": [[1.0]]}
        self.marks = set()
        self.array = np.ones(WIDTH, "float32")
        self.register_buffer("written", paddle.zeros([WIDTH]))
        self.register_buffer("replaced", paddle.zeros([WIDTH]))
        self.frozen = self.create_parameter([WIDTH], default_initializer=nn.initializer.Constant(1.0))
        self.frozen.stop_gradient = True
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.history.append(self.calls)
        self.table["nested"][0][0] += 0.5
        self.marks.add(self.calls)
        self.array *= 1.1
        x = F.tanh(self.a(x)) * self.calls + len(self.history) + self.table["nested"][0][0] + len(self.marks)
        x = F.tanh(0.1 * (x * paddle.to_tensor(self.array) + self.written * self.frozen + self.replaced * x))
        with paddle.no_grad():
            self.written.set_value(self.written + x.mean(axis=0))
            self.replaced = self.replaced * 0.9 + x.mean(axis=0) * 0.1
            self.frozen.add_(x.std(axis=0))
        self.last = x
        return x

    def python_state(self):
        return [self.calls, list(self.history), self.table["nested"][0][0], set(self.marks), self.array.tolist()]


def test_every_kind_of_state():
    finals = []

    def make():
        net = Stack(Counting)
        finals.append(net)
        return net

    plain = assert_exact(make)
    assert finals[0].blocks[1].python_state() == finals[1].blocks[1].python_state()
    assert finals[1].blocks[1].calls == 3
    assert any(name.endswith("written") for name in plain[0])


def test_state_survives_a_third_pass():
    def run(units):
        seed_all()
        model = Stack(Counting)
        with recompute_units(model, units):
            loss = model(data(4, WIDTH)).mean()
            loss.backward(retain_graph=True)
            loss.backward(retain_graph=True)
            loss.backward()
        return [gradients(model), state(model)], [block.python_state() for block in model.blocks]

    (plain, plain_python), (on, on_python) = run([]), run(["blocks.0", "blocks.1"])
    assert_same(plain, on)
    assert plain_python == on_python


def test_lists_shared_between_layers_of_a_unit():
    class Writer(nn.Layer):
        def __init__(self, shared):
            super().__init__()
            self.shared = shared
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            self.shared.append(len(self.shared))
            return F.tanh(self.a(x) * 0.1 * len(self.shared))

    shared = []

    def make():
        shared.clear()
        return Stack(lambda: nn.Sequential(Writer(shared), Writer(shared)))

    assert_exact(make)
    assert len(shared) == 4 * 3


def test_one_list_given_twice():
    class Twice(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, one, other):
            one.append(1.0)
            return F.tanh(self.a(x) * sum(other))

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.unit = Twice()

        def forward(self, x):
            shared = [0.5]
            return self.unit(self.first(x), shared, other=shared)

    assert_exact(Net, units=["unit"])


def test_the_order_of_buffers_that_a_forward_takes_away():
    class Consuming(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)
            for index in range(3):
                self.register_buffer(f"b{index}", paddle.full([WIDTH], 0.5 + index))

        def forward(self, x):
            x = self.a(x)
            for buffer in list(self._buffers.values()):
                x = F.tanh(x * buffer)
            if "b1" in self._buffers:
                del self.b1
            return x

    assert_exact(lambda: Stack(Consuming))


def test_a_buffer_made_in_forward():
    class Making(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = F.tanh(self.a(x))
            if not hasattr(self, "mean"):
                self.mean = x.mean(axis=0).detach()
                return x * 2
            self.mean = self.mean * 0.5 + x.mean(axis=0).detach()
            return x * self.mean

    assert_exact(lambda: Stack(Making))


def test_an_attribute_with_a_graph_in_the_loss():
    def loss_of(model):
        out = model(data(4, WIDTH)).mean()
        return out + sum((block.last**2).mean() for block in model.blocks)

    assert_exact(lambda: Stack(Counting), loss_of)


def test_large_state_that_changes():
    class Queue(nn.Layer):
        rows = 4096

        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("queue", paddle.zeros([self.rows, WIDTH]))
            self.register_buffer("constant", paddle.ones([self.rows, WIDTH]))

        def forward(self, x):
            out = F.tanh(self.a(x)) + self.queue[:4] * self.constant[:4]
            with paddle.no_grad():
                self.queue.set_value(self.queue + out.mean())
            return out

    assert_exact(lambda: Stack(Queue))


def test_a_transposed_buffer():
    class Turned(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("turned", paddle.ones([WIDTH, 4]).transpose([1, 0]))

        def forward(self, x):
            out = F.tanh(F.tanh(self.a(x)) + self.turned)
            with paddle.no_grad():
                self.turned.add_(out * 0.5)
            return out

    assert_exact(lambda: Stack(Turned))


def test_layers_that_build_themselves_at_the_first_call():
    class Lazy(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)
            self.ready = False

        def forward(self, x):
            if not self.ready:
                self.scale = self.create_parameter([x.shape[-1]], default_initializer=nn.initializer.Normal())
                self.ready = True
            return F.tanh(self.a(x)) * self.scale

    assert_exact(lambda: Stack(Lazy))


@pytest.mark.parametrize("during_second", [False, True])
def test_hooks_on_the_input_count_once(during_second):
    class Hooked(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x.register_hook(lambda gradient: gradient * 0.5)
            out = F.tanh(self.a(x))
            if during_second:
                out.register_hook(lambda gradient: gradient * 3)
            return out

    assert_exact(lambda: Stack(Hooked))


def test_eval_between_forward_and_backward():
    def make():
        return Stack(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1D(WIDTH), nn.Dropout(0.3)))

    flags = []

    def between(model):
        model.eval()
        flags.append(model.blocks[0][2].training)

    assert_exact(make, between=between)
    assert flags == [False] * 6


def test_flags_are_as_set_after_backward():
    seen = []

    def loss_of(model):
        seen.append(model)
        return square_loss(model)

    train(lambda: Stack(Dropped), loss_of, ["blocks.0"], steps=1, between=lambda model: model.eval())
    # train() at the end of the step set them again; the backward itself must not have
    model = seen[0]
    model.eval()
    assert not model.blocks[0].drop.training


def test_a_layer_that_runs_in_eval_and_then_in_train_mode():
    """Paddle's own step is wrong here: its eval gradients use the statistics that the train call has moved since."""

    def gradient(units, one_by_one):
        seed_all()
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1D(WIDTH, momentum=0.2))
        )
        with recompute_units(model, units):
            x = model[0](data(4, WIDTH))
            model.eval()
            still = (model[1](x) ** 2).mean()
            if one_by_one:
                still.backward(retain_graph=True)
            model.train()
            moving = (model[1](x * 2) ** 2).mean()
            (moving if one_by_one else still + moving).backward()
        return on_host(model[0].weight.grad)

    right = gradient([], one_by_one=True)
    assert np.abs(gradient([], one_by_one=False) - right).max() > 0.1 * np.abs(right).max()
    assert np.abs(gradient(["1"], one_by_one=False) - right).max() < 1e-5 * np.abs(right).max()


def test_a_saved_weight_is_the_weight_itself():
    class Fused(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensor()
            weight.main_grad.add_(x.t() @ gradient)
            weight.seen = True
            return gradient @ weight.t(), None

    class Uses(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return Fused.apply(F.tanh(x), self.a.weight)

    def main_grad(units):
        seed_all()
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Uses())
        weight = model[1].a.weight
        weight.main_grad = paddle.zeros([WIDTH, WIDTH])
        with recompute_units(model, units):
            model(data(4, WIDTH)).mean().backward()
        return [{"main": on_host(weight.main_grad)}, gradients(model)]

    if hooks_keep_storage():
        plain = main_grad([])
        assert plain[0]["main"].any()
        assert_same(plain, main_grad(["1"]))


class Product(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensor()
        return gradient * y, gradient * x


def test_pylayer_with_transposed_and_sliced_tensors():
    class Inside(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            h = F.tanh(self.a(x))
            turned = h[:, :4].transpose([1, 0])
            return h + Product.apply(turned, h[:, 2:6]).sum()

    assert_exact(lambda: Stack(Inside))


def test_paddle_grad_and_retain_graph():
    def run(units):
        seed_all()
        model = Stack(Dropped)
        x = data(4, WIDTH)
        x.stop_gradient = False
        with recompute_units(model, units):
            y = (model(x) ** 2).mean()
            found = [on_host(g) for g in paddle.grad(y, [x, model.first.weight], retain_graph=True)]
            y.backward(retain_graph=True)
            y.backward()
            found += [on_host(x.grad), on_host(model.blocks[0].a.weight.grad)]
        return found

    for one, other in zip(run([]), run(["blocks.0", "blocks.1"]), strict=True):
        assert one.tobytes() == other.tobytes()


def test_gradient_penalty():
    def loss_of(model):
        x = data(4, WIDTH)
        x.stop_gradient = False
        out = model(x)
        (slope,) = paddle.grad(out.sum(), [x], create_graph=True)
        return out.mean() + (slope**2).sum()

    # dropout has no second derivative in paddle
    assert_exact(lambda: Stack(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())), loss_of)


def test_outputs_that_go_backward_one_by_one():
    def run(units):
        seed_all()
        model = nn.Sequential(Dropped(), Outputs("tuple"))
        x = data(4, WIDTH)
        with recompute_units(model, units):
            a, b = model(x)
            (a**2).mean().backward(retain_graph=True)
            (b**3).mean().backward()
        return gradients(model)

    assert_same([run([])], [run(["0", "1"])])


class Reentrant(nn.Layer):
    """A layer that uses paddle's own recompute inside."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.inner = Dropped()
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.tanh(self.b(recompute(self.inner, self.a(x))))


def test_paddles_reentrant_recompute_inside_a_unit():
    assert_exact(lambda: Stack(Reentrant))


def test_a_unit_inside_paddles_reentrant_recompute():
    assert_exact(lambda: Stack(Reentrant), units=["blocks.0.inner", "blocks.1.inner"])


def test_amp_settings_of_the_first_pass():
    seen = []

    class Looking(nn.Layer):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            tracer = paddle.framework._dygraph_tracer()
            seen.append((tracer._amp_level, tracer._amp_dtype, tracer._use_promote, tracer._get_amp_op_list()))
            return F.tanh(self.a(x))

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Looking())
    tracer = paddle.framework._dygraph_tracer()
    before = tracer._amp_level, tracer._amp_dtype, tracer._use_promote, tracer._get_amp_op_list()
    with recompute_units(model, ["1"]):
        # a CPU turns auto_cast off; these lists cast nothing
        tracer._amp_level, tracer._amp_dtype, tracer._use_promote = core.AmpLevel.O1, "bfloat16", True
        tracer._set_amp_op_list({"some_op"}, {"another_op"})
        loss = model(data(4, WIDTH)).mean()
        tracer._amp_level, tracer._amp_dtype, tracer._use_promote = before[:3]
        tracer._set_amp_op_list(*before[3])
        loss.backward()
    assert seen[0][:2] == (core.AmpLevel.O1, "bfloat16")
    assert seen[0][3] == ({"some_op"}, {"another_op"})
    assert seen[1] == seen[0]
    assert before == (tracer._amp_level, tracer._amp_dtype, tracer._use_promote, tracer._get_amp_op_list())
