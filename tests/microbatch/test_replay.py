"""Running out of memory: the same batch again with half the micro-batch, from the same start, with nothing pinned."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.base import core
from paddle.distributed.fleet.utils import recompute

from paddle_memcallbacks.microbatch import MicroBatchLoop
from paddle_memcallbacks.oom import OutOfMemory, is_oom
from tests.microbatch.conftest import Runner, random_states, same_bits

HUGE = 1 << 44
TEXT = "(ResourceExhausted) Fail to alloc memory of 70368744177664 size, error code is 12."


def allocated() -> int:
    gc.collect()
    return int(core.host_memory_stat_current_value("Allocated", 0))


class Hungry(paddle.nn.Layer):
    """Runs out of memory above so many rows in training, the way it is told: injected, real, or within backward."""

    def __init__(self, most_rows: int, way: str = "injected", width: int = 16) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(6, width)
        self.norm = paddle.nn.BatchNorm1D(width)
        self.drop = paddle.nn.Dropout(0.5)
        self.second = paddle.nn.Linear(width, 4)
        self.most_rows, self.way = most_rows, way
        self.rows: list[int] = []
        self.in_backward = False

    def hidden(self, x: paddle.Tensor) -> paddle.Tensor:
        too_many = x.shape[0] > self.most_rows and paddle.is_grad_enabled()
        if too_many and (self.way == "real" or (self.way in ("reentrant", "hooks") and self.in_backward)):
            paddle.zeros([HUGE])
        self.in_backward = True
        # the failing try has drawn numbers and moved the running statistics by now
        h = self.drop(self.norm(self.first(x)))
        if too_many and self.way == "injected":
            raise MemoryError(TEXT)
        return h

    def forward(self, batch: dict[str, Any]) -> paddle.Tensor:
        x = batch["x"]
        if paddle.is_grad_enabled():
            self.rows.append(x.shape[0])
        self.in_backward = False
        if self.way in ("reentrant", "hooks") and paddle.is_grad_enabled():
            x.stop_gradient = False
            h = recompute(self.hidden, x, use_reentrant=self.way == "reentrant", preserve_rng_state=False)
        else:
            h = self.hidden(x)
        np.random.rand()
        return F.cross_entropy(self.second(h), batch["y"])


def batch_of(rows: int = 8) -> dict[str, paddle.Tensor]:
    return {"x": paddle.randn([rows, 6]), "y": paddle.arange(rows) % 4}


@pytest.mark.parametrize("way", ["injected", "real", "reentrant", "hooks"])
def test_the_batch_is_replayed_until_it_fits_and_the_size_stays(way: str) -> None:
    model = Hungry(2, way)
    runner = Runner(model, model)
    loop = runner.loop()
    outcome = runner.run(loop, batch_of())
    assert model.rows[-4:] == [2, 2, 2, 2]
    assert (outcome.micro_batches, outcome.micro_batch_size, outcome.replays) == (4, 2, 2)
    assert (loop.micro_batch_size, loop.oom_count) == (2, 2)
    model.rows.clear()
    assert runner.run(loop, batch_of()).replays == 0
    assert model.rows == [2, 2, 2, 2]
    assert all(parameter.grad is not None for parameter in model.parameters() if not parameter.stop_gradient)


def test_gradients_stay_on_after_an_error_in_a_recomputed_units_second_pass() -> None:
    """Paddle leaves its tracer without gradients where a saved-tensor hook raises."""
    model = Hungry(2, "hooks")
    runner = Runner(model, model)
    with pytest.raises(OutOfMemory):
        runner.run(runner.loop(4, on_oom="raise"), batch_of())
    assert paddle.is_grad_enabled()
    model.most_rows = 100
    runner.run(runner.loop(4), batch_of())
    assert model.first.weight.grad is not None


def test_a_replay_is_bit_identical_to_having_used_the_smaller_size() -> None:
    """Dropout, BatchNorm's statistics, gradients left by the slices that fitted: all are as if nothing had happened."""

    def trained(most_rows: int, size: int | None) -> Any:
        paddle.seed(5)
        np.random.seed(5)
        model = Hungry(most_rows)
        runner = Runner(model, model)
        optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
        loop = runner.loop(size)
        for _ in range(3):
            runner.run(loop, batch_of())
            optimizer.step()
            optimizer.clear_grad()
        return runner.state(), random_states(), loop.micro_batch_size

    small = trained(100, 2)
    for other in (trained(2, 4), trained(2, None), trained(2, 8)):
        assert same_bits(other[0], small[0])
        assert other[1] == small[1]
        assert other[2] == 2
    assert not same_bits(trained(100, 4)[0], small[0])


