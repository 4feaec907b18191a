"""LR schedule and EMA hold still on skipped steps, exactly once a skip, and everything can be taken back."""

from __future__ import annotations

import math

import paddle
import pytest

from paddle_memcallbacks.loss_scale import guard_callable, guard_method, guard_scheduler
from paddle_memcallbacks.loss_scale.guard import MAX_LOSS_SCALE, bounded_scale


class Watch:
    """A stand-in with the three things that a guard asks."""

    def __init__(self):
        self.skipped, self.skips, self.held = False, 0, []

    def step(self, skipped):
        self.skipped = skipped
        self.skips += skipped

    def hold(self, what):
        self.held.append(what)

    def release(self, what):
        self.held.remove(what)


def test_case_17_ten_batches_of_which_four_overflow_are_six_steps_of_the_schedule():
    schedule = paddle.optimizer.lr.LinearWarmup(0.1, warmup_steps=10, start_lr=0.0, end_lr=0.1)
    watch = Watch()
    guard = guard_scheduler(schedule, watch)
    for batch in range(10):
        watch.step(batch < 4)
        schedule.step()
    assert schedule.last_epoch == 6 and guard.ignored == 4
    guard.remove()
    watch.step(True)
    schedule.step()
    assert schedule.last_epoch == 7 and "step" not in vars(schedule) and watch.held == []
    guard.remove()


def test_an_explicit_epoch_goes_through():
    schedule, watch = paddle.optimizer.lr.StepDecay(0.1, step_size=3), Watch()
    guard_scheduler(schedule, watch)
    watch.step(True)
    schedule.step(7)
    schedule.step(epoch=8)
    assert schedule.last_epoch == 8


def test_a_flag_that_nobody_renews_cannot_hold_a_schedule_for_ever():
    # AMP is turned off right after a skip: no scaler renews the flag any more
    schedule, watch = paddle.optimizer.lr.StepDecay(0.1, step_size=3), Watch()
    guard_scheduler(schedule, watch)
    watch.step(True)
    for _ in range(5):
        schedule.step()
    assert schedule.last_epoch == 4


def test_a_skip_before_the_guard_came_is_not_its_business():
    schedule, watch = paddle.optimizer.lr.StepDecay(0.1, step_size=3), Watch()
    watch.step(True)
    guard_scheduler(schedule, watch)
    schedule.step()
    assert schedule.last_epoch == 1


def test_the_schedules_saved_state_has_nothing_of_the_guard():
    schedule, watch = paddle.optimizer.lr.StepDecay(0.1, step_size=3), Watch()
    plain = schedule.state_dict()
    guard_scheduler(schedule, watch)
    assert schedule.state_dict() == plain


def test_ema_methods_and_functions_are_held_with_their_arguments():
    class Ema:
        calls: list = []

        def update(self, model):
            self.calls.append(model)
            return "updated"

    ema, watch = Ema(), Watch()
    guard = guard_method(ema, "update", watch)
    double = guard_callable(lambda x: 2 * x, watch, "a counter")
    assert watch.held == ["EMA", "a counter"]
    watch.step(True)
    assert ema.update("a") is None and double(2) is None
    watch.step(False)
    assert ema.update("b") == "updated" and double(2) == 4
    assert ema.calls == ["b"]
    guard.remove()
    assert "update" not in vars(ema)


def test_a_method_that_was_the_instances_own_is_put_back():
    class Thing:
        pass

    thing, watch = Thing(), Watch()
    own = lambda: "own"
    thing.go = own
    guard = guard_method(thing, "go", watch)
    guard.remove()
    assert thing.go is own


@pytest.mark.parametrize(
    ("scale", "minimum", "expected"),
    [
        (0.5, 1.0, 1.0),
        (1.0, 1.0, 1.0),
        (0.0, 1.0, 1.0),
        (math.nan, 1.0, 1.0),
        (-4.0, 1.0, 1.0),
        (math.inf, 1.0, MAX_LOSS_SCALE),
        (2.0**127, 1.0, MAX_LOSS_SCALE),
        (2.0**126, 1.0, 2.0**126),
        (0.25, 2.0**-10, 0.25),
    ],
)
def test_the_scale_is_kept_within_what_works(scale, minimum, expected):
    assert bounded_scale(scale, minimum) == expected


def test_the_upper_bound_is_the_last_that_paddles_unscale_can_invert(real_scaler):
    def gradient_after(scale):
        layer = paddle.nn.Linear(1, 1)
        optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
        scaler = real_scaler(init_loss_scaling=scale)
        scaler.scale((layer.weight * 2.0**-20).sum()).backward()
        scaler.step(optimizer)
        return float(layer.weight.grad)

    assert gradient_after(MAX_LOSS_SCALE) == 2.0**-20
    assert gradient_after(2 * MAX_LOSS_SCALE) == 0.0
