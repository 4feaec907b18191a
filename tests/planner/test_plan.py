"""The plan's file: round trip, what a person may edit, what is refused and why; no paddle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from paddle_memcallbacks.planner.plan import (
    Compared,
    Facts,
    Plan,
    measured_text,
    micro_batch_for_shape,
    offer,
    plan_mismatches,
    shape_scale,
    size_text,
)
from paddle_memcallbacks.planner.plan_file import PlanError, load_plan, save_plan

FACTS = Facts(
    device="gpu:0 NVIDIA A100",
    model="ErnieForSequenceClassification",
    parameters=12345,
    shapes={"input_ids": (32, 128), "labels": (32,)},
    versions={"paddle": "3.3.1"},
)
PLAN = Plan(
    recompute=("encoder.layers.0", "encoder.layers.3"),
    predicted_peak_bytes=7 * 2**30,
    predicted_step_seconds=0.4125,
    micro_batch_size=8,
    replace=("chunked_head(lm_head)",),
    budget_bytes=8 * 2**30,
    margin=0.03,
    peak_at="backward_begin encoder.layers.2 0",
    batch_rows=32,
    device="gpu:0",
    facts=FACTS,
    compared=(Compared("nothing recomputed", 32, 0, 15 * 2**30, 0.35),),
    alternatives=("AMP O1 (amp: {level: O1}) would need 5.1 GiB",),
)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "plan.yml"
    save_plan(PLAN, path)
    read = load_plan(path)
    # the comparison and the alternatives are for the reader: comments, not data
    assert read == replace(PLAN, compared=(), alternatives=(), device=FACTS.device)
    text = path.read_text(encoding="utf-8")
    for words in ("7.00 GiB", "budget of 8.00 GiB", "nothing recomputed: peak 15.00 GiB", "AMP O1", "memory: {plan:"):
        assert words in text
    assert yaml.safe_load(text)["recompute"] == ["encoder.layers.0", "encoder.layers.3"]
    assert len(text.splitlines()) < 50


def test_a_plan_written_by_hand_may_be_short(tmp_path: Path) -> None:
    path = tmp_path / "plan.yml"
    path.write_text("micro_batch_size: 4\nrecompute: [a]\n", encoding="utf-8")
    plan = load_plan(path)
    assert (plan.micro_batch_size, plan.recompute, plan.predicted_peak_bytes) == (4, ("a",), 0)
    assert plan_mismatches(plan, FACTS) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recomputed: [a]", "unknown key recomputed; did you mean recompute?"),
        ("predicted: {peak_byte: 3}", "unknown key predicted.peak_byte; did you mean predicted.peak_bytes?"),
        ("micro_batch_size: eight", "micro_batch_size is 'eight'; it must be int or null"),
        ("micro_batch_size: 0", "micro_batch_size is at least 1, not 0"),
        ("micro_batch_size: true", "micro_batch_size is True"),
        ("recompute: encoder", "recompute is 'encoder'; it must be list"),
        ("recompute: [1]", "recompute is a list of layer names"),
        ("version: 7", "version 7 is unknown"),
        ("made_for: {shapes: {x: big}}", "made_for.shapes.x is 'big'"),
        ("predicted: 3", "predicted is 3; it must be dict"),
        ("recompute: [a]\nrecompute: [b]", "recompute"),
        ("- a", "mapping"),
        ("a: !!python/object/apply:os.system [x]", "plan"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert words in str(caught.value)


def test_a_missing_file_is_a_plan_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no file"):
        load_plan(tmp_path / "none.yml")


def test_mismatches_are_sentences() -> None:
    assert plan_mismatches(PLAN, FACTS) == []
    now = Facts("cpu", "Bert", 12346, {"input_ids": (32, 256), "labels": (16,)}, {"paddle": "3.2.0", "numpy": "1"})
    texts = plan_mismatches(PLAN, now)
    for words in (
        "device was gpu:0 NVIDIA A100, now it is cpu",
        "model was Ernie",
        "was 12345",
        "3.3.1, now it is 3.2.0",
    ):
        assert any(words in text for text in texts), words
    assert any("input_ids was [32, 128], now it is [32, 256], which is larger" in text for text in texts)
    assert len(texts) == 5
    assert plan_mismatches(PLAN, replace(FACTS, shapes={"input_ids": (8, 64)})) == []


def test_larger_rows_get_smaller_micro_batches() -> None:
    assert shape_scale(PLAN, {"input_ids": (32, 256), "labels": (32,)}) == 2.0
    assert [micro_batch_for_shape(PLAN, scale) for scale in (0.5, 1.0, 2.0, 3.0, 100.0)] == [8, 8, 4, 2, 1]
    assert micro_batch_for_shape(replace(PLAN, micro_batch_size=None), 2.0) is None
    image = replace(PLAN, facts=Facts(shapes={"image": (8, 3, 320, 320)}))
    assert shape_scale(image, {"image": (8, 3, 640, 320)}) == 2.0
    assert shape_scale(image, {"other": (1, 2)}) == 1.0


def test_predicted_against_measured() -> None:
    assert "as predicted" in measured_text(PLAN, 7 * 2**30 + 1000)
    over = measured_text(PLAN, 9 * 2**30)
    assert "+28.6%" in over and "over the budget of 8.00 GiB" in over


def test_sizes_for_people() -> None:
    assert (size_text(3 * 2**29), size_text(5 * 2**19)) == ("1.50 GiB", "2.5 MiB")


def test_an_offer_names_key_peak_and_what_changes() -> None:
    text = offer("AMP O1", "amp: {level: O1}", PLAN)
    for words in (
        "AMP O1 (amp: {level: O1}) would need 7.00 GiB",
        "0.412 s a step",
        "2 units",
        "changes the mathematics",
    ):
        assert words in text
