"""Shared by the config's tests: the full example, and the message of a refused config."""

from __future__ import annotations

from typing import Any

import pytest

from paddle_memcallbacks.config import ConfigError, load_config

# every key, each with a value that differs from its default where the key has another one
EVERY_KEY: dict[str, dict[str, Any]] = {
    "amp": {
        "enable": True,
        "level": "O2",
        "dtype": "float16",
        "master_weight": True,
        "master_grad": False,
        "init_loss_scaling": 4096.0,
        "incr_ratio": 4.0,
        "decr_ratio": 0.25,
        "incr_every_n_steps": 1000,
        "decr_every_n_nan_or_inf": 2,
        "use_dynamic_loss_scaling": False,
        "custom_white_list": ["matmul"],
        "custom_black_list": ["softmax", "layer_norm"],
    },
    "gradient_accumulation": {
        "enable": True,
        "steps": 4,
        "micro_batch_size": None,
        "slice_by": "order",
        "weight": "tokens",
    },
    "recompute": {
        "enable": True,
        "layers": ["backbone.*", "neck.**"],
        "every_n": 2,
        "first": 3,
        "last": 5,
        "verify": True,
    },
    "memory": {
        "enable": True,
        "budget": 14 * 2**30,
        "margin": 0.05,
        "plan": None,
        "interval": 20,
        "per_layer": False,
        "on_oom": "raise",
    },
    "loss_scale": {
        "enable": True,
        "min_loss_scale": 2.0,
        "max_consecutive_skips": 7,
        "max_skip_rate": 0.2,
        "on_storm": "stop",
        "on_floor": "raise",
        "every_skip": True,
        "sample_interval": 50,
    },
    "visualdl": {"enable": True, "logdir": "runs", "interval": 5},
}


def message_of(source: Any) -> str:
    """What `load_config` says against it."""
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    return str(caught.value)
