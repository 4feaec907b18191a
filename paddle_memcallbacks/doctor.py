"""Versions, device, AMP support, and the known breakages with their pins. The list is data; the check is pure."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

_SHOWN = (
    "paddle_memcallbacks",
    "paddlepaddle",
    "paddlepaddle-gpu",
    "paddlenlp",
    "paddledet",
    "visualdl",
    "numpy",
    "protobuf",
)


@dataclass(frozen=True)
class Breakage:
    """A version that breaks another package.

    Attributes:
        package: the distribution that breaks it.
        least: the first version that does, as numbers.
        affects: the distribution that breaks.
        pin: what to install instead.
        what: what is seen.
    """

    package: str
    least: tuple[int, ...]
    affects: str
    pin: str
    what: str


BREAKAGES = (
    Breakage("huggingface-hub", (1,), "paddlenlp", "huggingface_hub<1", "2.x: import fails; 1.x: HTTP errors raise"),
    Breakage("aistudio-sdk", (0, 3), "paddlenlp", "aistudio-sdk<0.3", "aistudio_sdk.hub.download is gone"),
    Breakage("pyarrow", (26,), "paddledet", "pyarrow<26", "refuses numpy<2 at import"),
    Breakage("setuptools", (82,), "paddledet", "setuptools<82", "pkg_resources is gone, ppdet imports it"),
    Breakage("protobuf", (7,), "visualdl", "protobuf<7", "add_hparams rejects a bool; PaddleNLP dies at train begin"),
    Breakage("visualdl", (3,), "paddle_memcallbacks", "visualdl<3", "not tested with this library"),
)


def find_breakages(installed: Mapping[str, str]) -> list[Breakage]:
    """The known breakages among ``installed`` (distribution -> version)."""
    return [
        item
        for item in BREAKAGES
        if item.package in installed
        and item.affects in installed
        and version_numbers(installed[item.package]) >= item.least
    ]


def version_numbers(version: str) -> tuple[int, ...]:
    """``0.36.2rc1`` -> ``(0, 36, 2)``."""
    numbers = []
    for part in version.split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not part[:1].isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def installed_versions() -> dict[str, str]:
    """Distribution -> version of everything that is installed, names in lower case with dashes."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            key = "paddle_memcallbacks" if name.replace("-", "_") == "paddle_memcallbacks" else name
            found[key if key == "paddle_memcallbacks" else key.lower().replace("_", "-")] = distribution.version
    return found


def examine(console: Console) -> bool:
    """Print what is installed and what is wrong with it. True where nothing is."""
    installed = installed_versions()
    table = Table(title="versions", show_header=False)
    table.add_row("python", ".".join(map(str, sys.version_info[:3])))
    for name in _SHOWN:
        if name in installed:
            table.add_row(name, installed[name])
    console.print(table)
    healthy = True
    for item in find_breakages(installed):
        healthy = False
        version = installed[item.package]
        console.print(
            f"[red]breaks:[/] {item.package} {version} with {item.affects}: {item.what}. pip install '{item.pin}'"
        )
    if "paddlenlp" in installed and "pip" not in installed:
        healthy = False
        console.print("[red]breaks:[/] paddlenlp imports pip, which this environment has not. Install pip.")
    healthy = _examine_paddle(console, installed) and healthy
    console.print("[green]nothing known is wrong[/]" if healthy else "[red]mend the lines above[/]")
    return healthy


def _examine_paddle(console: Console, installed: Mapping[str, str]) -> bool:
    try:
        import paddle
    except ImportError as error:
        console.print(
            f"[red]paddle cannot be imported[/] ({error}). On a CPU: pip install 'paddlepaddle==3.3.1'; on a GPU take "
            "the paddlepaddle-gpu wheel for your CUDA version from https://www.paddlepaddle.org.cn/install/quick"
        )
        return False
    from paddle_memcallbacks import memory
    from paddle_memcallbacks.loss_scale import amp_support

    device = paddle.get_device()
    support = amp_support(device)
    console.print(f"device: {device} (paddle {paddle.__version__})")
    console.print(f"AMP: {'supported' if support.supported else 'off'}; {support.reason}")
    if memory.can_reset_peak():
        console.print("memory peaks: by phase (forward, backward, step); the planner can profile")
    else:
        console.print(
            "memory peaks: [yellow]this paddle cannot reset a peak[/], so there are none by phase and no planner; "
            "both need paddle 3.0"
        )
    for name in ("paddlenlp", "paddledet"):
        console.print(f"{name}: {installed.get(name, 'not installed')}")
    return True
