"""What cannot be exact is refused by the layer's name, and training goes on after the refusal."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from paddle_memcallbacks.recompute import RecomputeError, recompute_units
from tests.recompute.steps import assert_same, data, gradients, seed_all

WIDTH = 8


class Net(nn.Layer):
    """One unit between two layers."""

    def __init__(self, unit):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.unit = unit
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(self.unit(self.first(x)))


class Plain(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.tanh(self.a(x))


def gradients_still_work():
    layer = nn.Linear(2, 2)
    (layer(paddle.ones([1, 2])) ** 2).sum().backward()
    return layer.weight.grad is not None and paddle.is_grad_enabled()


def refused(model, loss_of=None, match="recompute unit 'unit'"):
    with recompute_units(model, ["unit"]), pytest.raises(RecomputeError, match=match) as caught:
        loss = model(data(4, WIDTH)).mean() if loss_of is None else loss_of(model)
        loss.backward()
    assert gradients_still_work()
    return caught.value


class InPlace(Plain):
    def forward(self, x):
        x = F.relu_(x)
        return F.tanh(self.a(x))


class InPlaceThroughView(Plain):
    def forward(self, x):
        x.reshape([-1]).scale_(2.0)
        return F.tanh(self.a(x))


class InPlaceKeyword(Plain):
    def forward(self, x, mask=None):
        mask["m"].add_(paddle.ones([WIDTH]))
        return F.tanh(self.a(x)) * mask["m"]


@pytest.mark.parametrize("kind", [InPlace, InPlaceThroughView])
def test_a_forward_that_changes_its_input(kind):
    error = refused(Net(kind()), match=rf"recompute unit 'unit' \({kind.__name__}\): its forward changes its input")
    assert "argument 0" in str(error)


def test_a_forward_that_changes_a_tensor_inside_a_keyword():
    def loss_of(model):
        return model.unit(model.first(data(4, WIDTH)), mask={"m": paddle.zeros([WIDTH])}).mean()

    assert "argument 'mask'" in str(refused(Net(InPlaceKeyword()), loss_of))


def test_an_input_changed_between_forward_and_backward():
    def loss_of(model):
        h = model.first(data(4, WIDTH))
        out = model.unit(h)
        h.add_(paddle.ones([WIDTH]))
        return out.mean()

    error = refused(Net(Plain()), loss_of)
    assert "changed in place between forward and backward" in str(error)
    assert "argument 0" in str(error)


def test_a_weight_changed_in_forward():
    class Clipped(Plain):
        def forward(self, x):
            with paddle.no_grad():
                self.a.weight.clip_(-0.1, 0.1)
            return F.tanh(self.a(x))

    assert "'a.weight'" in str(refused(Net(Clipped())))


def test_a_weight_changed_between_forward_and_backward():
    def loss_of(model):
        loss = model(data(4, WIDTH)).mean()
        with paddle.no_grad():
            model.unit.a.weight.scale_(0.5)
        return loss

    assert "'a.weight' was changed in place between" in str(refused(Net(Plain()), loss_of))


def test_a_large_frozen_weight_that_forward_changes_is_copied_from_the_next_step(monkeypatch):
    from paddle_memcallbacks.recompute import tensors

    monkeypatch.setattr(tensors, "SMALL_BYTES", 16)
    monkeypatch.setattr(tensors, "EXAMINE_BYTES", 64)

    class Momentum(Plain):
        def __init__(self):
            super().__init__()
            self.slow = self.create_parameter([WIDTH, WIDTH])
            self.slow.stop_gradient = True

        def forward(self, x):
            out = F.tanh(self.a(x) @ self.slow.clone())
            with paddle.no_grad():
                self.slow.scale_(0.9)
            return out

    def run(on, skip):
        seed_all()
        model = Net(Momentum())
        switch = recompute_units(model, ["unit"])
        if on:
            switch.apply()
            with pytest.raises(RecomputeError, match="'slow'.*run the step again"):
                model(data(4, WIDTH))
        elif skip:
            model(data(4, WIDTH))
        model(data(4, WIDTH)).mean().backward()
        switch.remove()
        return [gradients(model), {"slow": model.unit.slow.numpy()}]

    assert_same(run(False, True), run(True, False))


def test_a_second_pass_that_takes_another_way():
    calls = []

    class Moody(Plain):
        def forward(self, x):
            calls.append(1)
            x = F.tanh(self.a(x))
            return F.sigmoid(F.tanh(x)) if len(calls) == 1 else x

    assert "did not do what the first did" in str(refused(Net(Moody())))


def test_a_second_pass_with_other_shapes():
    calls = []

    class Shrinking(Plain):
        def forward(self, x):
            calls.append(1)
            x = F.tanh(self.a(x[: 4 - 2 * (len(calls) - 1)]))
            return x.mean(axis=0, keepdim=True)

    assert "did not do what the first did" in str(refused(Net(Shrinking())))


def test_a_forward_that_takes_gradients_of_itself():
    class Inward(Plain):
        def forward(self, x):
            y = F.tanh(self.a(x))
            (slope,) = paddle.grad((y**2).sum(), [y], create_graph=True)
            return slope

    assert "takes gradients" in str(refused(Net(Inward())))


def test_hooks_inside_a_unit():
    class Offloading(Plain):
        def forward(self, x):
            with paddle.autograd.saved_tensors_hooks(lambda t: t.numpy(), paddle.to_tensor):
                return F.tanh(self.a(x))

    assert "saved-tensor hooks of its own" in str(refused(Net(Offloading())))


def test_a_unit_inside_hooks():
    def loss_of(model):
        with paddle.autograd.saved_tensors_hooks(lambda t: t.numpy(), paddle.to_tensor):
            return model(data(4, WIDTH)).mean()

    assert "saved-tensor hooks of its own" in str(refused(Net(Plain()), loss_of))


@pytest.mark.parametrize("where", ["inside", "itself", "around"])
@pytest.mark.parametrize("key", ["enable_recompute", "use_checkpoint"])
def test_a_model_that_recomputes_by_itself(where, key):
    model = Net(Plain())
    owner = {"inside": model.unit.a, "itself": model.unit, "around": model}[where]
    setattr(owner, key, True)
    path = {"inside": "unit.a.", "itself": "unit.", "around": ""}[where]
    with pytest.raises(RecomputeError, match=rf"recompute unit 'unit'.*\({path}{key} is on\)"):
        recompute_units(model, ["unit"]).apply()
    setattr(owner, key, False)
    with recompute_units(model, ["unit"]):
        model(data(4, WIDTH)).mean().backward()


def test_an_error_in_the_second_pass_keeps_its_class_and_state():
    class Breaking(Plain):
        armed = False

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1D(WIDTH)

        def forward(self, x):
            out = F.tanh(self.norm(self.a(x)))
            if self.armed:
                raise MemoryError("ResourceExhausted: no memory left")
            return out

    seed_all()
    model = Net(Breaking())
    with recompute_units(model, ["unit"]):
        loss = model(data(4, WIDTH)).mean()
        mean = model.unit.norm._mean.numpy().copy()
        draws = np.random.get_state()[1].copy()
        Breaking.armed = True
        with pytest.raises(MemoryError, match="no memory left"):
            loss.backward()
        Breaking.armed = False
        assert model.unit.norm._mean.numpy().tobytes() == mean.tobytes()
        assert (np.random.get_state()[1] == draws).all()
        assert gradients_still_work()
        # the same layers train on
        model.clear_gradients()
        model(data(4, WIDTH)).mean().backward()
        assert model.first.weight.grad is not None


def test_an_error_in_the_first_pass_leaves_nothing_behind():
    class Breaking(Plain):
        def forward(self, x):
            raise KeyError("no such field")

    model = Net(Breaking())
    with recompute_units(model, ["unit"]):
        with pytest.raises(KeyError, match="no such field"):
            model(data(4, WIDTH))
        with paddle.autograd.saved_tensors_hooks(lambda t: t, lambda t: t):
            pass
    assert gradients_still_work()
    other = Net(Plain())
    with recompute_units(other, ["unit"]):
        other(data(4, WIDTH)).mean().backward()


def test_paddles_own_errors_in_backward_are_not_touched():
    model = Net(Plain())
    with recompute_units(model, ["unit"]):
        loss = model(data(4, WIDTH)).mean()
        loss.backward()
        with pytest.raises(SystemError, match="retain_graph"):
            loss.backward()


def test_the_error_arrives_through_every_entry_into_backward():
    def broken(model):
        h = model.first(data(4, WIDTH))
        out = model.unit(h)
        h.scale_(2.0)
        return out.mean(), model.first.weight

    for enter in (
        lambda loss, weight: loss.backward(),
        lambda loss, weight: paddle.autograd.backward([loss]),
        lambda loss, weight: paddle.grad(loss, weight),
    ):
        model = Net(Plain())
        with recompute_units(model, ["unit"]):
            loss, weight = broken(model)
            with pytest.raises(RecomputeError, match="recompute unit 'unit'"):
                enter(loss, weight)


def test_paddles_entries_are_its_own_again():
    from paddle.base import core

    before = core.eager.run_backward, core.eager.run_partial_grad
    model = Net(Plain())
    one, two = recompute_units(model, ["unit"]), recompute_units(model, ["last"])
    one.apply()
    two.apply()
    one.remove()
    assert core.eager.run_backward is not before[0]
    two.remove()
    assert (core.eager.run_backward, core.eager.run_partial_grad) == before
