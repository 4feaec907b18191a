"""Installed plainly, used from the clone's root and from elsewhere; the integrations are found each time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = """
import paddle_memcallbacks, paddle_memcallbacks.integrations as integrations
from paddle_memcallbacks import launch
import importlib.util
assert importlib.util.find_spec("paddle_memcallbacks.integrations.paddlenlp")
assert importlib.util.find_spec("paddle_memcallbacks.integrations.paddledet")
assert {plugin.name for plugin in launch.plugins()} == {"paddlenlp", "paddledet"}
print(paddle_memcallbacks.__file__)
"""


def run(folder, path=None):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def plain_install(tmp_path_factory):
    source, target = tmp_path_factory.mktemp("source") / "clone", tmp_path_factory.mktemp("site")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, str(source)], check=True, timeout=300)
    return source, target


def test_editably_from_the_root_and_from_elsewhere(tmp_path):
    assert run(ROOT).is_relative_to(ROOT)
    assert run(tmp_path).is_relative_to(ROOT)


def test_plainly_from_elsewhere(plain_install, tmp_path):
    _, target = plain_install
    assert run(tmp_path, target).is_relative_to(target)
    assert (target / "paddle_memcallbacks" / "integrations" / "paddlenlp" / "__init__.py").is_file()
    assert list((target / "paddle_memcallbacks" / "report").glob("*.jinja"))


def test_plainly_from_the_clones_root(plain_install):
    source, target = plain_install
    assert run(source, target).is_relative_to(source)
