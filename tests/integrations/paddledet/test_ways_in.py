"""The three ways in: a YAML line under an unmodified script, `paddle-mem run`, a callback in code (runs/models.py)."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from .conftest import EXAMPLE, python

pytestmark = pytest.mark.paddledet

MODEL_LINE = "model: !!python/module:tests.integrations.paddledet.tiny\n"
PLUGIN_LINE = "plugins: !!python/module:paddle_memcallbacks.integrations.paddledet\n"


def config_file(scenes: Path, folder: Path, *lines: str) -> Path:
    tiny = (Path(__file__).parent / "tiny.py").read_text()
    text = tiny.split('CONFIG = """')[1].split('"""')[0].format(scenes=scenes, save_dir=folder, shuffle="false")
    file = folder / "tiny.yml"
    file.write_text("".join(lines) + MODEL_LINE.replace("model", "tiny_model") + text)
    return file


def header_and_active(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "tiny" / "memcallbacks.jsonl").read_text().splitlines()]
    return next(x["run"] for x in lines if "run" in x), next(x["active"] for x in lines if "active" in x)


def test_yaml_line_under_an_unmodified_script(scenes: Path, tmp_path: Path) -> None:
    keys = textwrap.dedent(
        f"""
        amp: {{enable: true, level: O1, init_loss_scaling: 4096}}
        use_vdl: true
        vdl_log_dir: {tmp_path}/curves
        gradient_accumulation: {{steps: 2}}
        """
    )
    file = config_file(scenes, tmp_path, PLUGIN_LINE, keys)
    overrides = [
        "amp.incr_ratio=4.0",
        "recompute.layers=[head,backbone]",
        "recompute.every_n=2",
        "TrainReader.batch_size=4",
        f"output_eval={tmp_path}",
    ]
    done = python(EXAMPLE / "train.py", "-c", file, "--eval", "-o", *overrides)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    run, active = header_and_active(tmp_path)
    assert run["config"]["amp"]["enable"] is True, "tools/train.py writes its flag's default over YAML's amp"
    assert (run["config"]["amp"]["init_loss_scaling"], run["config"]["amp"]["incr_ratio"]) == (4096.0, 4.0)
    assert (active["rows"], active["micro_batch_size"], active["units"]) == (8, 4, 1)
    assert "Eval iter: 0" in said
    curves = list((tmp_path / "curves").glob("*.log"))
    assert len(curves) == 1, "our curves go through PaddleDetection's own writer"
    tags = set(read_tags(curves[0]))
    assert {"loss", "memory/peak_backward_gib", "accumulation/micro_batches"} <= tags
    assert not (tmp_path / "tiny" / "vdl").exists()


def test_paddle_mem_run_with_a_config_beside(scenes: Path, tmp_path: Path) -> None:
    file = config_file(scenes, tmp_path)
    beside = tmp_path / "mem.yml"
    beside.write_text("gradient_accumulation: {micro_batch_size: 2}\nvisualdl: {logdir: %s}\n" % (tmp_path / "ours"))
    words = ["-m", "paddle_memcallbacks", "run", "--config", beside, EXAMPLE / "train.py", "-c", file]
    done = python(*words, "-o", "epoch=1", "gradient_accumulation.micro_batch_size=3")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    _, active = header_and_active(tmp_path)
    assert active["micro_batch_size"] == 3, "the command line's override reaches the same keys"
    assert {"memory/peak_backward_gib"} <= set(read_tags(next((tmp_path / "ours").rglob("*.log"))))


def test_faults_are_told_before_anything_is_built(scenes: Path, tmp_path: Path) -> None:
    file = config_file(scenes, tmp_path, PLUGIN_LINE, "recompute: true\namp: {level: O1}\namp_level: O2\n")
    done = python(EXAMPLE / "train.py", "-c", file)
    assert done.returncode == 1
    assert "amp.level (O1) and amp_level (O2) contradict each other" in done.stderr
    assert "samples valid" not in done.stdout + done.stderr


def read_tags(file: Path) -> list[str]:
    from visualdl import LogReader

    return [tag for tags in LogReader(file_path=str(file)).get_tags().values() for tag in tags]
