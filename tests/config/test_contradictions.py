"""Keys that exclude each other: told with both names, all at once, and never as a consequence of another fault."""

from __future__ import annotations

import pytest

from paddle_memcallbacks.config import ConfigError, load_config
from tests.config.helpers import message_of

AUTO = {"gradient_accumulation": {"micro_batch_size": "auto"}}


def keys_of(source):
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    return [complaint.key for complaint in caught.value.complaints]


def test_steps_and_micro_batch_size_exclude_each_other():
    message = message_of({"gradient_accumulation": {"steps": 4, "micro_batch_size": 8}})
    assert (
        "gradient_accumulation.steps (4) and gradient_accumulation.micro_batch_size (8) exclude each other" in message
    )
    assert "Remove one." in message
    # null does not count as given
    load_config({"gradient_accumulation": {"steps": 4, "micro_batch_size": None}})
    message_of({"gradient_accumulation": {"enable": False, "steps": 4, "micro_batch_size": 8}})


def test_accumulation_needs_one_of_them():
    message = message_of({"gradient_accumulation": {"slice_by": "order"}})
    assert "'steps: 4'" in message and "'enable: false'" in message
    load_config({"gradient_accumulation": {"enable": False, "slice_by": "order"}})


def test_auto_micro_batches_need_a_budget_or_a_plan():
    assert "Set memory.budget, for example to 14GiB" in message_of(AUTO)
    assert "memory.enable is false" in message_of({**AUTO, "memory": False})
    assert "memory.enable is false" in message_of({**AUTO, "memory": {"enable": False, "budget": "8GiB"}})
    for memory in ({"budget": "8GiB"}, {"budget": "auto"}, {"plan": "plan.yml"}):
        load_config({**AUTO, "memory": memory})
    load_config({"gradient_accumulation": {"enable": False, "micro_batch_size": "auto"}})


def test_auto_layers_need_neither():
    assert load_config({"recompute": {"layers": "auto"}}).recompute.layers == "auto"


@pytest.mark.parametrize("key, value", [("layers", ["a.*"]), ("every_n", 2), ("first", 1), ("last", 3)])
def test_a_plan_and_recompute_keys_say_the_same_thing_twice(key, value):
    source = {"memory": {"plan": "plan.yml"}, "recompute": {key: value}}
    message = message_of(source)
    assert "memory.plan ('plan.yml')" in message and f"recompute.{key} (" in message
    load_config({**source, "recompute": {key: value, "enable": False}})
    load_config({**source, "memory": {"plan": "plan.yml", "enable": False}})
    load_config({**source, "memory": {"budget": "8GiB"}})


def test_a_plan_with_neutral_recompute_keys():
    load_config({"memory": {"plan": "p.yml"}, "recompute": {"layers": "auto", "every_n": 1, "verify": True}})


def test_the_loss_scale_must_not_start_below_its_floor():
    source = {"amp": {"init_loss_scaling": 2}, "loss_scale": {"min_loss_scale": 4}}
    message = message_of(source)
    assert "amp.init_loss_scaling (2)" in message and "loss_scale.min_loss_scale (4)" in message
    assert "(65536, the default)" in message_of({"amp": True, "loss_scale": {"min_loss_scale": 1e5}})
    assert "loss_scale.min_loss_scale (1, the default)" in message_of({"amp": {"init_loss_scaling": 0.5}})
    load_config({**source, "loss_scale": {"min_loss_scale": 2}})
    load_config({**source, "loss_scale": {"min_loss_scale": 4, "enable": False}})
    load_config({**source, "amp": {"init_loss_scaling": 2, "enable": False}})
    load_config({**source, "amp": {"init_loss_scaling": 2, "dtype": "bfloat16"}})


def test_every_fault_is_told_at_once():
    source = {
        "stepz": 4,
        "amp": {"levle": "O1", "dtype": "int8", "init_loss_scaling": 1},
        "memory": {"budget": 14, "margin": 2},
        "recompute": None,
        "gradient_accumulation": {"steps": 2, "micro_batch_size": 2, "weight": "token"},
        "loss_scale": {"min_loss_scale": 3},
    }
    assert keys_of(source) == [
        "stepz",
        "amp.levle",
        "amp.dtype",
        "memory.budget",
        "memory.margin",
        "recompute",
        "gradient_accumulation.weight",
        "gradient_accumulation.steps",
        "amp.init_loss_scaling",
    ]
    message = message_of(source)
    assert message.startswith("9 faults in the config:\n  - stepz: ") and message.count("\n") == 9


@pytest.mark.parametrize(
    "source, keys",
    [
        # misspelt, so that "neither is given" would only mislead
        ({"gradient_accumulation": {"stepz": 4}}, ["gradient_accumulation.stepz"]),
        ({"gradient_accumulation": {"steps": -1}}, ["gradient_accumulation.steps"]),
        ({**AUTO, "memory": {"budget": 14}}, ["memory.budget"]),
        ({**AUTO, "memory": {"budgte": "8GiB"}}, ["memory.budgte"]),
        ({**AUTO, "memory": "14 G"}, ["memory"]),
        ({**AUTO, "memmory": {"budget": "8GiB"}}, ["memmory"]),
        # independent of the fault in the same section
        ({**AUTO, "memory": {"interval": 0}}, ["memory.interval", "gradient_accumulation.micro_batch_size"]),
        (
            {"gradient_accumulation": {"steps": 2, "micro_batch_size": 2, "nope": 1}},
            ["gradient_accumulation.nope", "gradient_accumulation.steps"],
        ),
    ],
)
def test_a_fault_draws_no_misleading_second_one(source, keys):
    assert keys_of(source) == keys
