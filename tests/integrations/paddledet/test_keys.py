"""Our sections in a PaddleDetection config: translated, typos and contradictions refused by name."""

from __future__ import annotations

import random

import pytest

from paddle_memcallbacks.config import SECTIONS, ConfigError, flat_names

from .conftest import ROOT, load_file

keys = load_file(ROOT / "integrations" / "paddledet" / "keys.py")

# top-level keys of PaddleDetection's own configs and sources, none of which may be taken for a typo of ours
NATIVE = [
    "weights",
    "pretrain_weights",
    "epoch",
    "snapshot_epoch",
    "log_iter",
    "architecture",
    "worker_num",
    "num_classes",
    "metric",
    "width_mult",
    "depth_mult",
    "use_ema",
    "find_unused_parameters",
    "save_dir",
    "use_gpu",
    "norm_type",
    "ema_decay",
    "eval_size",
    "use_xpu",
    "eval_width",
    "eval_height",
    "print_flops",
    "slim",
    "export",
    "num_joints",
    "global_std",
    "global_mean",
    "flip_perm",
    "trainsize",
    "train_width",
    "train_height",
    "pixel_std",
    "cycle_epoch",
    "hmsize",
    "det_weights",
    "reid_weights",
    "custom_black_list",
    "ssod_method",
    "hidden_dim",
    "use_focal_loss",
    "ema_black_list",
    "use_simple_ema",
    "for_mot",
    "distill_loss",
    "slim_method",
    "epochs",
    "use_warmup",
    "semi_start_iters",
    "ema_start_iters",
    "ema_decay_type",
    "for_distill",
    "num_prototypes",
    "input_size",
    "use_fused_allreduce_gradients",
    "save_interval",
    "pretrain_teacher_weights",
    "pretrain_student_weights",
    "map_type",
    "eval_interval",
    "distill_loss_name",
    "cosine_epochs",
    "batch_size",
    "act",
    "mot_metric",
    "max_people",
    "master_grad",
    "hm_size",
    "with_mask",
    "use_cot",
    "ema_filter_no_grad",
    "optimize_rate",
    "max_iter",
    "image_width",
    "image_size",
    "image_height",
    "epoch_iter",
    "dim",
    "depth",
    "use_npu",
    "use_mlu",
    "target_metrics",
    "sample_y",
    "reset_norm_param_attr",
    "pruner",
    "proposal_embedding_dim",
    "print_params",
    "pre_img_epoch",
    "num_points",
    "max_lanes",
    "num_proposals",
    "mask_resolution",
    "keep_best_weight",
    "input_width",
    "input_w",
    "input_height",
    "input_h",
    "init_loss_scaling",
    "img_w",
    "img_h",
    "ema_skip_names",
    "dataset_dir",
    "cut_height",
    "bbox_resolution",
    "amp",
    "amp_level",
    "fleet",
    "use_vdl",
    "vdl_log_dir",
    "to_static",
    "use_wandb",
    "wandb",
    "save_prediction_only",
    "profiler_options",
    "proposals_path",
    "save_proposals",
    "print_mem_info",
    "log_ranks",
    "unstructured_prune",
    "output_eval",
    "classwise",
    "filename",
    "resume",
    "eval",
    "enable_ce",
    "uniform_output_enabled",
    "quant_batch_num",
    "custom_white_list",
]


def test_without_our_keys_nothing_is_translated() -> None:
    cfg = dict.fromkeys(NATIVE, 1) | {
        "amp": True,
        "amp_level": "O2",
        "TrainReader": {"batch_size": 8, "mixup_prob": 1.0},
    }
    assert keys.translate(cfg) == keys.Translation(None, {})


@pytest.mark.parametrize("given", [False, {"enable": False}, {"enable": False, "level": "O2"}])
def test_amp_off_is_off(given: object) -> None:
    found = keys.translate({"amp": given, "recompute": True})
    assert found.native == {"amp": False}
    assert not found.config.amp.enable


def test_amp_section_reaches_the_flat_keys() -> None:
    section = {"enable": True, "level": "O2", "init_loss_scaling": 4096, "custom_black_list": ["reduce_mean"]}
    assert keys.translate({"amp": section}).native == {
        "amp": True,
        "amp_level": "O2",
        "init_loss_scaling": 4096.0,
        "custom_white_list": None,
        "custom_black_list": ["reduce_mean"],
    }


def test_flat_keys_stay_what_they_were() -> None:
    flat = {"amp": True, "amp_level": "O2", "custom_black_list": ["reduce_mean"], "recompute": True}
    found = keys.translate(flat)
    assert found.native["init_loss_scaling"] == 1024.0, "PaddleDetection's own default, for a bare 'amp: true'"
    assert (found.native["amp_level"], found.native["custom_black_list"]) == ("O2", ["reduce_mean"])
    assert keys.translate(flat | {"init_loss_scaling": 256}).native["init_loss_scaling"] == 256.0
    assert keys.translate({"amp": {"level": "O1"}, "amp_level": "O1"}).native["amp_level"] == "O1"
    assert keys.translate({"amp": {}}).native["init_loss_scaling"] == 65536.0, "our own default, for our own section"


