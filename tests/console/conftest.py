"""One server and one browser for most tests of the console."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.browser import Browser, Page, chromium, open_browser
from tests.contract.conftest import RUNTIMES, state_dir
from tests.fleet.conftest import redis_server
from tests.server_process import ServerProcess, running

__all__ = ["redis_server", "state_dir"]


@pytest.fixture(scope="session")
def real_parts() -> None:
    """Skips where the tests in a browser cannot run; scripts/engine.sh says so in the end."""
    if chromium() is None:
        pytest.skip("no chromium here")
    if "bubblewrap" not in RUNTIMES:
        pytest.skip("no bubblewrap here")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(real_parts: None, state_dir: Path) -> AsyncIterator[ServerProcess]:
    async with running("bubblewrap", state_dir) as started:
        await started.ready()
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(
    real_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Browser]:
    async with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A tab that must have nothing to complain about in the end."""
    tab = await browser.tab()
    await tab.look(width=1280, height=800)
    yield tab
    await browser.close_tabs()
    # That a session has gone is an answer to a page that asks, and the browser tells of it.
    serious = [text for text in tab.complaints if not text.startswith("Failed to load resource")]
    assert serious == []


@pytest_asyncio.fixture(loop_scope="module")
async def http(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


async def run(http: httpx.AsyncClient, thread: str, command: str) -> str:
    """Run a command; the id of its session."""
    answer = await http.post("/execute", json={"thread_id": thread, "command": command})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["session_id"])
