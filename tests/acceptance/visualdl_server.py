"""The real VisualDL server, and pages of it in headless Chromium."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_SECONDS = 60
PAGE_SECONDS = 120


@dataclass(frozen=True)
class Server:
    """A VisualDL server on the loopback."""

    port: int

    def url(self, path: str) -> str:
        """The address of a page or an API call, e.g. ``app/scalar``."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def api(self, path: str, **query: str) -> Any:
        """What ``/app/api/<path>`` answers with, e.g. ``api("scalar/list", run="baseline", tag="train/loss")``."""
        address = self.url(f"app/api/{path}") + ("?" + urllib.parse.urlencode(query) if query else "")
        with urllib.request.urlopen(address, timeout=20) as answer:
            body = json.load(answer)
        assert body["status"] == 0, body
        return body["data"]

    def tags(self) -> dict[str, list[str]]:
        """Scalar tags by run."""
        listed = self.api("scalar/tags")
        return {
            run: [urllib.parse.unquote(tag) for tag in tags]
            for run, tags in zip(listed["runs"], listed["tags"], strict=True)
        }

    def points(self, run: str, tag: str) -> list[tuple[int, float]]:
        """(step, value) of a curve."""
        return [(int(point[1]), float(point[2])) for point in self.api("scalar/list", run=run, tag=tag)]


@contextlib.contextmanager
def visualdl_server(logdir: Path) -> Iterator[Server]:
    """Serve ``logdir`` on a free port of the loopback, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).parent / "visualdl"),
        f"--logdir={logdir}",
        f"--port={port}",
        "--host=127.0.0.1",
        "--language=en",
        "--disable-telemetry",
    ]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            server = Server(port)
            _wait(server, process, said)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes], said: Any) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said.seek(0)
            raise AssertionError(f"the server ended with {process.returncode}: {said.read()[-2000:]}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            server.api("runs")
            return
        time.sleep(0.2)
    raise AssertionError(f"the server was not ready within {READY_SECONDS} s")


def chromium() -> str | None:
    """Chromium's command; None where it is not installed."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


def rendered_text(url: str) -> str:
    """The words of a page after its scripts have run."""
    html = _browse(url, ["--dump-dom"])
    html = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def screenshot(url: str, path: Path, width: int = 1600, height: int = 1200) -> None:
    """A picture of a page after its scripts have run."""
    _browse(url, [f"--screenshot={path}", f"--window-size={width},{height}"])


def _browse(url: str, options: list[str]) -> str:
    browser = chromium()
    assert browser is not None
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--virtual-time-budget=15000",
            f"--user-data-dir={profile}",
            *options,
            url,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PAGE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
