"""Paddle's own scaler under the watch, step by step, against a reference model of 20 lines."""

from __future__ import annotations

import contextlib
import io
import math

import numpy as np
import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import LossScaleWatch, found_inf, guard_callable, guard_scheduler
from tests.real_scaler import real_scalers

LEARNING_RATE, MOMENTUM, DECAY = 0.125, 0.5, 0.5


class Reference:
    """What must be true after each step: Paddle's rules for the scale, the floor, and nothing else moved by a skip."""

    def __init__(self, scale, incr_every, decr_every, floor, dynamic):
        self.scale, self.incr_every, self.decr_every, self.floor, self.dynamic = (
            scale, incr_every, decr_every, floor, dynamic,
        )  # fmt: skip
        self.good = self.bad = self.skips = self.streak = self.epoch = 0
        self.weight, self.velocity, self.ema = 1.0, 0.0, 1.0

    def step(self, found_inf):
        if found_inf:
            self.skips, self.streak = self.skips + 1, self.streak + 1
        else:
            self.streak = 0
            self.velocity = MOMENTUM * self.velocity + 1.0
            self.weight -= LEARNING_RATE * 0.5 ** (self.epoch // 3) * self.velocity
            self.ema += DECAY * (self.weight - self.ema)
            self.epoch += 1
        if self.dynamic:
            self.good, self.bad = (0, self.bad + 1) if found_inf else (self.good + 1, 0)
            if self.bad == self.decr_every:
                self.scale, self.bad = max(self.floor, self.scale / 2), 0
            if self.good == self.incr_every:
                self.scale, self.good = self.scale * 2, 0


class Loop:
    """A plain training loop of one weight, its schedule, its EMA, and the watch. Gradients are 1, or what is asked."""

    def __init__(self, scaler, how, floor, *, attach=True, clip=None):
        self.weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
        self.model = paddle.nn.Layer()
        self.model.add_parameter("weight", self.weight)
        self.schedule = paddle.optimizer.lr.StepDecay(LEARNING_RATE, step_size=3, gamma=0.5)
        self.optimizer = paddle.optimizer.Momentum(
            self.schedule, MOMENTUM, parameters=[self.weight], grad_clip=clip and paddle.nn.ClipGradByGlobalNorm(clip)
        )
        self.scaler, self.how = scaler, how
        config = load_config({"loss_scale": {"min_loss_scale": floor}}).loss_scale
        self.watch = LossScaleWatch(scaler, self.optimizer, self.model, config)
        if attach:
            self.watch.attach()
        guard_scheduler(self.schedule, self.watch)
        self.ema = self.weight.numpy().copy()
        self.update_ema = guard_callable(self._update_ema, self.watch)

    def _update_ema(self):
        self.ema += np.float32(DECAY) * (self.weight.numpy() - self.ema)

    def step(self, gradient=1.0):
        loss = self.scaler.scale((self.weight * gradient).sum())
        loss.backward()
        if self.how == "minimize":
            self.scaler.minimize(self.optimizer, loss)
        else:
            if self.how == "unscale":
                self.scaler.unscale_(self.optimizer)
                paddle.nn.utils.clip_grad_norm_([self.weight], 8.0)
            self.scaler.step(self.optimizer)
            if self.how != "no update":
                self.scaler.update()
        verdict = self.watch.after_step()
        left = self.weight.grad.numpy().copy()
        self.optimizer.clear_grad()
        self.schedule.step()
        self.update_ema()
        return verdict, left

    def velocity(self):
        return float(self.optimizer._accumulators["velocity"][self.weight.name].numpy()[0])


def check(loop, reference, verdict, left, found_inf):
    assert verdict.skipped == found_inf and verdict.updates == 1
    assert float(loop.scaler._scale) == reference.scale == loop.watch.state.scale
    assert list(loop.scaler.state_dict()["scale"]) == [reference.scale]
    if reference.dynamic:
        assert (loop.scaler._incr_count, loop.scaler._decr_count) == (reference.good, reference.bad)
    assert (loop.watch.state.skips, loop.watch.state.streak) == (reference.skips, reference.streak)
    assert loop.weight.numpy()[0] == np.float32(reference.weight)
    assert loop.velocity() == np.float32(reference.velocity)
    assert loop.schedule.last_epoch == reference.epoch
    assert loop.optimizer.get_lr() == LEARNING_RATE * 0.5 ** (reference.epoch // 3)
    assert loop.ema[0] == np.float32(reference.ema)
    assert loop.optimizer._get_auxiliary_var("found_inf") is False
    # a skip leaves no gradient behind, a good step leaves the caller's alone
    assert left[0] == (0.0 if found_inf else 1.0)


histories = st.lists(
    st.sampled_from([1.0, 1.0, 1.0, math.inf, -math.inf, math.nan]).map(float), min_size=1, max_size=24
)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    gradients=histories,
    scale=st.sampled_from([1.0, 2.0, 4.0, 1024.0, 2.0**16, 2.0**24]),
    incr_every=st.integers(1, 4),
    decr_every=st.integers(1, 3),
    floor=st.sampled_from([1.0, 2.0]),
    how=st.sampled_from(["step", "minimize", "unscale"]),
    attach=st.booleans(),
    dynamic=st.sampled_from([True, True, True, False]),
)
def test_a_thousand_random_histories(gradients, scale, incr_every, decr_every, floor, how, attach, dynamic):
    reference = Reference(max(scale, floor) if dynamic else scale, incr_every, decr_every, floor, dynamic)
    with real_scalers() as make, contextlib.redirect_stdout(io.StringIO()):
        scaler = make(
            init_loss_scaling=scale,
            incr_every_n_steps=incr_every,
            decr_every_n_nan_or_inf=decr_every,
            use_dynamic_loss_scaling=dynamic,
        )
        loop = Loop(scaler, how, floor, attach=attach)
        for gradient in gradients:
            verdict, left = loop.step(gradient)
            reference.step(not math.isfinite(gradient))
            check(loop, reference, verdict, left, not math.isfinite(gradient))
    summary = loop.watch.summary()
    expected = [step for step, gradient in enumerate(gradients, 1) if not math.isfinite(gradient)]
    assert loop.watch.record.skipped_steps() == expected and summary["skipped_steps"] == len(expected)


def test_natural_overflow_is_the_scales_doing_and_mends_itself(real_scaler, capsys):
    # a gradient of 2**10 overflows float32 at scales above 2**117
    scaler = real_scaler(init_loss_scaling=2.0**120)
    loop = Loop(scaler, "step", 1.0)
    verdicts = [loop.step(2.0**10)[0] for _ in range(4)]
    assert [verdict.skipped for verdict in verdicts] == [True, True, True, False]
    assert loop.watch.state.scale == 2.0**117
    assert capsys.readouterr().out.count("Found inf") == 3


def test_a_fixed_scale_is_watched_though_nobody_calls_update(real_scaler):
    loop = Loop(real_scaler(init_loss_scaling=8.0, use_dynamic_loss_scaling=False), "no update", 1.0)
    assert [loop.step(gradient)[0].skipped for gradient in (1.0, math.inf, 1.0)] == [False, True, False]
    assert loop.watch.state.scale == 8.0 and loop.watch.state.steps == 3


def test_inf_in_one_micro_batch_skips_the_whole_step_once(real_scaler):
    loop = Loop(real_scaler(init_loss_scaling=8.0), "step", 1.0)
    unscaled = []
    inner = loop.scaler._unscale
    loop.scaler._unscale = lambda optimizer: unscaled.append(1) or inner(optimizer)
    for bad in (None, 0, 2, None):
        for micro in range(3):
            gradient = math.inf if micro == bad else 1.0
            loop.scaler.scale((loop.weight * gradient).sum()).backward()
        loop.scaler.step(loop.optimizer)
        loop.scaler.update()
        verdict = loop.watch.after_step()
        assert verdict.skipped == (bad is not None) and verdict.updates == 1
        if bad is None:
            assert loop.weight.grad.numpy()[0] == 3.0
        loop.optimizer.clear_grad()
    assert len(unscaled) == 4 and loop.watch.state.skips == 2 and loop.watch.state.scale == 2.0


def test_two_updates_in_one_step_of_the_loop_are_told_once(real_scaler, caplog):
    loop = Loop(real_scaler(), "step", 1.0)
    for _ in range(2):
        for gradient in (1.0, math.inf):
            loop.scaler.scale((loop.weight * gradient).sum()).backward()
            loop.scaler.step(loop.optimizer)
            loop.scaler.update()
        verdict = loop.watch.after_step()
        assert verdict.skipped and verdict.updates == 2
    assert caplog.text.count("stepped 2 times in one step") == 1


def test_two_optimizers_on_one_scaler_count_as_one_step(real_scaler):
    loop = Loop(real_scaler(), "step", 1.0)
    other = paddle.nn.Linear(1, 1)
    second = paddle.optimizer.SGD(0.1, parameters=other.parameters())
    loop.scaler.scale((loop.weight * math.inf).sum() + other(paddle.ones([1, 1])).sum()).backward()
    loop.scaler.step(loop.optimizer)
    loop.scaler.step(second)
    loop.scaler.update()
    # Paddle keeps the flag of the last optimizer only
    assert found_inf(loop.scaler) is False
    verdict = loop.watch.after_step()
    assert verdict.skipped and verdict.updates == 1
    assert float(other.weight.grad.abs().sum()) == 0.0 and float(loop.weight.grad.abs().sum()) == 0.0


def test_found_inf_does_not_stick_when_amp_is_turned_off(real_scaler):
    def moves(watched):
        loop = Loop(real_scaler(), "step", 1.0, attach=watched)
        if watched:
            loop.step(math.inf)
        else:
            loop.scaler.scale((loop.weight * math.inf).sum()).backward()
            loop.scaler.step(loop.optimizer)
            loop.scaler.update()
            loop.optimizer.clear_grad()
        before = loop.weight.numpy().copy()
        (loop.weight * 1.0).sum().backward()
        loop.optimizer.step()
        return not (loop.weight.numpy() == before).all()

    assert not moves(watched=False), "Paddle mended it: the release can go"
    assert moves(watched=True)


@pytest.mark.parametrize("attach", [True, False])
def test_a_scaler_that_turns_itself_off_is_told_once_and_training_goes_on(real_scaler, attach):
    loop = Loop(real_scaler(), "step", 1.0, attach=attach)
    loop.step(math.inf)
    import paddle.amp.grad_scaler as grad_scaler

    grad_scaler.amp_global_state().amp_dtype = "bfloat16"
    try:
        with pytest.warns(UserWarning, match="GradScaler is disable"):
            verdict, _ = loop.step(1.0)
        assert [alert.kind for alert in verdict.alerts] == ["loss_scaling_off"]
        assert not verdict.skipped and loop.watch.metrics() == {}
        verdict, _ = loop.step(1.0)
        assert verdict.alerts == []
    finally:
        grad_scaler.amp_global_state().amp_dtype = "float16"
    assert loop.weight.numpy()[0] < 1.0 and loop.schedule.last_epoch == 2


def test_a_flag_from_before_the_watch_does_not_stick_under_a_scaler_that_is_off(real_scaler):
    for how in ("step", "minimize"):
        loop = Loop(real_scaler(), how, 1.0)
        loop.optimizer._set_auxiliary_var("found_inf", True)
        loop.scaler._enable = False
        loop.step(1.0)
        assert loop.weight.numpy()[0] < 1.0


def test_detach_gives_everything_back(real_scaler):
    scaler = real_scaler()
    before = dict(vars(scaler))
    loop = Loop(scaler, "step", 1.0)
    assert "step" in vars(scaler)
    with pytest.raises(RuntimeError, match="watched already"):
        LossScaleWatch(scaler, loop.optimizer, loop.model, load_config({}).loss_scale).attach()
    loop.step(math.inf)
    loop.optimizer._set_auxiliary_var("found_inf", True)
    loop.watch.detach()
    loop.watch.detach()
    assert vars(scaler).keys() == before.keys()
    assert loop.optimizer._get_auxiliary_var("found_inf") is False
    loop.weight.grad.set_value(np.array([math.inf], dtype="float32"))
    scaler.step(loop.optimizer)
    assert loop.watch.state.steps == 1


def test_wrappers_of_others_are_kept_on_both_sides(real_scaler):
    # fleet.distributed_scaler replaces _unscale on the instance, before or after the watch comes
    scaler, called = real_scaler(), []
    inner = scaler._unscale
    before = lambda optimizer: called.append("before") or inner(optimizer)
    scaler._unscale = before
    loop = Loop(scaler, "step", 1.0)
    loop.step(math.inf)
    loop.watch.detach()
    assert scaler._unscale is before
    loop.watch.attach()
    ours = scaler._unscale
    after = lambda optimizer: called.append("after") or ours(optimizer)
    scaler._unscale = after
    assert loop.step(math.inf)[0].skipped
    assert called == ["before", "after", "before"]
    loop.watch.detach()
    assert scaler._unscale is after and "step" not in vars(scaler)


def test_a_replaced_scaler_is_watched_and_the_old_one_let_go(real_scaler):
    first, second = real_scaler(), real_scaler(init_loss_scaling=4.0)
    loop = Loop(first, "step", 1.0)
    loop.step(math.inf)
    loop.watch.bind(second)
    loop.scaler = second
    assert "step" not in vars(first) and loop.watch.state.scale == 4.0
    verdict, _ = loop.step(math.inf)
    assert verdict.skipped and loop.watch.state.skips == 2 and loop.watch.state.scale == 2.0


def test_a_start_outside_of_the_bounds_is_put_right_and_told(real_scaler, caplog):
    caplog.set_level("INFO", "paddle_memcallbacks")
    low = Loop(real_scaler(init_loss_scaling=0.25), "step", 1.0)
    assert float(low.scaler._scale) == 1.0 and "was 0.25" in caplog.text
    high = Loop(real_scaler(init_loss_scaling=2.0**127), "step", 1.0)
    assert float(high.scaler._scale) == 2.0**126
    before = high.weight.numpy().copy()
    high.step(2.0**-10)
    assert not (high.weight.numpy() == before).all()
    fixed = Loop(real_scaler(init_loss_scaling=0.25, use_dynamic_loss_scaling=False), "step", 1.0)
    assert float(fixed.scaler._scale) == 0.25


def test_growth_stops_where_paddles_unscale_would_lose_every_gradient(real_scaler):
    loop = Loop(real_scaler(init_loss_scaling=2.0**123, incr_every_n_steps=1), "step", 1.0)
    told = [alert.kind for _ in range(6) for alert in loop.step(2.0**-30)[0].alerts]
    assert loop.watch.state.scale == 2.0**126 and loop.watch.state.skips == 0
    assert told == ["loss_scale_high"]
    assert loop.velocity() != 0.0


def test_healthy_500_steps_say_nothing(real_scaler, caplog):
    loop = Loop(real_scaler(), "step", 1.0)
    assert [alert for _ in range(500) for alert in loop.step(2.0**-8)[0].alerts] == []
    assert caplog.text == "" and loop.watch.summary()["phase"] == "normal"


def test_a_start_that_settles_is_information_only(real_scaler):
    # gradients of 2**104 overflow above 2**23: the first is skipped
    loop = Loop(real_scaler(init_loss_scaling=2.0**24), "step", 1.0)
    alerts = [alert for _ in range(60) for alert in loop.step(2.0**108)[0].alerts]
    assert loop.watch.state.scale == 2.0**19
    assert [alert.kind for alert in alerts] == ["loss_scale_settling", "loss_scale_settled"]
    assert {alert.severity for alert in alerts} == {"info"}


@pytest.mark.parametrize("limit", [1, 3, 5])
@pytest.mark.parametrize("action", ["warn", "checkpoint", "stop", "raise"])
def test_a_diverging_run_is_a_storm_within_the_limit_and_its_action_runs(real_scaler, limit, action):
    from paddle_memcallbacks.loss_scale import LossScaleError

    loop = Loop(real_scaler(), "step", 1.0)
    loop.watch.detach()
    asked = []
    config = load_config({"loss_scale": {"max_consecutive_skips": limit, "on_storm": action}}).loss_scale
    loop.watch = LossScaleWatch(
        loop.scaler, loop.optimizer, loop.model, config, on_action=lambda what, alert: asked.append((what, alert))
    )
    loop.watch.attach()
    for _ in range(10):
        loop.step(1.0)
    for _ in range(limit - 1):
        assert loop.step(math.nan)[0].skipped
    assert asked == []
    if action == "raise":
        with pytest.raises(LossScaleError, match=rf"step {10 + limit}: skipped {limit} update") as caught:
            loop.step(math.nan)
        verdict = caught.value.verdict
    else:
        verdict, _ = loop.step(math.nan)
    (storm,) = [alert for alert in verdict.alerts if alert.kind == "loss_scale_storm"]
    assert storm.severity == ("error" if action in ("stop", "raise") else "warning")
    assert [what for what, _ in asked] == ([action] if action in ("checkpoint", "stop") else [])
    assert asked == [] or asked[0][1] == storm
    recorded = [entry for entry in loop.watch.summary()["actions"] if entry["alert"] == "loss_scale_storm"]
    assert recorded == [{"step": 10 + limit, "action": action, "alert": "loss_scale_storm"}]
    # the gradients are gone whatever the action
    assert float(loop.weight.grad.abs().sum()) == 0.0


def test_the_defaults_never_stop_a_run(real_scaler):
    asked = []
    loop = Loop(real_scaler(), "step", 1.0)
    loop.watch._on_action = lambda what, alert: asked.append((what, alert.kind))
    alerts = [alert for _ in range(100) for alert in loop.step(math.nan)[0].alerts]
    assert asked == [("checkpoint", "loss_scale_storm")]
    assert loop.watch.state.scale == 1.0 and loop.watch.summary()["phase"] == "floor"
    assert {alert.severity for alert in alerts} == {"info", "warning"} and len(alerts) < 10
