"""Trains with PaddleDetection, with the flags of its own tools/train.py, from the wheel alone (which has no tools/).

    python examples/detection/train.py -c examples/detection/picodet_digits.yml -o epoch=2
    paddle-mem run examples/detection/train.py -c examples/detection/picodet_digits.yml -o recompute=true

Nothing in here knows of paddle_memcallbacks.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

import paddle
from ppdet.core.workspace import load_config, merge_config
from ppdet.engine import Trainer, TrainerCot, init_fleet_env, init_parallel_env, set_random_seed, trainer_ssod
from ppdet.utils import check
from ppdet.utils.cli import ArgsParser, merge_args


def parse_args() -> argparse.Namespace:
    parser = ArgsParser()
    parser.add_argument("--eval", action="store_true", help="evaluate after every snapshot epoch")
    parser.add_argument("-r", "--resume", default=None, help="checkpoint to go on from")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--use_vdl", type=bool, default=False, help="write VisualDL curves")
    parser.add_argument("--vdl_log_dir", default="vdl_log_dir/scalar")
    parser.add_argument("--enable_ce", type=bool, default=False, help="fix the seed")
    parser.add_argument("--to_static", action="store_true")
    return parser.parse_args()


def make_trainer(cfg: Any) -> Trainer:
    method = cfg.get("ssod_method")
    if method is not None:
        return getattr(trainer_ssod, f"Trainer_{method}")(cfg, mode="train")
    return (TrainerCot if cfg.get("use_cot", False) else Trainer)(cfg, mode="train")


def main() -> None:
    flags = parse_args()
    cfg = load_config(flags.config)
    merge_args(cfg, flags)
    merge_config(flags.opt)
    for device in ("gpu", "npu", "xpu", "mlu"):
        cfg.setdefault(f"use_{device}", False)
    paddle.set_device("gpu" if cfg["use_gpu"] else "cpu")
    check.check_config(cfg)
    if cfg["fleet"]:
        init_fleet_env(cfg.get("find_unused_parameters", False))
    else:
        init_parallel_env()
    if flags.enable_ce:
        set_random_seed(0)
    trainer = make_trainer(cfg)
    if flags.resume is not None:
        trainer.resume_weights(flags.resume)
    elif cfg.get("pretrain_weights"):
        trainer.load_weights(cfg["pretrain_weights"])
    trainer.train(flags.eval)


if __name__ == "__main__":
    logging.captureWarnings(True)
    sys.exit(main())
