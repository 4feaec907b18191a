"""The ready configs load, carry the plugin line with its warning, and mean what their comments say."""

from __future__ import annotations

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.paddledet

CONFIGS = ROOT / "configs" / "paddledet"


def test_every_config_loads_and_means_what_it_says(run) -> None:
    found = run("configs", str(CONFIGS))
    sizes = {name: (values["rows"], values["micro_batch_size"]) for name, values in found["configs"].items()}
    assert sizes == {
        "faster_rcnn_r50_fpn_1x_16gib": (8, None),
        "faster_rcnn_r50_fpn_1x_8gib": (8, 4),
        "picodet_s_320_16gib": (256, None),
        "picodet_s_320_8gib": (256, 128),
        "ppyoloe_plus_s_16gib": (64, None),
        "ppyoloe_plus_s_8gib": (64, 32),
    }
    assert all(values["recompute"] for values in found["configs"].values())
    assert {values["plugin"] for values in found["configs"].values()} == {"paddle_memcallbacks.integrations.paddledet"}
    assert found["stages"] == {"FasterRCNN": 5, "PicoDet": 31, "YOLOv3": 16}


def test_every_plugin_line_says_that_a_yaml_file_is_code() -> None:
    for file in CONFIGS.glob("*.yml"):
        lines = file.read_text().splitlines()
        line = next(number for number, text in enumerate(lines) if text.startswith("plugins:"))
        assert "A YAML file is code" in lines[line - 1], file.name