def test_gradients_of_a_failed_try_are_gone() -> None:
    """The third slice fails once: with the first two's gradients left in, the sum would be too large."""
    model = paddle.nn.Linear(6, 4)
    calls: list[int] = []

    def compute_loss(batch: Any) -> paddle.Tensor:
        if paddle.is_grad_enabled():
            calls.append(batch["x"].shape[0])
            if len(calls) == 3:
                raise MemoryError(TEXT)
        return F.cross_entropy(model(batch["x"]), batch["y"])

    runner = Runner(model, compute_loss)
    batch = batch_of()
    whole = {}
    for held in (False, True):
        calls[:] = [0] * 10
        runner.native(batch)
        whole = runner.take_gradients()
        calls.clear()
        if held:
            # clear_grad of an optimizer leaves zeros, not None
            runner.native(batch)
            calls.clear()
            model.clear_gradients()
        outcome = runner.run(runner.loop(2), batch)
        assert calls == [2, 2, 2] + [1] * 8
        assert outcome.replays == 1
        found = runner.take_gradients()
        assert all(np.allclose(found[name], whole[name], rtol=1e-5, atol=1e-7) for name in whole)


@pytest.mark.parametrize("in_backward", [False, True])
def test_nothing_of_the_failed_try_stays_allocated(in_backward: bool) -> None:
    """A live exception pins the activations of its frames: 1,024 x 4,096 floats are 16 MiB, several times over."""
    model = Hungry(10_000, width=4096)
    failing_rows = 1024
    seen: list[int] = []
    pinned: list[int] = []

    def second_half(h: paddle.Tensor) -> paddle.Tensor:
        held = [h * 2.0, h * 3.0]
        if h.shape[0] == failing_rows and (model.in_backward or not in_backward):
            pinned.append(allocated() - base)
            paddle.zeros([HUGE])
        model.in_backward = True
        return model.second(held[0] + held[1])

    def compute_loss(batch: Any) -> paddle.Tensor:
        if paddle.is_grad_enabled() and batch["x"].shape[0] < failing_rows:
            seen.append(allocated() - base)
        h = model.hidden(batch["x"])
        model.in_backward = False
        out = (
            recompute(second_half, h, use_reentrant=False, preserve_rng_state=False) if in_backward else second_half(h)
        )
        return F.cross_entropy(out, batch["y"])

    runner = Runner(model, compute_loss)
    loop = runner.loop()
    base = 0
    runner.run(loop, batch_of(16))
    model.clear_gradients()
    seen.clear()
    batch = batch_of(failing_rows)
    base = allocated()
    assert runner.run(loop, batch).replays == 1
    assert pinned[0] > 32 * 2**20
    assert seen[0] < 2**20


def test_one_row_that_does_not_fit_ends_in_the_report() -> None:
    model = Hungry(0)
    runner = Runner(model, model)
    loop = runner.loop(4)
    loop.oom_notes = lambda: ["weights + gradients + moments = 0.10 GiB"]
    batch = batch_of()
    before = random_states()
    state = runner.state()
    with pytest.raises(OutOfMemory) as stopped:
        runner.run(loop, batch)
    text = str(stopped.value)
    assert is_oom(stopped.value)
    assert isinstance(stopped.value.__cause__, MemoryError)
    assert "out of memory: (ResourceExhausted) Fail to alloc memory" in text
    assert "the batch has 8 rows; micro-batch sizes tried: 4, 2, 1" in text
    assert "a micro-batch of one row does not fit" in text
    assert "weights + gradients + moments = 0.10 GiB" in text
    assert "recompute: {layers: auto}" in text
    assert loop.oom_count == 3
    assert random_states() == before
    assert same_bits(runner.state(), state)


def test_on_oom_raise_stops_at_once_with_the_report() -> None:
    model = Hungry(2)
    runner = Runner(model, model)
    with pytest.raises(OutOfMemory, match="memory.on_oom is raise") as stopped:
        runner.run(runner.loop(4, on_oom="raise"), batch_of())
    assert model.rows == [4]
    assert "gradient_accumulation: {micro_batch_size: 2}" in str(stopped.value)


def test_what_is_not_memory_is_not_replayed() -> None:
    model = Hungry(100)
    runner = Runner(model, model)
    calls: list[int] = []

    def broken(batch: Any) -> paddle.Tensor:
        calls.append(1)
        raise OSError("(External) CUDA error(700), an illegal memory access was encountered.")

    runner.compute_loss = broken
    with pytest.raises(OSError, match=r"CUDA error\(700\)"):
        runner.run(runner.loop(8), batch_of())
    assert len(calls) == 1


