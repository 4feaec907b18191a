"""What is held and what is let go, to the byte."""

from __future__ import annotations

import gc
import weakref

import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from paddle_memcallbacks.recompute import recompute_units
from tests.recompute.steps import allocated_bytes, data, seed_all

WIDTH, ROWS = 32, 256
ROW_BYTES = WIDTH * ROWS * 4


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, 4 * WIDTH)
        self.b = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.b(F.gelu(self.a(x))))


class Net(nn.Layer):
    def __init__(self, make_block=Block, count=4):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.LayerList([make_block() for _ in range(count)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def all_blocks(model):
    return [f"blocks.{index}" for index in range(len(model.blocks))]


def measure(model, units, steps=2):
    """Bytes held after forward over the start, and bytes left after backward, for each step."""
    seen = []
    switch = recompute_units(model, units)
    if units:
        switch.apply()
    x = data(ROWS, WIDTH)
    for _ in range(steps):
        model.clear_gradients(set_to_zero=False)
        gc.collect()
        start = allocated_bytes()
        loss = model(x).mean()
        held = allocated_bytes() - start
        loss.backward()
        del loss
        left = allocated_bytes() - start
        seen.append((held, left))
    switch.remove()
    return seen


def test_held_after_forward():
    seed_all()
    model = Net()
    measure(model, [])
    plain = measure(model, [])
    on = measure(model, all_blocks(model))
    one = measure(model, ["blocks.1"])
    assert plain[0] == plain[1]
    assert on == measure(model, all_blocks(model))
    assert on[0] == on[1]
    held_plain, left_plain = plain[0]
    held_on, left_on = on[0]
    # the gradients alone are left after backward
    gradient_bytes = sum(parameter.size * 4 for parameter in model.parameters())
    assert left_plain == left_on
    assert gradient_bytes <= left_plain < 1.01 * gradient_bytes + 4096
    # a unit holds its input; the last one's output is the loss's
    assert held_on <= (len(model.blocks) + 2) * ROW_BYTES
    assert held_plain > 3 * held_on
    assert held_on < one[0][0] < held_plain


def test_a_unit_holds_its_inputs_until_backward_and_no_longer():
    model = Net(count=1)
    x = data(ROWS, WIDTH)
    with recompute_units(model, ["blocks.0"]):
        h = model.first(x)
        out = model.blocks[0](h)
        held = weakref.ref(h)
        loss = out.mean()
        start = allocated_bytes()
        del h, out
        assert allocated_bytes() == start - ROW_BYTES
        loss.backward()
        # the loss still stands, and with it the graph's nodes
        assert held() is None
        gradient_bytes = sum(parameter.size * 4 for parameter in model.parameters())
        assert allocated_bytes() == start - 2 * ROW_BYTES + gradient_bytes
        del loss


def test_units_let_go_one_by_one():
    """When backward has come to the first unit, the others' inputs are free, as a plain step's activations are."""
    model = Net()
    x = data(ROWS, WIDTH)
    seen = []
    with recompute_units(model, all_blocks(model)):
        start = allocated_bytes()
        h = model.first(x)
        h.register_hook(lambda gradient: seen.append(allocated_bytes() - start))
        for block in model.blocks:
            h = block(h)
        loss = h.mean()
        del h
        loss.backward()
    gradient_bytes = sum(parameter.size * 4 for parameter in model.blocks.parameters())
    # the first unit's input and the gradient, which its residual connection splits in two
    assert seen[0] - gradient_bytes < 3.5 * ROW_BYTES


def test_nothing_piles_up_without_backward():
    class Remembering(Block):
        def forward(self, x):
            out = super().forward(x)
            self.last = out
            self.all = [out]
            return out

    model = Net(Remembering, count=2)
    x = data(ROWS, WIDTH)
    with recompute_units(model, all_blocks(model)):
        seen = []
        for _ in range(6):
            model(x)
            gc.collect()
            seen.append(allocated_bytes())
    assert len(set(seen[2:])) == 1, seen


def test_nothing_piles_up_over_steps():
    model = Net(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1D(WIDTH), nn.Dropout(0.1)))
    seen = measure(model, all_blocks(model), steps=6)
    assert len(set(seen[1:])) == 1, seen


def test_a_cycle_through_a_list_argument_is_not_made():
    class Appending(Block):
        def forward(self, x, seen):
            out = super().forward(x)
            seen.append(out)
            return out

    model = Net(Appending, count=1)
    x = data(ROWS, WIDTH)
    gc.collect()
    gc.disable()
    try:
        with recompute_units(model, ["blocks.0"]):
            levels = []
            for _ in range(4):
                seen = []
                model.blocks[0](model.first(x), seen)
                del seen
                levels.append(allocated_bytes())
    finally:
        gc.enable()
    assert levels[1] == levels[2] == levels[3]


@pytest.mark.parametrize("large", [False, True])
def test_frozen_weights_are_not_copied(large, monkeypatch):
    from paddle_memcallbacks.recompute import tensors

    monkeypatch.setattr(tensors, "SMALL_BYTES", 64)
    if large:
        monkeypatch.setattr(tensors, "EXAMINE_BYTES", 64)
    model = Net()
    for parameter in model.blocks.parameters():
        parameter.stop_gradient = True
    # the first calls examine what is small enough for that; nothing of it is held
    measure(model, all_blocks(model), steps=1)
    held, _ = measure(model, all_blocks(model), steps=1)[0]
    assert held <= (len(model.blocks) + 2) * ROW_BYTES


def test_a_large_frozen_weight_is_never_copied():
    class Large(nn.Layer):
        def __init__(self):
            super().__init__()
            self.frozen = self.create_parameter([1200, 1000])
            self.frozen.stop_gradient = True
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return F.tanh(self.a(x)) * self.frozen[0, 0]

    from paddle.base import core

    model = Net(Large, count=1)
    x = data(4, WIDTH)
    with recompute_units(model, ["blocks.0"]):
        core.host_memory_stat_reset_peak_value("Allocated", 0)
        start = allocated_bytes()
        model(x).mean().backward()
        assert core.host_memory_stat_peak_value("Allocated", 0) - start < 1000 * 1200 * 4


def test_the_peak_falls():
    from paddle.base import core

    def peak(units):
        seed_all()
        model = Net()
        switch = recompute_units(model, units)
        if units:
            switch.apply()
        x = data(ROWS, WIDTH)
        for _ in range(2):
            model.clear_gradients(set_to_zero=False)
            core.host_memory_stat_reset_peak_value("Allocated", 0)
            start = allocated_bytes()
            model(x).mean().backward()
            top = core.host_memory_stat_peak_value("Allocated", 0) - start
        switch.remove()
        return top

    blocks = [f"blocks.{index}" for index in range(4)]
    plain, on = peak([]), peak(blocks)
    assert on == peak(blocks)
    assert on < 0.6 * plain


def test_paddle_saved_tensors_alone():
    """The control: the plain step holds what the units let go."""
    model = Net(count=1)
    x = data(ROWS, WIDTH)
    h = model.first(x)
    start = allocated_bytes()
    out = model.blocks[0](h)
    plain = allocated_bytes() - start
    del out
    with recompute_units(model, ["blocks.0"]):
        start = allocated_bytes()
        out = model.blocks[0](h)
        on = allocated_bytes() - start
    assert on == ROW_BYTES
    assert plain >= 8 * ROW_BYTES
    assert isinstance(out, paddle.Tensor)
