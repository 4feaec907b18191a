"""Run by test_ranks.py under paddle.distributed.launch: rank 1 alone gets a bad batch from step 4 on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import paddle
import paddle.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import LossScaleWatch, found_inf
from tests.real_scaler import real_scalers

FIRST_BAD, STEPS = 4, 9


def main(folder: str) -> None:
    dist.init_parallel_env()
    rank = dist.get_rank()
    paddle.seed(11)
    inner = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.Tanh(), paddle.nn.Linear(4, 1))
    model = paddle.DataParallel(inner)
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
    told, rows = [], []
    with real_scalers() as make:
        scaler = make(init_loss_scaling=1024.0)
        watch = LossScaleWatch(scaler, optimizer, model, load_config({}).loss_scale)
        watch.attach()
        for step in range(1, STEPS + 1):
            batch = paddle.full([2, 3], 0.1 * (rank + 1) * step)
            if rank == 1 and step >= FIRST_BAD:
                batch = batch * float("inf")
            scaler.scale(model(batch).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            told += [[alert.step, alert.kind, alert.message, alert.data] for alert in watch.after_step(step).alerts]
            optimizer.clear_grad()
            weights = [parameter.numpy().tobytes().hex() for parameter in inner.parameters()]
            rows.append([found_inf(scaler), float(scaler._scale), weights])
    Path(folder, f"rank{rank}.json").write_text(json.dumps({"rows": rows, "told": told}))


if __name__ == "__main__":
    main(sys.argv[1])
