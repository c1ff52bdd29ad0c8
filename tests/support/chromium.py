"""Headless Chromium, driven over the DevTools protocol; only addresses of this machine are asked for."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

HOW_TO_GET = "no Chromium here: apt-get install chromium"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Page:
    """A page that is open.

    Attributes:
        events: What the browser has told, in order: ``(method, parameters)``.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._calls = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._calls:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message:
                self.events.append((message["method"], message.get("params", {})))

    def open(self, url: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("text"))
        return answer["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 60) -> Any:
        """The value of an expression once it is true."""
        until = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(RuntimeError):  # the page is being replaced
                if value := self.evaluate(expression):
                    return value
            if time.monotonic() > until:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"not within {timeout_s:g} s: {expression}; the page says: {text[:2000]}")
            time.sleep(0.1)

    @property
    def text(self) -> str:
        """What the page shows."""
        return str(self.evaluate("document.body.innerText"))

    def screenshot(self, path: Path) -> None:
        """The page as a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def find_chromium() -> str | None:
    """The program, None if there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def chromium(width: int = 1400, height: int = 1000) -> Iterator[Page]:
    """An empty page in a browser of its own.

    Raises:
        FileNotFoundError: There is no Chromium.
    """
    program = find_chromium()
    if program is None:
        raise FileNotFoundError(HOW_TO_GET)
    profile = Path(tempfile.mkdtemp(prefix="llm-sampler-chromium-"))
    command = [program, *_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(profile / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            address = next(one["webSocketDebuggerUrl"] for one in json.load(answer) if one["type"] == "page")
        with connect(address, max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(file.read_text().splitlines()[0])
        time.sleep(0.05)
    raise RuntimeError("Chromium does not start")
