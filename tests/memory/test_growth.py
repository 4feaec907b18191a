"""Growth is told from noise, jumps and caches that fill up; without paddle."""

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_memcallbacks.growth import GrowthWatch, growth_bytes_per_step

MIB = 2**20
BASE = 500 * MIB


def series(grow, noise=lambda rng: 0, steps=400, seed=0):
    rng = random.Random(seed)
    return [(step, int(BASE + grow(step) + noise(rng))) for step in range(1, steps + 1)]


def alerts_of(samples, **settings):
    watch = GrowthWatch(**settings)
    return [alert for step, size in samples if (alert := watch.observe(step, size)) is not None]


# noise of bounded range, in bytes: its shape may be anything
noises = st.sampled_from(
    [
        lambda rng: rng.uniform(-1, 1),
        lambda rng: rng.choice([-1, 1]),
        lambda rng: rng.choice([0, 0, 0, 0, 0, 0, 0, 1]),
        lambda rng: -(rng.random() ** 8),
        lambda rng: max(-1.0, min(1.0, rng.gauss(0, 0.3))),
        lambda rng: math.sin(rng.uniform(0, 6.3)),
    ]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(noise=noises, scale=st.floats(1, 64 * MIB), seed=st.integers(0, 2**32))
def test_noise_is_never_growth(noise, scale, seed):
    assert alerts_of(series(lambda step: 0, lambda rng: scale * noise(rng), steps=2000, seed=seed)) == []


@settings(max_examples=150, deadline=None, derandomize=True)
@given(noise=noises, slope=st.floats(8192, 8 * MIB), ratio=st.floats(0, 0.45), seed=st.integers(0, 2**32))
def test_growth_above_the_noise_is_told_within_one_window(noise, slope, ratio, seed):
    """The noise's range, 2 * ratio * slope, is less than one step's growth."""
    samples = series(lambda step: slope * step, lambda rng: ratio * slope * noise(rng), steps=35, seed=seed)
    (alert,) = alerts_of(samples)
    assert alert.step == 35
    assert alert.data["bytes_per_step"] == pytest.approx(slope, rel=0.2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(noise=noises, doublings=st.integers(1, 6), slope=st.floats(8192, MIB), seed=st.integers(0, 2**32))
def test_growth_below_the_noise_is_told_later(noise, doublings, slope, seed):
    """Growth within 2**k steps exceeds the noise's range: told after 1.5 windows of as many steps."""
    scale = 0.49 * slope * 2**doublings
    steps = 3 + 48 * 2**doublings
    (alert,) = alerts_of(series(lambda step: slope * step, lambda rng: scale * noise(rng), steps=steps, seed=seed))
    assert alert.kind == "memory_growth"


@pytest.mark.parametrize("every", [2, 5, 10, 50])
def test_a_leak_of_once_in_many_steps(every):
    (alert,) = alerts_of(series(lambda step: MIB * (step // every), steps=3 + 96 * every))
    assert alert.data["bytes_per_step"] == pytest.approx(MIB / every, rel=0.25)


@pytest.mark.parametrize("jump_at", range(2, 40))
def test_a_jump_is_no_growth(jump_at):
    jump = lambda step: 100 * MIB if step >= jump_at else 0
    assert alerts_of(series(jump)) == []
    assert alerts_of(series(jump, lambda rng: rng.uniform(-MIB, MIB), seed=jump_at)) == []


def test_two_jumps_in_one_window():
    assert alerts_of(series(lambda step: 50 * MIB * ((step >= 8) + (step >= 12)))) == []


@pytest.mark.parametrize("steps_to_half", [1, 3, 5])
def test_a_cache_that_fills_up_is_no_growth(steps_to_half):
    assert alerts_of(series(lambda step: 100 * MIB * (1 - 0.5 ** (step / steps_to_half)), steps=200)) == []


@pytest.mark.parametrize("period", range(2, 33))
def test_a_sawtooth_is_no_growth(period):
    for noise in (lambda rng: 0, lambda rng: rng.uniform(-MIB / 2, MIB / 2)):
        assert alerts_of(series(lambda step: MIB * (step % period), noise, steps=3000, seed=period)) == []


def test_falling_memory_is_no_growth():
    assert alerts_of(series(lambda step: -MIB * step)) == []


def test_the_first_steps_are_left_out():
    rises = lambda step: 100 * MIB * min(step, 3)
    assert alerts_of(series(rises)) == []
    assert alerts_of(series(lambda step: 100 * MIB * min(step, 40), steps=39), warm_up=38) == []


def test_it_is_told_once():
    assert len(alerts_of(series(lambda step: MIB * step, steps=1000))) == 1


@pytest.mark.parametrize(("bytes_a_step", "told"), [(4000, 0), (4200, 1)])
def test_small_growth_is_not_told(bytes_a_step, told):
    assert len(alerts_of(series(lambda step: bytes_a_step * step))) == told


def test_the_alert_says_how_much_and_what_to_do():
    (alert,) = alerts_of(series(lambda step: 2 * MIB * step))
    assert (alert.kind, alert.severity) == ("memory_growth", "warning")
    assert "2.000 MiB a step" in alert.message
    assert "no_grad" in alert.remedy


def test_slope_is_the_least_squares_one():
    samples = [(step, BASE + 3 * step + (step % 2)) for step in range(10, 42, 2)]
    assert growth_bytes_per_step(samples) == pytest.approx(3.0)


def test_too_few_samples():
    samples = [(step, BASE + MIB * step) for step in range(8)]
    assert growth_bytes_per_step(samples) == pytest.approx(MIB)
    assert growth_bytes_per_step(samples[:7]) is None
    assert growth_bytes_per_step([]) is None
    assert growth_bytes_per_step([(1, size) for _, size in samples]) is None


def test_memory_of_the_watch_is_bounded():
    watch = GrowthWatch()
    for step in range(20_000):
        watch.observe(step, BASE + (step * 7919) % 1000)
    assert sum(map(len, watch._levels)) < 32 * 16


def test_needs_no_paddle():
    code = "import sys; from paddle_memcallbacks import growth; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
