"""A user's script runs unchanged; a plugin is switched on once its toolkit is imported."""

import sys

import pytest

from paddle_memcallbacks import launch
from paddle_memcallbacks.config import load_config


class Recorder:
    def __init__(self, trigger):
        self.name, self.trigger, self.configs = "recorder", trigger, []

    def activate(self, config):
        self.configs.append(config)


def test_a_plugin_waits_for_its_toolkit(tmp_path, monkeypatch):
    (tmp_path / "some_toolkit_for_a_test.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin, config = Recorder("some_toolkit_for_a_test"), load_config({})
    launch.activate_on_import(plugin, config)
    assert plugin.configs == []
    import some_toolkit_for_a_test

    assert some_toolkit_for_a_test.value == 7
    assert some_toolkit_for_a_test.__loader__ is some_toolkit_for_a_test.__spec__.loader
    assert plugin.configs == [config]


def test_a_toolkit_that_is_there_already(monkeypatch):
    plugin = Recorder("sys")
    launch.activate_on_import(plugin, load_config({}))
    assert len(plugin.configs) == 1


def test_the_script_sees_its_own_name_arguments_and_folder(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("here = 1\n")
    script = tmp_path / "train.py"
    script.write_text("import sys, beside\nopen(sys.argv[1], 'w').write(f'{__name__} {sys.argv[0]} {beside.here}')\n")
    before = list(sys.argv)
    launch.run_script(script, [str(tmp_path / "out.txt")])
    assert (tmp_path / "out.txt").read_text() == f"__main__ {script} 1"
    assert sys.argv == before
    sys.modules.pop("beside")


def test_an_error_of_the_script_is_its_own(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise KeyError('mine')\n")
    with pytest.raises(KeyError, match="mine"):
        launch.run_script(script, [])


def test_both_toolkits_are_found():
    assert {plugin.name for plugin in launch.plugins()} == {"paddlenlp", "paddledet"}
