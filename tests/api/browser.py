"""A real browser, driven over its own debugging protocol."""

import asyncio
import itertools
import json
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_S = 60.0


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """A tab, and every request it has sent."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.requested: list[str] = []
        self.complaints: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if waiting := self._waiting.pop(told.get("id", 0), None):
                if not waiting.done():
                    waiting.set_result(told)
            elif told.get("method") == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
            elif told.get("method") == "Log.entryAdded":
                self.complaints.append(told["params"]["entry"]["text"])

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE_S):
            told: dict[str, Any] = await answer
        assert "error" not in told, told
        return dict(told["result"])

    async def open(self, url: str) -> None:
        await self.command("Network.enable")
        await self.command("Log.enable")
        await self.command("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        told = await self.command("Runtime.evaluate", expression=script, returnByValue=True)
        return told["result"].get("value")

    async def until(self, script: str) -> None:
        """Returns when a condition holds in the page."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.evaluate(script):
                await asyncio.sleep(0.1)

    async def click(self, selector: str) -> None:
        await self.until(f"document.querySelector({selector!r}) !== null")
        await self.evaluate(f"document.querySelector({selector!r}).click()")


@asynccontextmanager
async def open_page(folder: Path) -> AsyncIterator[Page]:
    """An empty tab of a browser that keeps everything in a folder and asks nobody on its own."""
    program = chromium()
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as http:
            url = await _debugger(http, folder / "DevToolsActivePort")
            async with http.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                yield page
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _debugger(http: aiohttp.ClientSession, file: Path) -> str:
    async with asyncio.timeout(PATIENCE_S):
        while not file.exists() or len(file.read_text().splitlines()) < 2:
            await asyncio.sleep(0.05)
        port = file.read_text().splitlines()[0]
        while True:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)
