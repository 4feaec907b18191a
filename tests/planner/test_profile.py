"""Profiling: what it costs, and that training afterwards goes on as if it had not been."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_memcallbacks as pm
from paddle_memcallbacks import memory
from paddle_memcallbacks.planner import ProfileError, predict_peak, profile_step
from paddle_memcallbacks.planner.profiler import MOST_STEPS, levels_of
from paddle_memcallbacks.planner.sizes import doubling, longest_first, profile_sizes
from tests.planner.models import Block, Case, Chain, plain_case, seed_all


def everything(model: Any, optimizer: Any, scheduler: Any) -> dict[str, Any]:
    """All that a step may change, as values."""
    values = {f"w {k}": np.array(v.numpy()) for k, v in model.state_dict().items()}
    values |= {f"o {k}": np.array(v.numpy()) for k, v in optimizer.state_dict().items() if hasattr(v, "numpy")}
    values |= {f"g {p.name}": None if p.grad is None else np.array(p.grad.numpy()) for p in model.parameters()}
    values["lr"] = scheduler.state_dict()
    values["rng"] = (random.random(), np.random.rand(), paddle.rand([1]).item())
    return values


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, other[key], err_msg=key)
        else:
            assert value == other[key], key


def run(name: str, profiled_after: int, optimizer_class: Any = paddle.optimizer.AdamW) -> dict[str, Any]:
    """Four training steps, profiled before step ``profiled_after`` (4: never), and all state after them."""
    with paddle.utils.unique_name.guard():
        seed_all()
        case = plain_case(name, rows=2)
        scheduler = paddle.optimizer.lr.StepDecay(1e-2, step_size=1)
        optimizer = optimizer_class(scheduler, parameters=case.model.parameters(), weight_decay=0.01)

        def step() -> None:
            case.step(optimizer)()
            scheduler.step()

        for index in range(4):
            if index == profiled_after:
                profile_step(case.model, step, case.units, optimizer, keepers=[scheduler])
            step()
        return everything(case.model, optimizer, scheduler)


@pytest.mark.parametrize("name", ["blocks", "unet"])
@pytest.mark.parametrize("when", [0, 2])
def test_training_goes_on_bit_for_bit(name: str, when: int) -> None:
    assert_equal(run(name, when), run(name, 4))


@pytest.mark.parametrize("kind", [paddle.optimizer.SGD, paddle.optimizer.Momentum, paddle.optimizer.Lamb])
def test_other_optimizers_go_on_bit_for_bit(kind: Any) -> None:
    def make(rate: Any, parameters: Any, weight_decay: float) -> Any:
        return kind(learning_rate=rate, parameters=parameters)

    assert_equal(run("residual", 0, make), run("residual", 4, make))


def test_nothing_is_left_behind() -> None:
    seed_all()
    case = plain_case("unet", rows=2)
    optimizer = paddle.optimizer.Adam(parameters=case.model.parameters())
    gc.collect()
    before = memory.allocated_bytes()
    profile_step(case.model, case.step(optimizer), case.units, optimizer)
    gc.collect()
    assert memory.allocated_bytes() == before
    assert optimizer.state_dict().keys() <= {"LR_Scheduler"}
    assert all(parameter.grad is None for parameter in case.model.parameters())
    assert "step" not in optimizer.__dict__
    assert not any(layer._forward_pre_hooks or layer._forward_post_hooks for layer in case.model.sublayers())


def test_gradients_that_stood_are_put_back() -> None:
    seed_all()
    case = plain_case("residual", rows=2)
    optimizer = paddle.optimizer.SGD(parameters=case.model.parameters())
    case.loss(case.model, case.batch).backward()
    before = [np.array(parameter.grad.numpy()) for parameter in case.model.parameters()]
    profile_step(case.model, case.step(optimizer), case.units)
    for parameter, gradient in zip(case.model.parameters(), before, strict=True):
        np.testing.assert_array_equal(parameter.grad.numpy(), gradient)


def test_an_error_in_the_step_leaves_the_state_alone() -> None:
    seed_all()
    case = plain_case("residual", rows=2)
    optimizer = paddle.optimizer.Adam(parameters=case.model.parameters())
    before = {k: np.array(v.numpy()) for k, v in case.model.state_dict().items()}
    calls: list[int] = []

    def step() -> None:
        calls.append(1)
        case.step(optimizer)()
        if len(calls) == 3:
            raise KeyError("in the third step")

    with pytest.raises(KeyError, match="third"):
        profile_step(case.model, step, case.units, optimizer)
    for key, value in case.model.state_dict().items():
        np.testing.assert_array_equal(before[key], value.numpy())
    assert "step" not in optimizer.__dict__
    assert not case.model.blocks[0]._forward_pre_hooks


@pytest.mark.parametrize("nested", [False, True])
def test_at_most_five_steps(nested: bool) -> None:
    seed_all()
    case = plain_case("blocks", rows=2)
    units = [f"blocks.{i}{part}" for i in range(6) for part in (("", ".attention", ".mlp") if nested else ("",))]
    optimizer = paddle.optimizer.SGD(parameters=case.model.parameters())
    steps: list[int] = []
    seen: list[tuple[int, int]] = []

    def step() -> None:
        steps.append(1)
        case.step(optimizer)()

    profile = profile_step(
        case.model, step, units, optimizer, on_progress=lambda done, total, text: seen.append((done, total))
    )
    assert len(steps) <= MOST_STEPS
    assert seen[-1][0] == len(steps)
    unit = profile.units[0]
    assert unit.name == "blocks.0" and unit.saved_bytes > 0
    assert unit.forward_seconds > 0 and unit.recompute_seconds > 0


def test_units_are_found_and_idle_ones_save_nothing() -> None:
    seed_all()
    case = plain_case("shared", rows=2)
    profile = profile_step(case.model, case.step(paddle.optimizer.SGD(parameters=case.model.parameters())), case.units)
    calls = {unit.name: unit.calls for unit in profile.units}
    assert calls == {"blocks.0": 2, "blocks.1": 2, "blocks.2": 2, "blocks.3": 0}
    assert profile.units[-1].name == "blocks.3" and profile.units[-1].saved_bytes == 0
    assert predict_peak(profile, ["blocks.3"]) == predict_peak(profile)
    seed_all()
    case = plain_case("blocks", rows=2)
    profile = profile_step(case.model, case.step(paddle.optimizer.SGD(parameters=case.model.parameters())))
    assert [unit.name for unit in profile.units] == [f"blocks.{i}" for i in range(6)]


def test_static_bytes_are_weights_gradients_and_moments() -> None:
    seed_all()
    gc.collect()
    case = plain_case("blocks", rows=2)
    optimizer = paddle.optimizer.Adam(parameters=case.model.parameters())
    other = memory.allocated_bytes() - sum(4 * p.size for p in case.model.parameters())
    profile = profile_step(case.model, case.step(optimizer), optimizer=optimizer)
    weights = sum(4 * int(p.size) for p in case.model.parameters())
    assert profile.static_bytes - other == pytest.approx(4 * weights, rel=0.01)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    model = paddle.nn.Linear(3, 3)
    with pytest.raises(ProfileError, match="no repeated blocks"):
        profile_step(model, lambda: None)
    with pytest.raises(ProfileError, match="no layer 'missing'"):
        profile_step(model, lambda: None, ["missing"])
    monkeypatch.setattr(memory, "can_reset_peak", lambda: False)
    with pytest.raises(ProfileError, match="Paddle 3.0"):
        profile_step(model, lambda: None, ["missing"])


def test_levels_hold_no_nested_units() -> None:
    assert levels_of(["a", "a.b", "c", "a.b.d", "ab"]) == [["a", "c", "ab"], ["a.b"], ["a.b.d"]]


class FakeRunner:
    """Runs a case at any size; fails like a device of which ``limit`` rows are the most."""

    def __init__(self, case: Case, optimizer: Any, rows: int, **options: Any) -> None:
        self.case, self.optimizer, self.rows, self.extra_bytes = case, optimizer, rows, 0
        self.limit: int | None = options.get("limit")
        self.plain_limit: int | None = options.get("plain_limit", self.limit)
        self.whole_only: bool = options.get("whole_only", False)
        self.sizes: list[int] = []

    def __call__(self, micro_batch_size: int) -> int:
        self.sizes.append(micro_batch_size)
        recomputed = type(self.case.model.blocks[0]) is not Block
        limit = self.limit if recomputed else self.plain_limit
        if limit is not None and micro_batch_size > limit:
            raise MemoryError("(ResourceExhausted) Fail to alloc memory of 1 size, error code is 12.")
        if self.whole_only and micro_batch_size < self.rows:
            raise type("MicroBatchError", (RuntimeError,), {})("this loss cannot be taken apart")
        slices = min(2, -(-self.rows // micro_batch_size))
        for i in range(slices):
            part = slice(i * micro_batch_size, (i + 1) * micro_batch_size)
            self.case.loss(self.case.model, {k: v[part] for k, v in self.case.batch.items()}).backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return slices


def runner_of(rows: int, **options: Any) -> FakeRunner:
    seed_all()
    case = plain_case("blocks", rows)
    return FakeRunner(case, paddle.optimizer.AdamW(parameters=case.model.parameters()), rows, **options)


def test_sizes_go_up_from_one_and_lie_on_a_line() -> None:
    runner = runner_of(12)
    profile = profile_sizes(runner.case.model, runner.optimizer, runner)
    assert [size.micro_batch_size for size in profile.sizes] == [1, 2, 4, 12]
    assert runner.sizes == sorted(runner.sizes)
    units = [unit.name for unit in profile.units]
    for size in (3, 6):
        measured = profile_sizes(runner.case.model, runner.optimizer, runner, [size])
        for chosen in ([], units, units[::2]):
            predicted = predict_peak(profile, chosen, size)
            assert predicted == pytest.approx(predict_peak(measured, chosen, size), rel=0.002), (size, chosen)


def test_running_out_of_memory_is_a_measurement() -> None:
    runner = runner_of(8, limit=4)
    profile = profile_sizes(runner.case.model, runner.optimizer, runner)
    assert profile.too_large == 8
    assert (pm.solve(profile, 10**12).micro_batch_size or 0) <= 4
    assert any("ran out of memory" in note for note in profile.notes)
    with pytest.raises(ProfileError, match="micro-batches of 1 ran out of memory"):
        nothing = runner_of(8, limit=0)
        profile_sizes(nothing.case.model, nothing.optimizer, nothing)


def test_sizes_that_fit_only_recomputed_are_planned_on_the_line() -> None:
    runner = runner_of(16, limit=8, plain_limit=2)
    profile = profile_sizes(runner.case.model, runner.optimizer, runner)
    assert [size.micro_batch_size for size in profile.sizes] == [1, 2]
    assert profile.too_large == 16 and 1.0 <= profile.correction < 1.002
    assert "micro-batches of 4 fit only recomputed" in profile.notes
    assert pm.solve(profile, 10**12, micro_batch_sizes=[8]).micro_batch_size == 8
    runner = runner_of(8, plain_limit=1)
    profile = profile_sizes(runner.case.model, runner.optimizer, runner)
    assert [size.micro_batch_size for size in profile.sizes] == [1] and profile.too_large == 2


def test_the_sizes_that_are_profiled() -> None:
    assert [doubling(rows) for rows in (1, 2, 3, 4, 8, 12)] == [
        [1],
        [1, 2],
        [1, 3],
        [1, 2, 4],
        [1, 2, 4, 8],
        [1, 2, 4, 12],
    ]


def test_a_loss_that_cannot_be_sliced_is_profiled_whole() -> None:
    runner = runner_of(6, whole_only=True)
    profile = profile_sizes(runner.case.model, runner.optimizer, runner)
    assert [size.micro_batch_size for size in profile.sizes] == [6]
    assert any("cannot be taken apart" in note for note in profile.notes)
    assert pm.solve(profile, 10**12).micro_batch_size == 6


def session_of(rows: int, config: dict[str, Any]) -> tuple[Any, dict[str, paddle.Tensor], Any]:
    seed_all()
    model = Chain([Block(i % 2 == 0) for i in range(5)], paddle.nn.Linear(64, 10))
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters())
    session = pm.Session(config, model=model, optimizer=optimizer, writers=[])
    batch = {"x": paddle.randn([rows, 24, 64]), "y": paddle.randint(0, 10, [rows])}
    return session, batch, lambda m, b: paddle.nn.functional.cross_entropy(m(b["x"]).mean(1), b["y"])


def test_a_session_is_profiled_and_its_plans_hold() -> None:
    session, batch, loss = session_of(8, {"gradient_accumulation": {"micro_batch_size": 2}})
    before = {k: np.array(v.numpy()) for k, v in session.model.state_dict().items()}
    gc.collect()
    profile = pm.profile(session, batch, loss)
    for key, value in session.model.state_dict().items():
        np.testing.assert_array_equal(before[key], value.numpy())
    assert session.loop.micro_batch_size == 2
    units = [unit.name for unit in profile.units]
    session.step(batch, loss)
    for size, chosen in ((1, []), (2, units), (3, units[::2]), (4, units[:2]), (8, units[1:]), (8, [])):
        session.loop.micro_batch_size = size
        with pm.recompute_units(session.model, chosen):
            measured = session.step(batch, loss).peak_bytes
        predicted = predict_peak(profile, chosen, size)
        assert -0.002 * measured <= predicted - measured <= 0.005 * measured, (size, chosen)
    high, low = predict_peak(profile, [], 8), predict_peak(profile, units, 1)
    for budget in range(int(low / 0.97) + 1, int(high * 1.1), (high - low) // 6):
        plan = pm.solve(profile, budget)
        session.loop.micro_batch_size = plan.micro_batch_size
        with pm.recompute_units(session.model, plan.recompute):
            assert session.step(batch, loss).peak_bytes <= budget


def test_a_session_that_recomputes_is_profiled_without_and_recomputes_again() -> None:
    session, batch, loss = session_of(4, {"recompute": {"enable": True, "layers": ["blocks.0"]}})
    session.begin()
    assert session.switch.active
    profile = pm.profile(session, batch, loss, micro_batch_sizes=[2])
    assert session.switch.active and session.switch.names == ("blocks.0",)
    assert predict_peak(profile, []) > predict_peak(profile, ["blocks.0"])


def test_the_longest_rows_come_first() -> None:
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]])
    batch = {"input_ids": paddle.to_tensor(mask * 5), "attention_mask": paddle.to_tensor(mask)}
    assert longest_first(batch, 4) == [1, 3, 0, 2]
    assert longest_first({"image": paddle.zeros([3, 2])}, 3) == [0, 1, 2]
