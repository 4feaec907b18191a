"""Headless Chromium, driven over its debugging pipe: open a page, ask it, click, take a picture."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE_SECONDS = 60
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
# Chromium reads from descriptor 3 and writes to 4
_AS_3_AND_4 = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for wanted, number in zip((3, 4), ours):
    os.dup2(number, wanted)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """Chromium's command; None where it is not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Page:
    """One page. Messages are JSON ended by a NUL byte, through two pipes."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, url: str, width: int = 1600, height: int = 1200) -> None:
        """Go to an address, in a window of this size."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && document.body !== null")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = PAGE_SECONDS) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.ask(f"Boolean({expression})"):
                return
            time.sleep(0.1)
        raise AssertionError(f"not true within {seconds} s: {expression}; the page says: {self.text()[:2000]}")

    def text(self) -> str:
        """The words that a reader sees."""
        return str(self.ask("document.body ? document.body.innerText : ''"))

    def screenshot(self, path: Path) -> None:
        """A picture of the window."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], PAGE_SECONDS)
            read = os.read(self._from, 1 << 20) if ready else b""
            assert read, "the browser is gone" if ready else f"the browser was silent for {PAGE_SECONDS} s"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a browser with an empty profile, until the block ends."""
    command = chromium()
    assert command is not None, "Chromium is not installed"
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _AS_3_AND_4, str(theirs_in), str(theirs_out)]
            + [command, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=said,
            stderr=said,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(ours_out, ours_in)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_out)
            os.close(ours_in)
