"""Predicted against measured peaks on PaddleNLP's models."""

from __future__ import annotations

import gc

import pytest

from tests.planner.models import seed_all
from tests.planner.nlp_models import nlp_case
from tests.planner.test_predict import check

pytestmark = pytest.mark.paddlenlp


@pytest.mark.parametrize("name", ["ernie", "bert", "gpt", "llama"])
def test_random_sets(name: str) -> None:
    gc.collect()
    seed_all()
    check(nlp_case(name, rows=3), sets=3)
