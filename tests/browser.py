"""Controls a headless Chromium over the DevTools protocol.

It opens pages, runs scripts, sends input, records requests and console messages, and takes
screenshots.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import re
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_SECONDS: Final = 60


def chromium() -> str:
    """Returns the path of a browser on PATH; skips the calling test if PATH has no browser."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser on PATH: {', '.join(NAMES)}")


class Browser:
    """A browser tab, controlled over the DevTools protocol.

    Attributes:
        console: Console messages, log entries and uncaught exceptions, oldest first.
        requests: URLs that the page requested, oldest first.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session: str | None = None
        self._numbers = itertools.count(1)
        self.console: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401
        """Sends a command and returns its result; stores events that arrive before the response."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        while True:
            response = await asyncio.wait_for(self._socket.receive_json(), _TIMEOUT_SECONDS)
            if response.get("id") == number:
                assert "error" not in response, (method, response)
                result: dict[str, Any] = response["result"]
                return result
            self._store_event(response)

    def _store_event(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append(str([argument.get("value") for argument in parameters["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(str(parameters["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    async def begin(self) -> None:
        """Opens an empty tab and enables its events."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def open(self, page: Path, width: int = 1440, height: int = 1000) -> float:
        """Opens a report and returns how many seconds the page needed until it was drawn."""
        await self.visit(page.as_uri(), width, height)
        return float(await self.wait_for("document.documentElement?.dataset.ready")) / 1000

    async def visit(self, url: str, width: int, height: int = 1000) -> None:
        """Opens a page and waits until it is loaded. A width below 600 pixels is a phone."""
        self.console.clear()
        self.requests.clear()
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        await self.call("Page.navigate", url=url)
        await self.wait_for("document.readyState === 'complete' || null")

    async def wait_for(self, script: str) -> Any:  # noqa: ANN401  # a JSON value
        """Evaluates a JavaScript expression until its value is not null, and returns the value."""
        for _ in range(_TIMEOUT_SECONDS * 20):
            value = await self.run(script)
            if value is not None:
                return value
            await asyncio.sleep(0.05)
        raise AssertionError(f"{script} was null for {_TIMEOUT_SECONDS} s: {self.console}")

    async def run(self, script: str) -> Any:  # noqa: ANN401  # a JSON value
        """Evaluates a JavaScript expression and returns its value."""
        response = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in response, response
        return response["result"].get("value")

    async def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def move(self, x: float, y: float) -> None:
        """Moves the mouse to a position in the visible area, in pixels from its top left corner."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def emulate_media(self, **features: str) -> None:
        """Emulates CSS media features, such as `prefers_color_scheme="dark"`."""
        media_features = [
            {"name": n.replace("_", "-"), "value": value} for n, value in features.items()
        ]
        await self.call("Emulation.setEmulatedMedia", features=media_features)

    async def settle(self) -> None:
        """Waits until the browser has drawn the last changes."""
        script = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        await self.call("Runtime.evaluate", expression=script, awaitPromise=True)

    async def screenshot(self, *, whole: bool = False) -> bytes:
        """Returns a PNG of the visible area or, if `whole` is true, of the entire page."""
        await self.settle()
        response = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(response["data"])

    async def print(self) -> bytes:
        """Returns the printed page as PDF."""
        response = await self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(response["data"])


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """Runs a browser during a `with` block; stores its profile in `folder`."""
    process = await asyncio.create_subprocess_exec(
        chromium(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'profile'}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    draining = None
    try:
        url = None
        while url is None:
            line = await asyncio.wait_for(process.stderr.readline(), _TIMEOUT_SECONDS)
            assert line, "the browser ended"
            if match := re.search(rb"DevTools listening on (ws://\S+)", line):
                url = match[1].decode()
        draining = asyncio.create_task(process.stderr.read())
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, max_msg_size=0) as socket,
        ):
            page = Browser(socket)
            await page.begin()
            yield page
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
        await process.wait()
        if draining is not None:
            await draining
