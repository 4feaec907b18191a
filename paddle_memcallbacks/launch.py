"""Running a user's own training script with the plugins on: nothing in the script changes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from paddle_memcallbacks.config import MemoryConfig

GROUP = "paddle_memcallbacks.integrations"


class Plugin(Protocol):
    """What an entry point of `GROUP` gives: see ``integrations/__init__.py``."""

    name: str
    trigger: str

    def activate(self, config: MemoryConfig) -> None:
        """Give every training of the toolkit in this process the config."""


def plugins() -> list[Plugin]:
    """The installed integrations, by entry point; from the clone's root also without an installation."""
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if found:
        return [entry.load() for _, entry in sorted(found.items())]
    module = importlib.import_module(GROUP)
    return [value for value in vars(module).values() if hasattr(value, "activate") and not isinstance(value, type)]


def activate_on_import(plugin: Plugin, config: MemoryConfig) -> None:
    """Switch the plugin on once its toolkit's ``trigger`` module has been imported, or now where it has been."""
    if plugin.trigger in sys.modules:
        plugin.activate(config)
    else:
        sys.meta_path.insert(0, _AfterImport(plugin.trigger, lambda: plugin.activate(config)))


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run ``script`` as ``python script arguments`` would: same ``__main__``, ``sys.argv`` and first path entry."""
    former = sys.argv, sys.path[0]
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[0] = former


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back after one module's import, then steps aside."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, then: Callable[[], None]) -> None:
        self._inner, self._then = inner, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._then()