def test_contradictions_name_both_keys() -> None:
    cfg = {"amp": {"level": "O1", "init_loss_scaling": 4096}, "amp_level": "O2", "init_loss_scaling": 1024}
    with pytest.raises(ConfigError) as caught:
        keys.translate(cfg)
    assert "amp.level (O1) and amp_level (O2) contradict each other" in str(caught.value)
    assert "amp.init_loss_scaling (4096) and init_loss_scaling (1024) contradict each other" in str(caught.value)
    with pytest.raises(ConfigError, match="recompute and to_static contradict each other"):
        keys.translate({"recompute": True, "to_static": True})
    with pytest.raises(ConfigError, match=r"gradient_accumulation\.steps .* exclude each other"):
        keys.translate({"gradient_accumulation": {"steps": 2, "micro_batch_size": 2}})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("amp_levl", "amp_level"),
        ("accumulate_steps", "gradient_accumulation: {steps: K}"),
        ("gradient_acumulation", "gradient_accumulation"),
        ("gradient_accumulation_steps", "gradient_accumulation: {steps: K}"),
        ("micro_batch_size", "gradient_accumulation: {micro_batch_size: m}"),
        ("recomputes", "recompute"),
        ("recompute_layers", "recompute: {layers: ...}"),
        ("memory_budget", "memory: {budget: ...}"),
        ("amp.level", "amp: {level: ...}"),
        ("visual_dl", "visualdl"),
        ("init_loss_scale", "init_loss_scaling"),
    ],
)
def test_typos_are_refused_with_what_was_meant(key: str, meant: str) -> None:
    """Case 22: PaddleDetection accepts any key without a word."""
    with pytest.raises(ConfigError) as caught:
        keys.translate({"epoch": 1, key: 4})
    assert f"{key}: PaddleDetection reads no such key, nor do we. Did you mean '{meant}'?" in str(caught.value)


def test_our_words_in_the_reader_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"TrainReader\.accumulate_stps: the reader does nothing with it"):
        keys.translate({"TrainReader": {"batch_size": 2, "accumulate_stps": 8}})


def test_no_native_key_is_taken_for_a_typo() -> None:
    assert keys.misspelt(dict.fromkeys(NATIVE, 1)) == []
    assert keys.misspelt({"Recompute": 1}, registered=["Recompute"]) == []
    assert keys.misspelt({"Recompute": 1})


def test_keys_beside_the_config_give_way_to_it() -> None:
    beside = {"gradient_accumulation": {"steps": 4, "weight": "boxes"}, "recompute": {"every_n": 2}}
    found = keys.translate({"gradient_accumulation": {"steps": 8}, "recompute": False}, beside=beside).config
    assert (found.gradient_accumulation.steps, found.gradient_accumulation.weight) == (8, "boxes")
    assert not found.recompute.enable
    assert keys.translate({"epoch": 1}, beside={}).config is not None, "asked for in another way"


def test_reader_factor_and_advice() -> None:
    few = keys.translate({"gradient_accumulation": {"steps": 4}})
    many = keys.translate({"gradient_accumulation": {"steps": 32}})
    sliced = keys.translate({"gradient_accumulation": {"micro_batch_size": 2}})
    assert [keys.reader_factor(found.config) for found in (few, many, sliced)] == [4, 32, 1]
    assert few.notes == () and "holds 32 micro-batches at once in host memory" in many.notes[0]


def test_a_second_reduction_is_turned_off() -> None:
    assert (
        keys.translate({"recompute": True, "use_fused_allreduce_gradients": True}).native[
            "use_fused_allreduce_gradients"
        ]
        is False
    )


def test_random_keys_are_accepted_or_refused_by_name() -> None:
    """500 random key sets: a ConfigError that names a key, or a config; nothing else."""
    draw = random.Random(3)
    values = [
        True,
        False,
        None,
        0,
        1,
        4,
        -3,
        0.5,
        "auto",
        "O1",
        "O2",
        "14GiB",
        [],
        ["backbone.*"],
        {},
        {"enable": False},
    ]
    inner = sorted({key for _, key in flat_names().values()})
    outer = [*SECTIONS, *keys.NATIVE_AMP_KEYS, *flat_names(), "to_static", "epoch", "amp_levl", "TrainReader", 7]
    refused = 0
    for _ in range(500):
        cfg = {}
        for name in draw.sample(outer, draw.randint(1, 4)):
            nested = {draw.choice(inner): draw.choice(values) for _ in range(draw.randint(0, 3))}
            cfg[name] = nested if draw.random() < 0.6 else draw.choice(values)
        try:
            keys.translate(cfg)
        except ConfigError as error:
            refused += 1
            assert any(str(name).split("_")[0] in str(error) for name in cfg), (cfg, str(error))
    assert 100 < refused < 500
