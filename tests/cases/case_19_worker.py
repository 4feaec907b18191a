"""One of two gloo processes of case 19. Argument: native or library. Prints the weights' gradients by wrapping."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.utils import recompute

from paddle_memcallbacks.config import AccumulationConfig
from paddle_memcallbacks.microbatch import MicroBatchLoop, detached, weighted_backward

# which of the three layers are recomputed, and whether by the reentrant variant
WRAPPINGS = {
    "plain": ((0, 0, 0), False),
    "hooks_middle": ((0, 1, 0), False),
    "reentrant_middle": ((0, 1, 0), True),
    "reentrant_first": ((1, 1, 0), True),
}


class Net(paddle.nn.Layer):
    def __init__(self, wrapped: tuple[int, ...], reentrant: bool) -> None:
        super().__init__()
        one = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(1.0))
        self.layers = paddle.nn.LayerList([paddle.nn.Linear(1, 1, weight_attr=one) for _ in range(3)])
        self.wrapped, self.reentrant = wrapped, reentrant

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x.stop_gradient = False
        for wrapped, layer in zip(self.wrapped, self.layers, strict=True):
            x = recompute(layer, x, use_reentrant=self.reentrant, preserve_rng_state=False) if wrapped else layer(x)
        return x


def native(model: paddle.DataParallel, rows: list[float]) -> None:
    for value in rows:
        (model(paddle.to_tensor([[value]])).mean() / 2).backward()


def by_library(model: paddle.DataParallel, rows: list[float]) -> None:
    loop = MicroBatchLoop(model._layers, AccumulationConfig(micro_batch_size=1), parallel=model)
    compute_loss = lambda x: model(x).mean()

    def forward_backward(x: Any, weight: float) -> Any:
        loss = compute_loss(x)
        weighted_backward(loss, weight)
        return detached(loss)

    loop.run(paddle.to_tensor(rows).unsqueeze(1), forward_backward, compute_loss)


def main(way: str) -> dict[str, Any]:
    rows = [[1.0, 2.0], [4.0, 5.0]][dist.get_rank()]
    seen: dict[str, Any] = {}
    for name, (wrapped, reentrant) in WRAPPINGS.items():
        net = Net(wrapped, reentrant)
        model = paddle.DataParallel(net)
        try:
            (native if way == "native" else by_library)(model, rows)
            seen[name] = [round(float(layer.weight.grad), 5) for layer in net.layers]
        except OSError as error:
            seen[name] = "ready before" if "ready before" in str(error) else str(error)
    return seen


if __name__ == "__main__":
    dist.init_parallel_env()
    print("SEEN " + json.dumps(main(sys.argv[1])), flush=True)
