"""Previews of what listens in a sandbox, over every way to a Sandboxes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Origin

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import ExposeRequest, checked
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .preview_app import PORT, Visitor, exposed, serving, visiting
from .test_sandboxes import run, thread

pytestmark = pytest.mark.bash
MEGABYTE = b"0123456789abcdef" * 65536


@pytest.mark.seam
async def test_a_page_of_a_sandbox(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "t", "true")
    preview = await exposed(sandboxes)
    assert preview.port == PORT
    assert not preview.public
    assert preview.expires_at > preview.created_at
    async with Visitor(preview) as visitor:
        answer = await visitor.get(visitor.enter)
        assert (answer.status_code, answer.headers["location"]) == (302, f"http://{visitor.host}/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly; SameSite=Lax" in cookie
        assert "Domain" not in cookie
        assert "Secure" not in cookie
        assert answer.headers["referrer-policy"] == "no-referrer"
    async with visiting(preview) as visitor:
        waiting = await visitor.get("/page")
        assert waiting.status_code == 502
        assert "Nothing listens at port 8080 yet" in waiting.text
        assert 'http-equiv="refresh"' in waiting.text
        assert "default-src 'none'" in waiting.headers["content-security-policy"]
        told = await visitor.get("/page", headers={"accept": "*/*"})
        assert told.json()["error"]["code"] == "not_listening"
        await serving(sandboxes)
        shown = await visitor.get("/page")
        assert (shown.status_code, "From the box" in shown.text) == (200, True)
        seen = (await visitor.get("/anything?a=1&token=mine")).json()
        headers = dict(seen["headers"])
        assert seen["target"] == "/anything?a=1&token=mine"
        assert headers["host"] == visitor.host
        assert headers["x-forwarded-host"] == visitor.host
        assert headers["x-forwarded-proto"] == "http"
        assert headers["x-forwarded-for"] == "127.0.0.1"
        assert "cookie" not in headers


async def test_uploads_and_downloads_with_their_checksums(sandboxes: Sandboxes) -> None:
    await serving(sandboxes)
    async with visiting(await exposed(sandboxes)) as visitor:
        wanted = hashlib.sha256(MEGABYTE * 8).hexdigest()

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(8):
                yield MEGABYTE

        for content in (MEGABYTE * 8, pieces()):
            told = (await visitor.post("/sum", content=content)).json()
            assert told == {"sha256": wanted, "size": len(MEGABYTE) * 8}
        found = hashlib.sha256()
        async with visitor.stream("GET", "/much?8") as answer:
            async for piece in answer.aiter_bytes():
                found.update(piece)
        assert found.hexdigest() == wanted


@pytest.mark.rest
@pytest.mark.one_way
async def test_100_megabytes_both_ways(sandboxes: Sandboxes) -> None:
    await serving(sandboxes)
    async with visiting(await exposed(sandboxes)) as visitor:

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield MEGABYTE

        wanted = hashlib.sha256(MEGABYTE * 100).hexdigest()
        assert (await visitor.post("/sum", content=pieces())).json()["sha256"] == wanted
        found = hashlib.sha256()
        async with visitor.stream("GET", "/much?100") as answer:
            async for piece in answer.aiter_bytes():
                found.update(piece)
        assert found.hexdigest() == wanted


async def test_events_arrive_one_by_one(sandboxes: Sandboxes) -> None:
    await serving(sandboxes)
    clock, times = asyncio.get_running_loop().time, []
    async with (
        visiting(await exposed(sandboxes)) as visitor,
        visitor.stream("GET", "/events?4") as answer,
    ):
        async for line in answer.aiter_lines():
            if line:
                times.append(clock())
    assert len(times) == 4
    assert all(later - earlier > 0.15 for earlier, later in pairwise(times))


async def test_a_websocket(sandboxes: Sandboxes) -> None:
    await serving(sandboxes)
    preview = await exposed(sandboxes)
    async with visiting(preview) as visitor:
        cookie = visitor.headers["cookie"]
    place = urlsplit(preview.url)
    url = f"ws://{place.netloc}/ws"
    dialled: Any = {"host": "127.0.0.1", "port": place.port, "proxy": None}
    headers = {"cookie": cookie}
    own = Origin(f"http://{place.netloc}")
    async with connect(
        url, **dialled, additional_headers=headers, origin=own, compression=None, max_size=None
    ) as socket:
        for message in (b"hello", bytes(300), bytes(1_000_000)):
            await socket.send(message)
            assert await socket.recv() == message
    # By its token, as programs do.
    async with connect(f"{url}?{place.query}", **dialled, compression=None) as socket:
        await socket.send("x")
        assert await socket.recv() == "x"
    for wrong in ({}, {**headers, "origin": "http://8080-other.localhost"}):
        with pytest.raises(Exception, match="401"):
            async with connect(url, **dialled, additional_headers=wrong):
                pass


@pytest.mark.seam
async def test_who_gets_in(sandboxes: Sandboxes) -> None:
    await serving(sandboxes)
    await serving(sandboxes, "other")
    preview, other = await exposed(sandboxes), await exposed(sandboxes, "other")
    assert preview.token
    assert preview.token in preview.url
    assert (await exposed(sandboxes)).url == preview.url
    async with visiting(other) as stranger:
        foreign = stranger.headers["cookie"]
    async with Visitor(preview, cookie=foreign) as visitor:
        refused = await visitor.get("/")
        assert refused.status_code == 401
    nowhere = preview.url.replace(preview.session_id, "00000000-0000-4000-8000-000000000000")
    async with Visitor(nowhere, cookie=foreign) as visitor:
        unknown = await visitor.get("/")
        assert (unknown.status_code, unknown.text) == (401, refused.text)
    not_exposed = preview.url.replace("8080-", "8081-")
    async with Visitor(not_exposed) as visitor:
        assert (await visitor.get(visitor.enter)).status_code == 401
    async with Visitor(preview) as program:  # With the token in each URL, and no cookie.
        answer = await program.get(
            f"/x?a=1&{urlsplit(preview.url).query}", headers={"accept": "*/*"}
        )
        assert answer.json()["target"] == "/x?a=1"
        assert preview.token not in answer.text
    listed = (await sandboxes.previews(thread("t"))).previews
    assert [(each.port, each.token) for each in listed] == [(PORT, None)]
    assert preview.token not in listed[0].url


async def test_public_ones_and_the_end_of_a_preview(sandboxes: Sandboxes) -> None:
    await serving(sandboxes)
    private = await exposed(sandboxes)
    async with visiting(private) as visitor:
        assert (await visitor.get("/")).status_code == 200
        public = await exposed(sandboxes, public=True)
        assert public.token is None
        assert "token" not in public.url
        async with Visitor(public) as anybody:
            assert (await anybody.get("/")).status_code == 200
            assert (await exposed(sandboxes)).url == private.url
            assert (await anybody.get("/")).status_code == 401
        assert (await visitor.get("/")).status_code == 200
        async with visitor.stream("GET", "/events?100") as events:
            lines = events.aiter_lines()
            assert await anext(lines) == "data: 0"
            await sandboxes.unexpose(thread("t"), PORT)
            assert (await visitor.get("/")).status_code == 401
            with pytest.raises(httpx.HTTPError):
                await rest_of(lines)
    assert (await sandboxes.previews(thread("t"))).previews == []
    with pytest.raises(errors.NotFound, match="8080 is not exposed"):
        await sandboxes.unexpose(thread("t"), PORT)
    again = await exposed(sandboxes)
    assert again.token not in (None, private.token)


async def rest_of(lines: AsyncIterator[str]) -> None:
    async with asyncio.timeout(20):
        async for _ in lines:
            pass


async def test_it_ends_with_its_session(sandboxes: Sandboxes) -> None:
    await serving(sandboxes)
    async with visiting(await exposed(sandboxes)) as visitor:
        assert (await visitor.get("/")).status_code == 200
        await sandboxes.cleanup(thread("t"))
        assert (await visitor.get("/")).status_code == 401
    with pytest.raises(errors.SessionNotFound):
        await exposed(sandboxes)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.previews(thread("t"))


async def test_what_cannot_be_exposed(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.SessionNotFound):
        await exposed(sandboxes, "nobody")
    with pytest.raises(errors.InvalidRequest):
        checked(ExposeRequest, thread_id="t", port=0)
    with pytest.raises(errors.InvalidRequest):
        checked(ExposeRequest, port=80)
