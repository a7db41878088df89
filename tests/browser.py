"""A headless Chromium that shows a file: what its console says, what it asks for, how it looks."""

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
_PATIENCE_SECONDS: Final = 60


def chromium() -> str:
    """The browser on PATH; skips the calling test where there is none."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip(f"no browser on PATH: {', '.join(NAMES)}")


class Browser:
    """One tab, over the DevTools protocol.

    Attributes:
        console: Messages, errors and exceptions, in order.
        requests: URLs that were asked for, in order.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session: str | None = None
        self._numbers = itertools.count(1)
        self.console: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401
        """Sends a command and waits for its answer; events meanwhile are kept."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        while True:
            answer = await asyncio.wait_for(self._socket.receive_json(), _PATIENCE_SECONDS)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self._keep(answer)

    def _keep(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append(str([one.get("value") for one in parameters["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(str(parameters["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    async def begin(self) -> None:
        """Makes the tab."""
        target = await self.call("Target.createTarget", url="about:blank")
        found = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def open(self, page: Path, width: int = 1440, height: int = 1000) -> float:
        """Shows a report and gives the seconds until it was drawn."""
        self.console.clear()
        self.requests.clear()
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        await self.call("Page.navigate", url=page.as_uri())
        for _ in range(_PATIENCE_SECONDS * 20):
            ready = await self.run("document.documentElement?.dataset.ready")
            if ready is not None:
                return float(ready) / 1000
            await asyncio.sleep(0.05)
        raise AssertionError(f"not drawn: {self.console}")

    async def run(self, script: str) -> Any:  # noqa: ANN401  # of JSON
        """The value of a JavaScript expression."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def press(self, *keys: str) -> None:
        """Presses and lets go of keys."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def move(self, x: float, y: float) -> None:
        """Moves the mouse."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def look(self, **features: str) -> None:
        """Sets media features, such as `prefers_color_scheme="dark"`."""
        found = [{"name": n.replace("_", "-"), "value": value} for n, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=found)

    async def settle(self) -> None:
        """Waits until what has changed is drawn."""
        script = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        await self.call("Runtime.evaluate", expression=script, awaitPromise=True)

    async def screenshot(self, *, whole: bool = False) -> bytes:
        """What is seen, as PNG; `whole`: all of the page."""
        await self.settle()
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    async def print(self) -> bytes:
        """The page on paper, as PDF."""
        answer = await self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """Starts a browser and ends it; `folder` holds its profile."""
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
            line = await asyncio.wait_for(process.stderr.readline(), _PATIENCE_SECONDS)
            assert line, "the browser ended"
            if match := re.search(rb"DevTools listening on (ws://\S+)", line):
                url = match[1].decode()
        draining = asyncio.create_task(process.stderr.read())
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, max_msg_size=0) as socket,
        ):
            tab = Browser(socket)
            await tab.begin()
            yield tab
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
        await process.wait()
        if draining is not None:
            await draining
