"""The reference in a real browser that can reach nothing but the server."""

from pathlib import Path

import pytest

from tests.api.serving import Served
from tests.browser import Page, chromium, open_page

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="no chromium here"),
    pytest.mark.timeout(300),
]


def operations(server: Served) -> dict[str, str]:
    """The summary of every operation, by its name."""
    paths = server.http.get("/openapi.json").json()["paths"]
    found = [operation for methods in paths.values() for operation in methods.values()]
    return {operation["operationId"]: operation["summary"] for operation in found}


def check_that_nothing_left(page: Page, server: Served) -> None:
    own = f"http://127.0.0.1:{server.port}/"
    assert any(url == f"{own}openapi.json" for url in page.requested)
    elsewhere = [url for url in page.requested if not url.startswith((own, "data:", "blob:"))]
    assert elsewhere == []
    assert page.complaints == []


async def test_docs_show_every_operation_and_try_one(server: Served, tmp_path: Path) -> None:
    wanted = operations(server)
    assert len(wanted) >= 8
    async with open_page(tmp_path) as page:
        await page.open(f"http://127.0.0.1:{server.port}/docs")
        await page.until(f"document.querySelectorAll('.opblock').length >= {len(wanted)}")
        text = await page.evaluate("document.body.textContent")
        for summary in wanted.values():
            assert summary in text
        health = "[id$='-health'].opblock"
        await page.click(f"{health} .opblock-summary-control")
        await page.click(f"{health} .try-out__btn")
        await page.click(f"{health} .execute")
        status = f"{health} .live-responses-table tbody .response-col_status"
        await page.until(f"document.querySelector({status!r})?.textContent.trim() === '200'")
        check_that_nothing_left(page, server)


async def test_redoc_shows_every_operation(server: Served, tmp_path: Path) -> None:
    wanted = operations(server)
    async with open_page(tmp_path) as page:
        await page.open(f"http://127.0.0.1:{server.port}/redoc")
        for summary in wanted.values():
            await page.until(f"document.body.textContent.includes({summary!r})")
        check_that_nothing_left(page, server)
