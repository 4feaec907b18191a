"""Advice: on what is allowed but does nothing, and on nothing else."""

from __future__ import annotations

import pytest

from paddle_memcallbacks.config import load_config

STEPS = {"gradient_accumulation": {"steps": 4}}

# source, words of the one note that it draws, the same without the reason for it
CASES = [
    ({"gradient_accumulation": {"steps": 17}}, "steps is 17, above 16", {"gradient_accumulation": {"steps": 16}}),
    ({"gradient_accumulation": {"steps": 1}}, "is not sliced", {"gradient_accumulation": {"steps": 2}}),
    (
        {"amp": {"dtype": "bfloat16", "init_loss_scaling": 1024, "incr_ratio": 2}},
        "bfloat16 needs no loss scale: amp.init_loss_scaling, amp.incr_ratio can be left out",
        {"amp": {"dtype": "bfloat16"}},
    ),
    (
        {"amp": {"use_dynamic_loss_scaling": False, "incr_every_n_steps": 10}},
        "amp.incr_every_n_steps changes nothing",
        {"amp": {"use_dynamic_loss_scaling": False, "init_loss_scaling": 8}},
    ),
    ({"amp": {"master_grad": True}}, "works under O2 only", {"amp": {"level": "O2", "master_grad": True}}),
    ({"amp": {"master_weight": True}}, "amp.master_weight works under O2 only", {"amp": {"master_weight": False}}),
    (
        {**STEPS, "amp": {"level": "O2", "master_grad": False}},
        "added up in float16, which rounds",
        {**STEPS, "amp": {"level": "O2"}},
    ),
    ({"memory": {"enable": False, "budget": "8GiB"}}, "memory.budget does nothing", {"memory": {"budget": "8GiB"}}),
    ({"memory": {"enable": False, "plan": "p.yml"}}, "memory.plan does nothing", {"memory": {"plan": "p.yml"}}),
    (
        {"memory": {"plan": "p.yml"}, "recompute": False},
        "recompute is off, so the units that memory.plan lists",
        {"memory": {"plan": "p.yml"}, "recompute": True},
    ),
]


@pytest.mark.parametrize("source, words, without", CASES, ids=[case[1][:30] for case in CASES])
def test_notes(source, words, without):
    (note,) = load_config(source).notes()
    assert words in note and note.endswith(".")
    assert load_config(without).notes() == ()


def test_gradients_in_half_precision_matter_only_where_they_are_added_up():
    for accumulation in ({}, {"gradient_accumulation": False}, {"gradient_accumulation": {"steps": 1}}):
        notes = load_config({**accumulation, "amp": {"level": "O2", "master_grad": False}}).notes()
        assert not any("master_grad" in note for note in notes)


def test_what_is_off_draws_no_advice():
    off = {"amp": {"enable": False, "master_grad": True}, "gradient_accumulation": {"enable": False, "steps": 99}}
    assert load_config(off).notes() == ()
    assert load_config({}).notes() == ()


def test_advice_survives_what_the_user_wrote():
    config = load_config({"amp": {"dtype": "bfloat16", "incr_ratio": 2}})
    assert load_config(config.as_dict(only_given=True)).notes() == config.notes() != ()
