"""Headless Chromium for tests: opens a page, and tells its console, its widths and what it looks like."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tornado.websocket import WebSocketClientConnection, websocket_connect

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-port=0", "--remote-allow-origins=*",
]  # fmt: skip

LAYOUT = """(() => {
  const box = document.documentElement;
  const beyond = [...document.querySelectorAll('figure svg text')].filter(text => {
    const own = text.getBoundingClientRect(), view = text.closest('svg').getBoundingClientRect();
    return own.left < view.left - 2 || own.right > view.right + 2 || own.top < view.top - 2
      || own.bottom > view.bottom + 2;
  }).map(text => text.closest('figure').id + ': ' + text.textContent);
  const shown = [...document.querySelectorAll('figure')].filter(f => {
    const r = f.querySelector('svg').getBoundingClientRect(); return r.width > 200 && r.height > 100;
  }).map(f => f.id);
  const read = [...document.querySelectorAll('figure svg text')].map(text => text.getBoundingClientRect().height);
  return {scroll: box.scrollWidth, width: box.clientWidth, height: box.scrollHeight, clipped: beyond, figures: shown,
          smallest: Math.min(...read), back: getComputedStyle(document.body).backgroundColor};
})()"""
"""What a page looks like: its widths, the figures that are there, texts that leave their figure."""


def browser() -> str | None:
    """Chromium, where it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """A tab of the browser, by its debugging protocol."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.messages: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """The answer to a command; what happens meanwhile is noted."""
        self._number += 1
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            said = await self._next()
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]

    async def _next(self) -> Any:
        text = await asyncio.wait_for(self._socket.read_message(), 120)
        assert text is not None, "the browser has gone"
        said = json.loads(text)
        self._note(said.get("method", ""), said.get("params", {}))
        return said

    def _note(self, event: str, params: Any) -> None:
        self._events.append(event)
        if event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(params))
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    async def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        self._events.clear()
        await self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            await self._next()

    async def look(self, width: int, *, dark: bool = False, media: str = "", picture: Path | None = None) -> Any:
        """The page's layout at a width in pixels, and a picture of all of it if wanted."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        found = (await self.call("Runtime.evaluate", expression=LAYOUT, returnByValue=True))["result"]["value"]
        if picture is not None:
            clip = {"x": 0, "y": 0, "width": width, "height": found["height"], "scale": 1}
            shot = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(shot["data"]))
        return found

    async def print(self, path: Path) -> None:
        """The page as PDF."""
        path.write_bytes(base64.b64decode((await self.call("Page.printToPDF", printBackground=True))["data"]))


@contextlib.asynccontextmanager
async def tab(profile: Path) -> AsyncIterator[Tab]:
    """A browser of its own with one empty tab, which ends with the block."""
    name = browser()
    assert name is not None
    with subprocess.Popen(
        [name, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            port = await _port(profile, process)
            with urlopen(f"http://127.0.0.1:{port}/json") as answer:
                target = next(t for t in json.load(answer) if t["type"] == "page")
            socket = await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=1 << 28)
            try:
                yield Tab(socket)
            finally:
                socket.close()
        finally:
            process.terminate()


async def _port(profile: Path, process: subprocess.Popen[bytes]) -> int:
    """Where the browser listens, which it writes into its profile."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the browser did not start"
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((profile / "DevToolsActivePort").read_text().splitlines()[0])
        await asyncio.sleep(0.05)
    raise TimeoutError("the browser does not listen")
