"""The preview server: what must not pass, and what happens where something is missing."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.api.preview_place import MEGABYTE, SESSION, TOKEN, Place, app, place
from tests.ports import free_port

__all__ = ["app", "place"]


# What must not pass

CHUNKED = b"5\r\nhello\r\n0\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"X: a\rContent-Length: 5\r\n",
        b"X\x00: a\r\n",
        b"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: a\r\n",
        b"Host: 9090-other.localhost\r\n",
    ],
)
async def test_requests_of_doubtful_length(
    place: Place, app: tuple[int, Path], head: bytes
) -> None:
    found = await place.raw(
        b"POST /sum HTTP/1.1\r\nHost: HOST\r\n" + head + b"\r\n" + CHUNKED + SMUGGLED, wait_s=2
    )
    assert found.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), found
    assert found.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in app[1].read_bytes()


@pytest.mark.parametrize(
    "request_head",
    [
        b"POST /sum HTTP/1.1\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n",
        b"POST /sum HTTP/1.0\r\nTransfer-Encoding: chunked\r\n",
        b"POST /sum HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 15\r\n",
        b"GET /sum HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket, h2c\r\n",
        b"GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 15\r\n",
        b"POST /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
        b"GET /ws HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
    ],
)
async def test_requests_that_can_be_read_in_two_ways(
    place: Place, app: tuple[int, Path], request_head: bytes
) -> None:
    """A proxy in front shares its connections between visitors: nothing may be left on one."""
    head, body = request_head + b"Host: HOST\r\n\r\n", CHUNKED + SMUGGLED
    for pieces in ((head + body,), (head, body)):
        found = await place.raw(*pieces, closes=True)
        assert found.startswith(b"HTTP/1.1 400"), found
        assert b"connection: close" in found.lower()
        assert found.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in app[1].read_bytes()


@pytest.mark.parametrize(
    "line",
    [
        b"GET http://127.0.0.1:8000/execute HTTP/1.1",
        b"GET http://HOST/ HTTP/1.1",
        b"CONNECT 127.0.0.1:22 HTTP/1.1",
        b"TRACE / HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"GET / HTTP/1.1 x",
        b"GET /\x01 HTTP/1.1",
        b"GET",
        b"\x16\x03\x01\x02\x00",
    ],
)
async def test_odd_requests(place: Place, line: bytes) -> None:
    found = await place.raw(line + b"\r\nHost: HOST\r\nConnection: close\r\n\r\n", wait_s=2)
    assert found.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 505")), found
    assert place.box.opened == 0


@pytest.mark.parametrize("path", ["/garbage", "/silent", "/injected", "/huge-head"])
async def test_answers_that_are_none(place: Place, path: str) -> None:
    async with place.visitor() as visitor:
        answer = await visitor.get(path)
        assert answer.status_code == 502
        assert "not HTTP" in answer.text
        assert (await visitor.get("/x")).status_code == 200


async def test_an_answer_that_is_cut_off(place: Place) -> None:
    async with place.visitor() as visitor:
        with pytest.raises(httpx.HTTPError):
            await visitor.get("/cut")
        assert (await visitor.get("/x")).status_code == 200


async def test_heads_are_bounded(place: Place) -> None:
    found = await place.raw(b"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + bytes(70_000) + b"\r\n\r\n")
    assert found.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), found[:100]
    many = b"".join(b"X-%d: 1\r\n" % n for n in range(20_000))
    found = await place.raw(b"GET / HTTP/1.1\r\nHost: HOST\r\n" + many + b"\r\n")
    assert found.startswith(b"HTTP/1.1 431"), found[:100]
    assert place.box.opened == 0


async def test_slow_browsers(app: tuple[int, Path]) -> None:
    async with Place(app[0]).open(head_s=0.5, keep_alive_s=0.5, stalled_s=1.0) as place:
        late = await place.raw(b"GET / HTTP/1.1\r\nHos", closes=True)
        assert late.startswith(b"HTTP/1.1 408")
        assert await place.raw(b"GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n", closes=True)
        stalled = b"POST /sum HTTP/1.1\r\nHost: HOST\r\nContent-Length: 9\r\n\r\nabc"
        await place.raw(stalled, closes=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port, limit=1024)
        host = f"9090-{SESSION}.localhost"
        writer.write(b"GET /much?64 HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
        await asyncio.sleep(3)  # Reads nothing, so it is given up.
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                assert len(await reader.read(-1)) < 64 << 20
        writer.close()


async def test_a_browser_that_leaves_takes_its_connection_along(app: tuple[int, Path]) -> None:
    async with Place(app[0]).open(per_session=1) as place:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        host = f"9090-{SESSION}.localhost"
        writer.write(b"GET /events?100 HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
        await reader.readuntil(b"data: 0")
        async with place.visitor() as visitor:
            full = await visitor.get("/x")
            assert (full.status_code, full.headers["retry-after"]) == (503, "2")
            writer.close()
            async with asyncio.timeout(10):
                while (await visitor.get("/x")).status_code != 200:
                    await asyncio.sleep(0.05)


async def test_connections_are_bounded(app: tuple[int, Path]) -> None:
    async with Place(app[0]).open(connections=3) as place:
        held = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(3)]
        assert (await place.raw(b"GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n")).startswith(
            b"HTTP/1.1 503"
        )
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(10), place.visitor() as visitor:
            while (await visitor.get("/x")).status_code != 200:
                await asyncio.sleep(0.05)


async def test_connections_of_one_visitor_leave_room_for_others(app: tuple[int, Path]) -> None:
    async with Place(app[0]).open(connections=100, per_visitor=50) as place:
        held = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(50)]
        for _ in range(200):
            refused = await place.raw(closes=True)
            assert refused.startswith(b"HTTP/1.1 429 "), refused
        async with place.visitor(at="127.0.0.2") as other:
            assert (await other.get("/x")).status_code == 200
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(10):
            while b" 200 " not in await place.raw(LAST):
                await asyncio.sleep(0.05)


LAST = b"GET /x HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def held(visitor: httpx.AsyncClient) -> AsyncIterator[None]:
    """A request that goes on."""
    async with visitor.stream("GET", "/events?1000") as events:
        lines = events.aiter_lines()  # Kept: the request ends with it.
        assert await anext(lines) == "data: 0"
        yield


async def test_requests_of_one_visitor_leave_room_for_others(app: tuple[int, Path]) -> None:
    async with (
        Place(app[0]).open(per_session=100, per_visitor_session=20) as place,
        place.visitor() as one,
        place.visitor(at="127.0.0.2") as other,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(20):
            await stack.enter_async_context(held(one))
        refused = await one.get("/x")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert "Too many of your connections" in refused.text
        told = await one.get("/x", headers={"accept": "*/*"})
        assert told.json()["error"]["code"] == "rate_limited"
        assert (await other.get("/x")).status_code == 200
        await stack.aclose()
        async with asyncio.timeout(10):
            while (await one.get("/x")).status_code != 200:
                await asyncio.sleep(0.05)


async def test_behind_a_proxy_visitors_are_told_apart_by_what_it_says(
    app: tuple[int, Path],
) -> None:
    """Not by what they say themselves, which comes before it. Of IPv6 by their network."""
    async with (
        Place(app[0]).open(behind_proxy=True, per_visitor=1) as place,
        place.visitor() as visitor,
    ):

        async def status(said: str) -> int:
            answer = await visitor.get("/x", headers={"x-forwarded-for": said})
            return answer.status_code

        for address, same, another in (
            ("203.0.113.1", "203.0.113.1", "203.0.113.2"),
            ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"),
            ("2001:db8::1", "2001:db8:0:0:f::", "::ffff:203.0.113.1"),
        ):
            async with place.visitor() as one:
                one.headers["x-forwarded-for"] = f"10.0.0.1, {address}"
                async with held(one):
                    assert await status(f"10.0.0.2, {same}") == 429
                    assert await status(f"{address}, {another}") == 200
            async with asyncio.timeout(10):
                while await status(address) != 200:
                    await asyncio.sleep(0.05)


# When something is missing


async def test_the_page_of_what_does_not_listen_shows_nothing_of_the_request(place: Place) -> None:
    place.box.app_port = free_port()
    async with place.visitor() as visitor:
        answer = await visitor.get("/<script>alert(1)</script>?<b>")
        assert answer.status_code == 502
        assert "<script" not in answer.text
        assert "<b>" not in answer.text
        plain = await visitor.get("/", headers={"accept": "application/json"})
        assert plain.json()["error"]["code"] == "not_listening"
        assert (await visitor.head("/")).content == b""
        posted = await visitor.post("/", content=MEGABYTE)
        assert posted.status_code == 502


async def test_a_session_that_is_gone_or_unknown_for_a_moment(place: Place) -> None:
    async with place.visitor() as visitor:
        place.box.lost = True
        assert (await visitor.post("/sum")).status_code == 401
        place.silent = True
        assert (await visitor.get("/x")).status_code == 503


async def test_no_access_looks_the_same_while_sessions_may_be_missing(place: Place) -> None:
    """A fleet whose Redis was emptied does not know yet which previews there are."""
    unknown = f"8080-{uuid.uuid4()}.localhost:{place.port}"
    async with place.visitor(8080) as without_token, place.visitor(8080, host=unknown) as stranger:
        for place.unsettled, status in ((True, 503), (False, 401)):
            answers = [await each.get("/") for each in (without_token, stranger)]
            assert [answer.status_code for answer in answers] == [status, status]
            assert answers[0].content == answers[1].content
        place.unsettled = True
        assert (await without_token.get(f"/x?token={TOKEN}")).status_code == 302


async def test_what_is_open_ends_with_its_preview(app: tuple[int, Path]) -> None:
    async with Place(app[0]).open(look_again_s=0.2) as place, place.visitor() as visitor:
        async with visitor.stream("GET", "/events?100") as events:
            lines = events.aiter_lines()
            assert await anext(lines) == "data: 0"
            place.silent = True
            await asyncio.sleep(0.8)  # Not known is not gone.
            place.silent = False
            await asyncio.sleep(0.5)
            place.previews = place.previews.with_port(9090, None)
            with pytest.raises(httpx.HTTPError):
                await _all(lines)
        assert (await visitor.get("/x")).status_code == 401


async def _all(lines: AsyncIterator[str]) -> None:
    async with asyncio.timeout(10):
        async for _ in lines:
            pass