def test_the_change_is_told_once_with_the_line_to_keep(caplog: pytest.LogCaptureFixture) -> None:
    model = Hungry(4)
    runner = Runner(model, model)
    loop = runner.loop()
    with caplog.at_level(logging.WARNING, logger="paddle_memcallbacks"):
        for _ in range(2):
            runner.run(loop, batch_of())
    told = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert len(told) == 1
    assert "with micro-batches of 8 rows: the batch is replayed" in told[0]
    assert "gradient_accumulation: {micro_batch_size: 4}" in told[0]


def simcse(model: Hungry) -> Callable[[Any], paddle.Tensor]:
    def loss(batch: Any) -> paddle.Tensor:
        out = F.normalize(model.hidden(batch["x"]))
        return F.cross_entropy(out @ out.T / 0.05, paddle.arange(out.shape[0]))

    return loss


def test_a_loss_that_cannot_be_sliced_is_told_beside_the_memory_error() -> None:
    model = Hungry(4)
    runner = Runner(model, simcse(model))
    with pytest.raises(OutOfMemory) as stopped:
        runner.run(runner.loop(), batch_of())
    assert "cannot be taken apart into micro-batches" in str(stopped.value)
    assert "(ResourceExhausted)" in str(stopped.value)
    assert not any("micro_batch_size" in line for line in str(stopped.value).splitlines())


def test_a_whole_batch_that_forward_changed_in_place_is_not_replayed() -> None:
    model = Hungry(4)

    def changing(batch: Any) -> paddle.Tensor:
        batch["x"].scale_(2.0)
        return model(batch)

    runner = Runner(model, changing)
    batch = batch_of()
    with pytest.raises(OutOfMemory, match="forward changes its input x in place"):
        runner.run(runner.loop(), batch)


def test_slices_may_be_changed_in_place_and_popped() -> None:
    model = Hungry(2)

    def changing(batch: Any) -> paddle.Tensor:
        x = batch.pop("x").scale_(2.0)
        batch["scale"].scale_(3.0)
        return model({"x": x * batch["scale"], "y": batch.pop("y")})

    runner = Runner(model, changing)
    batch = {**batch_of(), "scale": paddle.ones([1])}
    before = batch["x"].numpy().copy()
    assert runner.run(runner.loop(4), batch).replays == 1
    assert np.array_equal(batch["x"].numpy(), before)
    assert float(batch["scale"]) == 1.0


def test_gradients_of_an_earlier_batch_make_a_replay_wrong_and_are_noticed() -> None:
    model = Hungry(100)
    runner = Runner(model, model)
    loop = runner.loop(4)
    runner.run(loop, batch_of())
    model.most_rows = 2
    with pytest.raises(OutOfMemory, match="gradients of an earlier batch were still there"):
        runner.run(loop, batch_of())


def test_memory_may_run_out_in_the_probe_too() -> None:
    model = Hungry(100)
    calls: list[int] = []

    def compute_loss(batch: Any) -> paddle.Tensor:
        if not paddle.is_grad_enabled():
            calls.append(batch["x"].shape[0])
            if batch["x"].shape[0] > 2:
                raise MemoryError(TEXT)
        return model(batch)

    runner = Runner(model, compute_loss)
    outcome = runner.run(runner.loop(4), batch_of())
    assert outcome.replays == 0
    assert max(calls) > 2


def test_a_loop_without_replay_needs_no_accumulation_section() -> None:
    model = Hungry(100)
    loop: MicroBatchLoop = Runner(model, model).loop()
    outcome = Runner(model, model).run(loop, batch_of())
    assert (outcome.micro_batches, loop.micro_batch_size) == (1, None)


@pytest.mark.parametrize("keys", [{"micro_batch_size": 4}, {"steps": 2}, {}])
def test_a_resumed_run_begins_with_the_size_that_memory_forced(keys: dict[str, int]) -> None:
    model = Hungry(2)
    runner = Runner(model, model)
    loop = runner.loop(**keys)
    assert loop.state_dict() == {}
    runner.run(loop, batch_of())
    state = loop.state_dict()
    model.clear_gradients()
    model.rows.clear()
    resumed = runner.loop(**keys)
    resumed.load_state_dict(state)
    assert runner.run(resumed, batch_of()).replays == 0
    assert model.rows == [2, 2, 2, 2]
    assert resumed.state_dict() == state


def test_a_resumed_run_under_another_config_begins_with_its_own_size() -> None:
    model = Hungry(2)
    runner = Runner(model, model)
    loop = runner.loop(4)
    runner.run(loop, batch_of())
    model.clear_gradients()
    other = runner.loop(3)
    other.load_state_dict(loop.state_dict())
    model.most_rows = 100
    assert runner.run(other, batch_of()).micro_batch_size == 3
