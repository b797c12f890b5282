"""A real browser, driven over its own debugging protocol."""

import asyncio
import itertools
import json
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_S = 30.0
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "ArrowDown": (40, ""), "ArrowUp": (38, "")}
_COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown")


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
            elif told.get("method") in _COMPLAINTS:
                about = told["params"].get("entry") or told["params"]["exceptionDetails"]
                self.complaints.append(about["text"] + about.get("url", ""))

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE_S):
            told: dict[str, Any] = await answer
        assert "error" not in told, told
        return dict(told["result"])

    async def open(self, url: str) -> None:
        for part in ("Network", "Log", "Runtime", "Page"):
            await self.command(f"{part}.enable")
        # Also where another tab is in front.
        await self.command("Emulation.setFocusEmulationEnabled", enabled=True)
        await self.command("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        told = await self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        return told["result"].get("value")

    async def until(self, script: str) -> None:
        """Returns when a condition holds in the page."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await self.evaluate(script):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            shows = await self.evaluate("document.body.innerText")
            raise AssertionError(f"never true: {script}\nThe page shows:\n{shows}") from None

    async def until_shows(self, text: str, selector: str = "body") -> None:
        shown = f"document.querySelector({selector!r})?.innerText"
        await self.until(f"({shown} ?? '').includes({json.dumps(text)})")

    async def click(self, selector: str) -> None:
        await self.until(f"document.querySelector({selector!r}) !== null")
        await self.evaluate(f"document.querySelector({selector!r}).click()")

    async def click_text(self, text: str, selector: str = "button, a, summary") -> None:
        """Click the first element of a kind that says just this, once it can be clicked."""
        found = f"[...document.querySelectorAll({selector!r})]"
        one = (
            f"{found}.find(each => !each.disabled && each.innerText.trim() === {json.dumps(text)})"
        )
        await self.until(f"{one} !== undefined")
        await self.evaluate(f"{one}.click()")

    async def type(self, text: str, selector: str | None = None) -> None:
        """Type into an element, or into the one that has the focus."""
        await self.command("Page.bringToFront")
        if selector is not None:
            await self.until(f"document.querySelector({selector!r}) !== null")
            await self.evaluate(f"document.querySelector({selector!r}).focus()")
        await self.command("Input.insertText", text=text)

    async def press(self, key: str, *, control: bool = False) -> None:
        code, text = _KEYS.get(key, (ord(key.upper()[0]), "" if control else key))
        about = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 2 if control else 0}
        await self.command("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        await self.command("Input.dispatchKeyEvent", type="keyUp", **about)

    async def choose_files(self, selector: str, *paths: Path) -> None:
        await self.until(f"document.querySelector({selector!r}) !== null")
        root = (await self.command("DOM.getDocument"))["root"]["nodeId"]
        found = await self.command("DOM.querySelector", nodeId=root, selector=selector)
        files = [str(path) for path in paths]
        await self.command("DOM.setFileInputFiles", nodeId=found["nodeId"], files=files)

    async def downloads_to(self, folder: Path) -> None:
        await self.command(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder)
        )

    async def look(self, *, width: int, height: int, dark: bool = False) -> None:
        """Set the size of the window, and what the system is said to prefer."""
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path) -> None:
        told = await self.command("Page.captureScreenshot", format="png")
        path.write_bytes(b64decode(told["data"]))


class Browser:
    def __init__(self, http: aiohttp.ClientSession, port: str, stack: AsyncExitStack) -> None:
        self._http = http
        self._address = f"http://127.0.0.1:{port}"
        self._stack = stack
        self._open: list[Page] = []

    async def tab(self) -> Page:
        """A new tab, which is empty."""
        async with self._http.put(f"{self._address}/json/new?about:blank") as answer:
            url = (await answer.json())["webSocketDebuggerUrl"]
        socket = await self._stack.enter_async_context(self._http.ws_connect(url, max_msg_size=0))
        page = Page(socket)
        listening = asyncio.create_task(page.listen())
        self._stack.push_async_callback(_stopped, listening)
        self._open.append(page)
        return page

    async def close_tabs(self) -> None:
        """A browser has six connections to a server for all of its tabs together."""
        while self._open:
            await self._open.pop().command("Page.close")


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def open_browser(folder: Path) -> AsyncIterator[Browser]:
    """A browser that keeps everything in a folder and asks nobody on its own."""
    program = chromium()
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost,"
        " EXCLUDE *.localhost",
        "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as http, AsyncExitStack() as stack:
            port = await _port(folder / "DevToolsActivePort")
            yield Browser(http, port, stack)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def open_page(folder: Path) -> AsyncIterator[Page]:
    """The only tab of such a browser."""
    async with open_browser(folder) as browser:
        yield await browser.tab()


async def _port(file: Path) -> str:
    async with asyncio.timeout(PATIENCE_S):
        while not file.exists() or len(file.read_text().splitlines()) < 2:
            await asyncio.sleep(0.05)
    return file.read_text().splitlines()[0]
