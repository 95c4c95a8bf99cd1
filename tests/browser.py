"""A page in headless Chromium, looked at through its DevTools protocol: what it logs, measures and looks like."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)

WAIT = 60.0
"""Seconds in which the browser has to come up, or answer."""

SAID = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
"""Events of everything that the console would show."""


def browser() -> str | None:
    """The program, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """A page that is open at a size."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.console: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self._events: list[str] = []

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": params}))
        while (answer := await self._next()).get("id") != number:
            pass
        assert "error" not in answer, (method, answer)
        return dict(answer["result"])

    async def _next(self) -> dict[str, Any]:
        text = await self._socket.read_message()
        assert text is not None, "the browser is gone"
        message: dict[str, Any] = json.loads(text)
        self._events.append(message.get("method", ""))
        if message.get("method") in SAID:
            self.console.append(message["params"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message

    async def show(self, page: Path, width: int, height: int = 900) -> None:
        """Open a file at a width of so many pixels, and wait until it and its pictures are loaded."""
        await self.fit(width, height)
        for part in ("Page", "Runtime", "Log", "Network"):
            await self.ask(f"{part}.enable")
        self._events.clear()
        await self.ask("Page.navigate", url=page.as_uri())
        while "Page.loadEventFired" not in self._events:
            await self._next()

    async def fit(self, width: int, height: int = 900, *, dark: bool = False, media: str = "") -> None:
        """Take another size, the reader's dark colours or light ones, and another medium, such as print."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", media=media, features=[scheme])

    async def value(self, expression: str) -> Any:
        """What an expression is in the page, a promise awaited."""
        found = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")


@contextlib.asynccontextmanager
async def tab(folder: Path) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, whose profile is a new folder, and which ends with the block."""
    program = browser()
    assert program is not None
    profile = folder / "profile"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none
    command = [program, *QUIET, *sandbox, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port = _port(profile / "DevToolsActivePort", process)
            address = f"ws://127.0.0.1:{port[0]}"
            async with _connected(f"{address}{port[1]}") as main:
                target = await _page_of(main)
            async with _connected(f"{address}/devtools/page/{target}") as socket:
                yield Tab(socket)
        finally:
            process.terminate()
            process.wait(WAIT)


@contextlib.asynccontextmanager
async def _connected(address: str) -> AsyncIterator[WebSocketClientConnection]:
    socket = await websocket_connect(address, max_message_size=1 << 28)
    try:
        yield socket
    finally:
        socket.close()
        while await socket.read_message() is not None:
            pass  # until the other side has closed too: a socket that is left open is a warning


def _port(file: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Port and path that the browser writes when it listens."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and len(lines := file.read_text().split()) == 2:
            return lines[0], lines[1]
        time.sleep(0.05)
    raise AssertionError("the browser did not come up")


async def _page_of(socket: WebSocketClientConnection) -> str:
    """The id of the page that was opened with the browser."""
    found = await Tab(socket).ask("Target.getTargets")
    return next(str(one["targetId"]) for one in found["targetInfos"] if one["type"] == "page")
