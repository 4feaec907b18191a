"""The command line, as a user types it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from paddle_memcallbacks.cli import app


def call(*words):
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("command", ["run", "plan", "verify", "report", "doctor", "schema", "demo"])
def test_every_command_has_help(command):
    result = call(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_schema_is_json():
    assert json.loads(call("schema").output)["properties"].keys() >= {"amp", "recompute", "memory"}


def test_doctor_finds_this_environment_healthy():
    result = call("doctor")
    assert result.exit_code == 0, result.output
    assert "fp16 loss scaling is off on cpu" in result.output


def test_report_of_an_empty_folder_says_so(tmp_path):
    result = call("report", str(tmp_path))
    assert result.exit_code == 2


def test_a_wrong_config_is_one_message(tmp_path):
    (tmp_path / "mem.yml").write_text("recompute: {layerz: [a]}\n")
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    done = subprocess.run(
        [sys.executable, "-m", "paddle_memcallbacks", "run", "--config", tmp_path / "mem.yml", tmp_path / "train.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "recompute.layers" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_hands_the_words_on_and_keeps_the_exit_status(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\nraise SystemExit(7)\n")
    done = subprocess.run(
        [sys.executable, "-m", "paddle_memcallbacks", "run", tmp_path / "train.py", "-c", "x.yml", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 7
    assert "['-c', 'x.yml', '--help']" in done.stdout


def test_a_script_without_a_training_is_told_that_the_keys_did_nothing(tmp_path):
    (tmp_path / "train.py").write_text("print('done')\n")
    statuses = {}
    for command in ("run", "verify"):
        done = subprocess.run(
            [sys.executable, "-m", "paddle_memcallbacks", command, tmp_path / "train.py"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        statuses[command] = done.returncode
        assert "the keys did nothing" in done.stderr
    assert statuses == {"run": 0, "verify": 2}
