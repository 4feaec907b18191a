"""The real VisualDL server."""

from __future__ import annotations

import contextlib
import json
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


@dataclass(frozen=True)
class Server:
    """A VisualDL server on the loopback, started beside the folder ``name``; it calls a run ``name/baseline``."""

    name: str
    port: int

    def url(self, path: str) -> str:
        """The address of a page or an API call, e.g. ``app/scalar``."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def api(self, path: str, **query: str) -> Any:
        """What ``/app/api/<path>`` answers with, e.g. ``api("scalar/tags")``."""
        address = self.url(f"app/api/{path}") + ("?" + urllib.parse.urlencode(query) if query else "")
        with urllib.request.urlopen(address, timeout=20) as answer:
            body = json.load(answer)
        assert body["status"] == 0, body
        return body["data"]

    def runs(self) -> list[str]:
        """All runs."""
        return sorted(self._short(run) for run in self.api("runs"))

    def tags(self) -> dict[str, list[str]]:
        """Scalar tags by run."""
        listed = self.api("scalar/tags")
        return {
            self._short(run): [urllib.parse.unquote(tag) for tag in tags]
            for run, tags in zip(listed["runs"], listed["tags"], strict=True)
        }

    def points(self, run: str, tag: str) -> list[tuple[int, float]]:
        """(step, value) of a curve."""
        points = self.api("scalar/list", run=f"{self.name}/{run}", tag=tag)
        return [(int(step), float(value)) for _, step, value in points]

    def _short(self, run: str) -> str:
        return run.removeprefix(f"{self.name}/")


@contextlib.contextmanager
def visualdl_server(logdir: Path) -> Iterator[Server]:
    """Serve ``logdir`` on a free port of the loopback, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).parent / "visualdl"),
        f"--logdir={logdir.name}",
        f"--port={port}",
        "--host=127.0.0.1",
        "--language=en",
        "--disable-telemetry",
    ]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, cwd=logdir.parent)
        try:
            server = Server(logdir.name, port)
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
