"""Every ready config, as PaddleDetection merges it: our keys read; one model of each kind built, its stages found."""

from __future__ import annotations

import sys
from pathlib import Path

from paddle_memcallbacks.integrations.paddledet.keys import translate
from paddle_memcallbacks.integrations.paddledet.stages import find_stages
from ppdet.core import workspace

from tests.integrations.paddledet.runs.common import answer


def main() -> None:
    found: dict[str, dict[str, object]] = {}
    stages: dict[str, int] = {}
    for file in sorted(Path(sys.argv[3]).glob("*.yml")):
        registered = workspace.get_registered_modules()
        for key in [key for key in workspace.global_config if key not in registered]:
            del workspace.global_config[key]
        cfg = workspace.load_config(str(file))
        config = translate(cfg, registered).config
        assert config is not None
        if cfg.architecture not in stages:
            # a second PicoDet in one process is another one: its head writes into the config
            stages[cfg.architecture] = len(find_stages(workspace.create(cfg.architecture)))
        found[file.stem] = {
            "recompute": config.recompute.enable,
            "micro_batch_size": config.gradient_accumulation.micro_batch_size,
            "rows": cfg["TrainReader"]["batch_size"],
            "plugin": cfg["plugins"].__name__,
        }
    answer(configs=found, stages=stages)


main()
