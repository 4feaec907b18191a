"""Which models talk inside forward, and what a rank does that runs out of memory there."""

from __future__ import annotations

from typing import Any
from unittest import mock

import paddle
from paddle_memcallbacks.integrations.paddledet.callback import callback_of
from paddle_memcallbacks.integrations.paddledet.talk import RankStopped, Talk, alone, talk_of
from ppdet.modeling.heads.pico_head import PicoHeadV2

from tests.integrations.paddledet import tiny
from tests.integrations.paddledet.runs.common import answer, places


class Holder(paddle.nn.Layer):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner


def train(scenes: Any, folder: Any, talk: Talk, fail: list[int], **keys: Any) -> str:
    trainer = tiny.build(scenes, folder, epoch=1, **keys)
    model = trainer.model
    forward = type(model).get_loss

    def failing(self: Any) -> Any:
        rows = self.inputs["pad_gt_mask"].shape[0]
        if rows in fail and paddle.is_grad_enabled():
            fail.remove(rows)
            raise MemoryError("(ResourceExhausted) Fail to alloc memory of 8 size, error code is 12.")
        return forward(self)

    run = callback_of(trainer).run
    begin = run.begin

    def begin_among_others() -> None:
        begin()
        run.talk = talk

    run.begin = begin_among_others
    with mock.patch.object(tiny.TinyDetector, "get_loss", failing):
        try:
            trainer.train()
        except RankStopped as stopped:
            return f"stopped: {stopped}"
    return f"trained in slices of {model.batches[-1]}"


def main() -> None:
    scenes, folder = places()
    head = PicoHeadV2.__new__(PicoHeadV2)
    paddle.nn.Layer.__init__(head)
    with alone():
        counted = paddle.distributed.get_world_size()
    slices = {"gradient_accumulation": {"micro_batch_size": 4, "weight": "samples"}}
    losses, norms = Talk(losses=True), Talk(norms=True)
    answer(
        picodet=talk_of(Holder(head)).losses,
        plain=[talk_of(Holder(paddle.nn.Conv2D(3, 3, 1))).losses, talk_of(Holder(paddle.nn.BatchNorm2D(3))).norms],
        synced=talk_of(Holder(paddle.nn.SyncBatchNorm(3))).norms,
        alone=counted,
        restored=paddle.distributed.all_reduce.__module__.startswith("paddle."),
        silent=train(scenes, folder / "silent", Talk(), [8], memory=True),
        whole=train(scenes, folder / "whole", losses, [8], memory=True),
        sliced=train(scenes, folder / "sliced", losses, [4], **slices),
        norms=train(scenes, folder / "norms", norms, [4], **slices),
    )


main()
