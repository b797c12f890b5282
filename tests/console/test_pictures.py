"""What the console looks like: light and dark, wide and narrow.

`make pictures` keeps two of the pictures.
"""

import os
from pathlib import Path

import httpx
import pytest

from tests.browser import Page
from tests.console.conftest import run
from tests.console.test_console import KEYS, SCREEN, enter, new_terminal
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

KEPT = {"sessions-light-1280": "console-sessions.png", "terminal-dark-1280": "console-session.png"}
"""Those in the README."""
THREADS = (
    "support-4711", "research-climate", "nightly-report", "code-review-88", "sql-helper",
    "translate-docs", "data-cleanup", "invoice-reader",
)  # fmt: skip
REPORT = (
    "mkdir -p charts; printf 'month,orders\\nJan,410\\nFeb,388\\nMar,502\\n' > orders.csv;"
    " printf '# Report\\n' > report.md; touch charts/orders.png"
)
ANALYSIS = (
    "python3 -c \"import csv; rows = list(csv.DictReader(open('orders.csv')));"
    " print('orders:', sum(int(r['orders']) for r in rows))\""
)


async def test_pictures(
    server: ServerProcess, http: httpx.AsyncClient, page: Page, tmp_path: Path
) -> None:
    session_id = await _scene(http)
    await new_terminal(page, server, session_id)
    await enter(page, "ls -l --color", KEYS)
    await enter(page, ANALYSIS, KEYS)
    await page.until_shows("orders: 1300", SCREEN)
    terminal = (await page.evaluate("location.hash")).removeprefix("#/")
    places = {
        "sessions": ("sessions", "research-climate"),
        "terminal": (terminal, "orders: 1300"),
        "commands": (f"session/{session_id}/commands", "ago"),
        "files": (f"session/{session_id}/files", "orders.csv"),
        "fleet": ("fleet", "Checks"),
        "policy": ("policy", "Nothing to judge yet."),
        "history": ("history", "live"),
    }
    for width, height in ((1280, 720), (390, 844)):
        for dark in (False, True):
            await page.look(width=width, height=height, dark=dark)
            for name, (place, shows) in places.items():
                await page.evaluate(f"location.hash = '#/{place}'")
                await page.until_shows(shows, "main")
                await page.until("!document.querySelector('main').innerText.includes('Loading')")
                picture = f"{name}-{'dark' if dark else 'light'}-{width}"
                # What is too wide for the window cannot be read on a phone.
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, picture
                await _take(page, picture, tmp_path)


async def _scene(http: httpx.AsyncClient) -> str:
    """Some sessions that do something; the id of one with files."""
    for thread in THREADS:
        await run(http, thread, "echo ready > notes.txt")
    session_id = await run(http, "research-climate", REPORT)
    await run(http, "research-climate", "wc -l orders.csv")
    for thread in ("nightly-report", "code-review-88"):
        busy = {"thread_id": thread, "command": "while :; do :; done", "background": True}
        await http.post("/execute", json=busy)
    return session_id


async def _take(page: Page, name: str, folder: Path) -> None:
    kept = os.environ.get("SANDBOX_TEST_PICTURES", "")
    if name in KEPT and kept and name.startswith("sessions"):
        # The graphs need a few values.
        await page.until("document.querySelectorAll('.cell-cpu polyline').length >= 8")
    await page.screenshot(folder / f"{name}.png")
    if kept and name in KEPT:
        await page.screenshot(Path(kept) / KEPT[name])
