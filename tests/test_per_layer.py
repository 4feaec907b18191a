"""What each block holds after its forward, by name, to the byte."""

import json

import paddle
import pytest

import paddle_memcallbacks as pm
from paddle_memcallbacks.per_layer import held_by_unit, held_table, held_text
from paddle_memcallbacks.recompute import recompute_units


class Block(paddle.nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = paddle.nn.Linear(8, width), paddle.nn.Linear(width, 8)

    def forward(self, x):
        return self.b(paddle.tanh(self.a(x)))


def build():
    return paddle.nn.Sequential(Block(64), Block(256), paddle.nn.Linear(8, 1))


def held_of(model, rows=16):
    x = paddle.ones([rows, 8])
    with held_by_unit(model, ["0", "1"]) as held:
        model(x).sum().backward()
    return held


def test_bytes_of_each_block():
    assert held_of(build()) == held_of(build())
    held = held_of(build())
    # in fp32: tanh keeps its output alone, and the block's own output is the next one's input
    assert held == {"0": 4 * 16 * (64 + 8), "1": 4 * 16 * (256 + 8)}


def test_the_second_pass_of_a_recomputed_block_is_not_counted():
    model = build()
    with recompute_units(model, ["0", "1"]):
        held = held_of(model)
    assert held == {"0": 4 * 16 * 8, "1": 4 * 16 * 8}


def test_hooks_are_gone_afterwards():
    model = build()
    held_of(model)
    assert not model[0]._forward_pre_hooks
    assert not model[0]._forward_post_hooks


def test_texts():
    held = {f"layers.{index}": index * 2**20 for index in range(7)}
    assert held_text(held).startswith("held after forward by 7 units of a micro-batch: 21.00 MiB (layers.6 6.00 MiB, ")
    assert held_text(held).endswith("and 2 more)")
    assert held_table(held).splitlines()[1] == "layers.1: 1.000 MiB"


@pytest.mark.parametrize("wanted", [True, False])
def test_told_once_in_a_run_and_recorded(tmp_path, caplog, wanted):
    model = build()
    optimizer = paddle.optimizer.SGD(parameters=model.parameters())
    keys = {"memory": {"per_layer": wanted}}
    with (
        caplog.at_level("INFO", logger="paddle_memcallbacks"),
        pm.Session(keys, model=model, optimizer=optimizer, logdir=tmp_path) as session,
    ):
        for _ in range(3):
            session.step({"x": paddle.ones([16, 8])}, lambda model, batch: model(batch["x"]).sum())
    assert caplog.text.count("held after forward by 2 units") == wanted
    lines = [json.loads(line) for line in (tmp_path / "memcallbacks.jsonl").read_text().splitlines()]
    assert sum(line.get("text", {}).get("tag") == "memory/per_layer" for line in lines) == wanted
