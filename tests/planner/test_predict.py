"""Predicted against measured peaks, on every shape of graph: random sets of units, plain paddle."""

from __future__ import annotations

import gc
import random

import paddle
import pytest

from paddle_memcallbacks.planner import predict_peak, profile_step
from paddle_memcallbacks.planner.build import build_size, unexplained_bytes
from paddle_memcallbacks.planner.measure import measure_step, measured_peak
from paddle_memcallbacks.planner.measured import Profile
from paddle_memcallbacks.planner.peak import segment_peaks
from paddle_memcallbacks.planner.profiler import StepProfiler, build_runs
from paddle_memcallbacks.planner.state import TrainingState
from paddle_memcallbacks.recompute import find_units
from tests.planner.models import PLAIN, Case, plain_case, seed_all

# of the peak; the promise is 0.5 % over and 0.2 % under, what is reached is exact but for parallel branches
OVER, UNDER = 0.0005, 0.0002


def check(case: Case, sets: int, *, over: float = OVER, under: float = UNDER) -> Profile:
    """Compare on nothing, everything and random sets; every step starts from the same state."""
    case.model.train()
    optimizer = paddle.optimizer.AdamW(1e-4, parameters=case.model.parameters())
    step = case.step(optimizer)
    profile = profile_step(case.model, step, case.units, optimizer)
    units = case.units or find_units(case.model)
    assert {unit.name for unit in profile.units} == set(units)
    step()
    state = TrainingState(case.model, [optimizer])
    rng = random.Random(5)
    outer = [name for name in units if not any(name.startswith(f"{other}.") for other in units)]
    picks = [[], outer, *([n for n in units if rng.random() < rng.choice((0.3, 0.6))] for _ in range(sets))]
    for pick in picks:
        chosen = [name for name in pick if not any(name.startswith(f"{other}.") for other in pick)]
        state.rewind()
        measured = measured_peak(case.model, step, chosen)
        error = predict_peak(profile, chosen) / measured - 1
        assert -under <= error <= over, (chosen, error)
    return profile


@pytest.mark.parametrize("name", sorted(set(PLAIN) - {"resnet50", "densenet"}))
def test_random_sets(name: str) -> None:
    gc.collect()
    seed_all()
    check(plain_case(name, rows=3), sets=2)


@pytest.mark.parametrize("name", ["mobilenet_v2", "unet", "dicts", "frozen"])
def test_every_segment_of_mixed_steps_is_exact(name: str) -> None:
    gc.collect()
    seed_all()
    case = plain_case(name, rows=3)
    case.model.train()
    optimizer = paddle.optimizer.AdamW(1e-4, parameters=case.model.parameters())
    step = case.step(optimizer)
    units = case.units or find_units(case.model)
    layers = {unit: dict(case.model.named_sublayers())[unit] for unit in units}
    with StepProfiler(case.model, optimizer, units=units) as profiler:
        runs = build_runs(profiler, step, warm=False)
    assert unexplained_bytes(runs) == 0
    size = build_size(runs, 3, profiler.excludes)
    step()
    state = TrainingState(case.model, [optimizer])
    rng = random.Random(1)
    for _ in range(4):
        chosen = [unit for unit in units if rng.random() < 0.5]
        state.rewind()
        markers, _ = measure_step(case.model, layers, optimizer, step, chosen)
        measured = {marker.key: marker.peak_bytes for marker in markers}
        keys = [segment.key for segment in size.segments]
        assert measured == dict(zip(keys, segment_peaks(size, chosen), strict=True)), chosen


def test_recompute_saves_in_every_model_that_it_can_save_in() -> None:
    for name in ("vit", "unet", "encoder_decoder"):
        seed_all()
        case = plain_case(name, rows=3)
        optimizer = paddle.optimizer.SGD(1e-4, parameters=case.model.parameters())
        profile = profile_step(case.model, case.step(optimizer), case.units, optimizer)
        everything = [unit.name for unit in profile.units]
        assert predict_peak(profile, everything) < 0.95 * predict_peak(profile)


def test_nested_choices() -> None:
    gc.collect()
    seed_all()
    case = plain_case("blocks", rows=3)
    case.units = [f"blocks.{i}{part}" for i in range(6) for part in ("", ".attention", ".mlp")]
    profile = check(case, sets=6)
    inner = [f"blocks.{i}.mlp" for i in range(6)]
    assert predict_peak(profile, inner) < predict_peak(profile)
    assert profile.sizes[0].unit("blocks.0").excludes == {"blocks.0.attention", "blocks.0.mlp"}
    with pytest.raises(ValueError, match="nested"):
        predict_peak(profile, ["blocks.0", "blocks.0.mlp"])


def test_two_micro_batches_in_a_step() -> None:
    gc.collect()
    seed_all()
    case = plain_case("vit", rows=4)
    whole = case.batch

    def step_of(optimizer: paddle.optimizer.Optimizer) -> object:
        def run_step() -> int:
            for part in (slice(0, 2), slice(2, 4)):
                (case.loss(case.model, {name: value[part] for name, value in whole.items()}) / 2).backward()
            optimizer.step()
            optimizer.clear_grad()
            return 2

        return run_step

    case.step = step_of  # type: ignore[method-assign, assignment]
    profile = check(case, sets=3)
    assert profile.sizes[0].micro_batches == 2
    assert profile.units[0].calls == 1


def test_dropped_gradients_are_predicted_too() -> None:
    gc.collect()
    seed_all()
    case = plain_case("blocks", rows=3)

    def step_of(optimizer: paddle.optimizer.Optimizer) -> object:
        def run_step() -> None:
            case.loss(case.model, case.batch).backward()
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)

        return run_step

    case.step = step_of  # type: ignore[method-assign, assignment]
    check(case, sets=3)


def test_a_caller_that_keeps_every_hidden_state() -> None:
    gc.collect()
    seed_all()
    case = plain_case("blocks", rows=3)
    kept: list[paddle.Tensor] = []
    for block in case.model.blocks:
        block.register_forward_post_hook(lambda layer, inputs, output: kept.append(output))

    def loss(model: paddle.nn.Layer, batch: dict[str, paddle.Tensor]) -> paddle.Tensor:
        kept.clear()
        return model(batch["x"]).mean()

    case.loss = loss
    check(case, sets=3)
