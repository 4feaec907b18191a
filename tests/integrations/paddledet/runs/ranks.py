"""One rank of a training on two gloo processes; or, alone, the same training on whole batches of twice the rows."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
from paddle_memcallbacks.integrations.paddledet.curves import own_vdl_callback
from ppdet.engine import init_fleet_env, init_parallel_env

from tests.integrations.paddledet import tiny
from tests.integrations.paddledet.runs.common import answer, places, recorded, state

KEYS: dict[str, dict[str, Any]] = {
    "micro-batches": {"gradient_accumulation": {"micro_batch_size": 2}, "recompute": {"layers": ["backbone"]}},
    "whole": {"memory": {"interval": 1}, "use_vdl": True, "use_fused_allreduce_gradients": True},
    "talking": {
        "TinyDetector": {"talk": True},
        "gradient_accumulation": {"micro_batch_size": 3, "weight": "samples"},
    },
    "talking whole": {"TinyDetector": {"talk": True}, "memory": True},
    "fleet": {"gradient_accumulation": {"micro_batch_size": 2}, "fleet": True},
}


def main() -> None:
    scenes, folder = places()
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if ranks > 1:
        init_parallel_env()
    results = {}
    for mode, keys in KEYS.items():
        if ranks == 1 and mode != "whole":
            continue
        if keys.get("fleet"):
            init_fleet_env(False)
        if ranks == 1:
            keys = {}
        reader = {"batch_size": 8 // ranks}
        keys.setdefault("TinyDetector", {"talk": False})
        name = mode.replace(" ", "_")
        vdl = {"vdl_log_dir": str(folder / name / "curves")}
        trainer = tiny.build(scenes, folder / name, TrainReader=reader, **vdl, **keys)
        recorder = recorded(trainer) if dist.get_rank() == 0 else None
        reductions = []
        reduce = dist.all_reduce

        def counted(tensor: Any, *args: Any, _r: Any = reduce, _n: list[int] = reductions, **kwargs: Any) -> Any:
            _n.append(int(tensor.size))
            return _r(tensor, *args, **kwargs)

        with mock.patch.object(dist, "all_reduce", counted):
            trainer.train()
        weights = state(trainer)
        np.savez(folder / f"{name}_{ranks}_{dist.get_rank()}.npz", **weights["weights"])
        results[mode] = {
            "rates": recorder.rates if recorder else [],
            "reductions": reductions,
            "parameters": sum(int(p.size) for p in trainer.model.parameters()),
            "slices": trainer.model.batches[-2:],
            "vdl_files": len(list((folder / name).rglob("vdlrecords*"))),
            "vdl_callback": own_vdl_callback(trainer) is not None,
            "records": len(list((folder / name).rglob("memcallbacks.jsonl"))),
        }
    paddle.set_device("cpu")
    answer(**results)


main()
