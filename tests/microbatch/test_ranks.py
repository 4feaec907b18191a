"""Two data-parallel ranks on a CPU: no synchronisation while slices run, one agreement, one reduction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import paddle
import pytest

from paddle_memcallbacks.microbatch import MicroBatchError
from paddle_memcallbacks.microbatch.ranks import Ranks, Verdict, chunks_of
from tests.microbatch.launch import two_ranks

WORKER = Path(__file__).with_name("rank_worker.py")


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    outputs = two_ranks(WORKER)
    found = []
    for output in outputs:
        lines = [line for line in output.splitlines() if line.startswith("SEEN ")]
        assert lines, output[-3000:]
        found.append(json.loads(lines[-1][5:]))
    return found


@pytest.mark.parametrize("case", ["plain", "whole", "recomputed", "uneven", "oom", "side", "chunked"])
def test_gradients_are_those_of_one_process_with_all_rows(seen: list[dict[str, Any]], case: str) -> None:
    assert all(rank[case]["error"] <= 1e-6 for rank in seen)


def test_one_agreement_and_one_reduction_a_step(seen: list[dict[str, Any]]) -> None:
    for case in ("plain", "whole", "recomputed"):
        assert [rank[case]["collectives"] for rank in seen] == [2, 2]
    assert [rank["plain"]["slices"] for rank in seen] == [3, 3]


def test_ranks_may_take_different_numbers_of_slices(seen: list[dict[str, Any]]) -> None:
    assert [rank["uneven"]["slices"] for rank in seen] == [3, 2]


def test_one_rank_out_of_memory_makes_all_replay(seen: list[dict[str, Any]]) -> None:
    assert [rank["oom"]["replays"] for rank in seen] == [1, 1]
    assert [rank["oom"]["size"] for rank in seen] == [2, 2]
    assert [rank["oom"]["count"] for rank in seen] == [0, 1]


def test_a_parameter_without_a_gradient_anywhere_gets_none(seen: list[dict[str, Any]]) -> None:
    assert all(rank["side"]["idle"] for rank in seen)


def test_the_reduction_goes_in_bounded_chunks(seen: list[dict[str, Any]]) -> None:
    assert all(rank["chunked"]["collectives"] > 3 for rank in seen)


@pytest.mark.parametrize(
    ("case", "failing", "text"),
    [
        ("bad batch", 1, "BatchError"),
        ("no row fits", 1, "OutOfMemory"),
    ],
)
def test_a_rank_that_stops_takes_the_others_with_it(
    seen: list[dict[str, Any]], case: str, failing: int, text: str
) -> None:
    assert seen[failing][case].startswith(text)
    assert seen[1 - failing][case] == "MicroBatchError: another rank stopped in this step; its own log says why"


def test_a_rank_that_cannot_go_back_stops_all(seen: list[dict[str, Any]]) -> None:
    assert "MicroBatchError" in seen[0]["cannot go back"]
    assert seen[1]["cannot go back"].startswith("OutOfMemory")


# ---- alone


def test_one_rank_asks_nobody() -> None:
    ranks = Ranks(paddle.nn.Linear(2, 2))
    assert not ranks.several
    assert ranks.agree(Verdict.REPLAY, []) is Verdict.REPLAY
    with ranks.no_sync():
        ranks.reduce_gradients([])


def test_chunks_hold_one_dtype_and_at_most_so_many_bytes() -> None:
    gradients = [paddle.zeros([size]) for size in (10, 20, 5, 300, 1)] + [paddle.zeros([4], dtype="float64")]
    chunks = chunks_of(gradients, most_bytes=140)
    assert [[int(g.size) for g in chunk] for chunk in chunks] == [[10, 20, 5], [300], [1], [4]]
    assert chunks_of([], most_bytes=140) == []


def test_sparse_gradients_are_refused_by_name() -> None:
    embedding = paddle.nn.Embedding(10, 4, sparse=True)
    embedding(paddle.to_tensor([1, 2])).sum().backward()
    with pytest.raises(MicroBatchError, match="is sparse"):
        chunks_of([embedding.weight.grad], most_bytes=100)
