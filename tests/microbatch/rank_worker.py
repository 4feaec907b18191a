"""One of two gloo processes: runs every case and prints what it saw as one line of JSON. Started by test_ranks.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle.distributed.fleet.utils import recompute

from paddle_memcallbacks.config import AccumulationConfig
from paddle_memcallbacks.microbatch import MicroBatchLoop, detached, ranks, weighted_backward

RANK = int(os.environ["PADDLE_TRAINER_ID"])
OOM = "(ResourceExhausted) Fail to alloc memory of 70368744177664 size, error code is 12."


class Net(paddle.nn.Layer):
    """Three layers; the middle one may be recomputed, the side one is used on rank 0 alone, the idle one never."""

    def __init__(self, recomputed: bool = False) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(5, 8)
        self.middle = paddle.nn.Linear(8, 8)
        self.last = paddle.nn.Linear(8, 3)
        self.side = paddle.nn.Linear(8, 8)
        self.idle = paddle.nn.Linear(2, 2)
        self.recomputed = recomputed
        self.use_side = False

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        h = self.first(x)
        h = (
            recompute(self.middle, h, use_reentrant=False, preserve_rng_state=False)
            if self.recomputed
            else self.middle(h)
        )
        h = h + self.side(h) if self.use_side else h
        return self.last(h.tanh())


class Case:
    """A fresh model on both ranks, its loop, and a count of collectives."""

    def __init__(self, micro_batch_size: int, recomputed: bool = False, on_oom: str = "replay") -> None:
        paddle.seed(3)
        self.net = Net(recomputed)
        self.parallel = paddle.DataParallel(self.net)
        config = AccumulationConfig(micro_batch_size=micro_batch_size)
        self.loop = MicroBatchLoop(self.net, config, parallel=self.parallel, on_oom=on_oom)
        self.fail_above = 1000
        self.mutate = False
        self.collectives = 0

    def loss(self, batch: Any) -> paddle.Tensor:
        if paddle.is_grad_enabled() and batch["x"].shape[0] > self.fail_above:
            raise MemoryError(OOM)
        if self.mutate:
            batch["x"].scale_(1.0)
        return F.cross_entropy(self.parallel(batch["x"]), batch["y"])

    def forward_backward(self, batch: Any, weight: float) -> Any:
        loss = self.loss(batch)
        weighted_backward(loss, weight)
        return detached(loss)

    def run(self, batch: Any) -> Any:
        real = dist.all_reduce

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.collectives += 1
            return real(*args, **kwargs)

        dist.all_reduce = counted
        try:
            return self.loop.run(batch, self.forward_backward, self.loss)
        finally:
            dist.all_reduce = real

    def gradients(self) -> dict[str, Any]:
        return {n: None if p.grad is None else p.grad.numpy() for n, p in self.net.named_parameters()}

    def error(self, batches: list[Any]) -> float:
        """Relative error of the gradients against one process that averages both ranks' whole batches."""
        paddle.seed(3)
        alone = Net()
        for rank, batch in enumerate(batches):
            alone.use_side = self.net.use_side if rank == RANK else rank == 0 and sides[0]
            (F.cross_entropy(alone(batch["x"]), batch["y"]) / 2).backward()
        expected = {n: p.grad.numpy() for n, p in alone.named_parameters() if p.grad is not None}
        found = self.gradients()
        assert {n for n, g in found.items() if g is not None} == set(expected), (RANK, found.keys(), expected.keys())
        off = sum(float(((found[n] - g) ** 2).sum()) for n, g in expected.items())
        return (off / sum(float((g**2).sum()) for g in expected.values())) ** 0.5


def batches(rows: tuple[int, int] = (6, 6)) -> list[dict[str, paddle.Tensor]]:
    rng = np.random.RandomState(0)
    make = lambda count: {"x": rng.randn(count, 5).astype("float32"), "y": np.arange(count) % 3}
    return [{name: paddle.to_tensor(value) for name, value in make(count).items()} for count in rows]


def raised(case: Case, batch: Any) -> str:
    try:
        case.run(batch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


sides = [False]


def main() -> dict[str, Any]:
    seen: dict[str, Any] = {}

    for name, case in {"plain": Case(2), "whole": Case(6), "recomputed": Case(2, recomputed=True)}.items():
        outcome = case.run(batches()[RANK])
        seen[name] = {"error": case.error(batches()), "collectives": case.collectives, "slices": outcome.micro_batches}

    uneven = Case(2)
    outcome = uneven.run(batches((6, 3))[RANK])
    seen["uneven"] = {"error": uneven.error(batches((6, 3))), "slices": outcome.micro_batches}

    oom = Case(4)
    oom.fail_above = 3 if RANK == 1 else 1000
    outcome = oom.run(batches()[RANK])
    seen["oom"] = {
        "error": oom.error(batches()),
        "replays": outcome.replays,
        "size": oom.loop.micro_batch_size,
        "count": oom.loop.oom_count,
    }

    side = Case(2)
    side.net.use_side = RANK == 0
    sides[0] = True
    side.run(batches()[RANK])
    seen["side"] = {"error": side.error(batches()), "idle": side.net.idle.weight.grad is None}
    sides[0] = False

    ranks.CHUNK_BYTES = 200
    chunked = Case(2)
    chunked.run(batches()[RANK])
    seen["chunked"] = {"error": chunked.error(batches()), "collectives": chunked.collectives}
    ranks.CHUNK_BYTES = 64 * 2**20

    broken = Case(2)
    broken_batch = batches()[RANK]
    if RANK == 1:
        broken_batch["y"] = broken_batch["y"][:4]
    seen["bad batch"] = raised(broken, broken_batch)

    hungry = Case(4)
    hungry.fail_above = 0 if RANK == 1 else 1000
    seen["no row fits"] = raised(hungry, batches()[RANK])

    stops = Case(6)
    stops.fail_above = 3 if RANK == 1 else 1000
    stops.mutate = RANK == 0
    seen["cannot go back"] = raised(stops, batches()[RANK])
    return seen


if __name__ == "__main__":
    dist.init_parallel_env()
    print("SEEN " + json.dumps(main()), flush=True)
