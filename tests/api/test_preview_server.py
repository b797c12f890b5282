"""The preview server, with a port of this machine in the place of a box: what passes, and what
must not."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import NotListening, RuntimeUnavailable, SessionNotFound
from sandbox_sdk.protocol.models import ConnectRequest
from sandbox_server.api.server import bound
from sandbox_server.previews.limits import PreviewLimits
from sandbox_server.previews.server import PreviewServer
from sandbox_server.sessions.preview_address import PreviewAddress
from sandbox_server.sessions.previews import SessionPreviews, StoredPreview, digest, new_token
from tests.contract.preview_app import APP
from tests.ports import free_port

SESSION = "0a1b2c3d-0000-4000-8000-00000000abcd"
TOKEN = "preview_" + "Zk3vW0m2Qd-" * 3 + "YJ0l6cQb_n"
MEGABYTE = bytes(1 << 20)


class _Socket(ByteChannel):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(1 << 16)
        except OSError as exc:
            raise RuntimeUnavailable(str(exc)) from exc

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as exc:
            raise RuntimeUnavailable(str(exc)) from exc

    async def end(self) -> None:
        self._writer.write_eof()


class ThisMachine:
    """In the place of a Sandboxes: every port of the box is one of this machine."""

    def __init__(self, app_port: int) -> None:
        self.app_port = app_port
        self.opened = 0
        self.lost = False

    @contextlib.asynccontextmanager
    async def connect(self, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        if self.lost:
            raise SessionNotFound("gone")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.app_port)
        except OSError:
            raise NotListening("nobody") from None
        self.opened += 1
        try:
            yield _Socket(reader, writer)
        finally:
            writer.transport.abort()


class Place:
    """A preview server, and what it knows."""

    def __init__(self, app_port: int) -> None:
        self.box = ThisMachine(app_port)
        ports = {
            8080: StoredPreview(public=False, created_at=0, digests=(digest(TOKEN),)),
            9090: StoredPreview(public=True, created_at=0),
        }
        self.previews = SessionPreviews(tenant="default", session_id=SESSION, ports=ports)
        self.silent = False
        self.port = 0

    async def previews_of(self, session_id: str) -> SessionPreviews | None:
        if self.silent:
            raise RuntimeUnavailable("no answer")
        return self.previews if session_id == SESSION else None

    @contextlib.asynccontextmanager
    async def open(self, url: str = "", **limits: Any) -> AsyncIterator["Place"]:
        listener = bound("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        address = PreviewAddress.parse(url or f"http://localhost:{self.port}")
        async with PreviewServer(
            lambda _: self.box,  # type: ignore[arg-type, return-value]
            self.previews_of,
            address,
            listener,
            limits=PreviewLimits(**limits),
        ):
            yield self

    def visitor(self, port: int = 9090, **headers: str) -> httpx.AsyncClient:
        host = f"{port}-{SESSION}.localhost:{self.port}"
        given = {"host": host, "accept": "text/html", **headers}
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", headers=given, timeout=30, trust_env=False
        )

    async def raw(self, *pieces: bytes, host: str | None = None, wait_s: float = 5.0) -> bytes:
        """What comes back for these bytes, until the server closes or falls silent. `HOST` stands
        for the name of the public preview."""
        host = host or f"9090-{SESSION}.localhost:{self.port}"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found = b""
        try:
            for piece in pieces:
                writer.write(piece.replace(b"HOST", host.encode()))
                await writer.drain()
            async with asyncio.timeout(wait_s):
                while data := await reader.read(1 << 16):
                    found += data
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
        return found


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of the application, and its log."""
    folder, port = tmp_path_factory.mktemp("app"), free_port()
    (folder / "app.py").write_text(APP)
    log = folder / "app.log"
    with log.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, folder / "app.py", str(port)], stdout=out, stderr=out
        )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), contextlib.closing(_dial(port)):
            break
        time.sleep(0.05)
    try:
        yield port, log
    finally:
        program.kill()
        program.wait()


def _dial(port: int) -> Any:
    import socket

    return socket.create_connection(("127.0.0.1", port))


@pytest.fixture
async def place(app: tuple[int, Path]) -> AsyncIterator[Place]:
    async with Place(app[0]).open() as opened:
        yield opened


# What passes


async def test_connections_are_kept_on_both_sides(place: Place) -> None:
    async with place.visitor() as visitor:
        for _ in range(5):
            assert (await visitor.get("/x")).status_code == 200
    assert place.box.opened == 1


async def test_several_requests_at_once_in_one_connection(place: Place) -> None:
    one = b"GET /a HTTP/1.1\r\nHost: HOST\r\n\r\n"
    last = b"GET /b HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"
    found = await place.raw(one + one + last)
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.count(b'"target": "/a"') == 2
    assert found.count(b'"target": "/b"') == 1


async def test_methods_and_statuses_without_a_body(place: Place) -> None:
    async with place.visitor() as visitor:
        head = await visitor.head("/page")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 10
        for status in (204, 304):
            answer = await visitor.get(f"/status?{status}")
            assert (answer.status_code, answer.content) == (status, b"")
        assert (await visitor.options("/x")).json()["method"] == "OPTIONS"
        assert (await visitor.delete("/x")).json()["method"] == "DELETE"
        assert (await visitor.put("/sum", content=b"abc")).json()["size"] == 3
        assert (await visitor.post("/sum")).json()["size"] == 0


async def test_http_1_0_gets_no_chunks(place: Place) -> None:
    found = await place.raw(b"GET /events?2 HTTP/1.0\r\nHost: HOST\r\n\r\n")
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"chunked" not in head.lower()
    assert body == b"data: 0\n\ndata: 1\n\n"


async def test_a_body_that_ends_with_its_connection(place: Place) -> None:
    async with place.visitor() as visitor:
        assert (await visitor.get("/until-close")).text == "to the end"


async def test_100_continue_comes_from_the_application(place: Place) -> None:
    head = b"POST /sum HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    host = f"9090-{SESSION}.localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(head.replace(b"HOST", host.encode()))
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
        writer.write(b"abc")
        assert b'"size": 3' in await reader.readuntil(b"}")
    writer.close()


async def test_early_hints(place: Place) -> None:
    found = await place.raw(b"GET /hints HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 103")
    assert found.endswith(b"hinted")


async def test_an_answer_before_the_end_of_the_request(place: Place) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield MEGABYTE

    async with place.visitor() as visitor:
        try:
            answer = await visitor.post("/refuse", content=pieces())
            assert (answer.status_code, answer.text) == (413, "too much")
        except httpx.HTTPError:
            pass  # It may not look at the answer while it sends.
        assert (await visitor.get("/x")).status_code == 200


async def test_what_the_application_is_told(place: Place) -> None:
    given = {
        "cookie": f"theirs=1; sandbox_preview={TOKEN}; __Host-sandbox_preview={TOKEN}; more=2",
        "x-forwarded-for": "10.0.0.1",
        "x-forwarded-host": "evil",
        "te": "trailers",
        "connection": "keep-alive, x-private, cookie",
        "x-private": "1",
        "keep-alive": "timeout=5",
        "upgrade": "h2c",
        "proxy-authorization": "secret",
    }
    async with place.visitor(8080, **given) as visitor:
        seen = (await visitor.get(f"/x?token={TOKEN}&a=%20b", headers={"accept": "*/*"})).json()
    headers = dict(seen["headers"])
    assert seen["target"] == "/x?a=%20b"
    assert headers["cookie"] == "theirs=1; more=2"
    assert headers["x-forwarded-for"] == "10.0.0.1, 127.0.0.1"
    assert headers["x-forwarded-host"] == headers["host"]
    dropped = {"te", "x-private", "keep-alive", "upgrade", "proxy-authorization"}
    assert not dropped & headers.keys()
    assert TOKEN not in json.dumps(seen)


# Who gets in


async def test_a_cookie_counts_for_pages_of_its_own_origin(place: Place) -> None:
    host = f"8080-{SESSION}.localhost:{place.port}"
    other = f"http://8080-{SESSION.replace('0a', '0b')}.localhost:{place.port}"
    cookie = f"sandbox_preview={TOKEN}"
    asked = [
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 401),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": other}, 401),
    ]
    async with place.visitor(8080, host=host, cookie=cookie) as visitor:
        for headers, status in asked:
            assert (await visitor.get("/x", headers=headers)).status_code == status, headers
        posted = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}
        assert (await visitor.post("/sum", headers=posted)).status_code == 401


async def test_several_cookies_of_the_name(place: Place) -> None:
    """A page of another host of the domain may have set one."""
    cookie = f"sandbox_preview={new_token()}; sandbox_preview={TOKEN}"
    async with place.visitor(8080, cookie=cookie) as visitor:
        assert (await visitor.get("/x")).status_code == 200


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), digest(TOKEN)])
async def test_wrong_tokens(place: Place, wrong: str) -> None:
    async with place.visitor(8080, cookie=f"sandbox_preview={wrong}") as visitor:
        assert (await visitor.get(f"/?token={wrong}")).status_code == 401


async def test_a_redirect_stays_at_the_preview(place: Place) -> None:
    async with place.visitor(8080) as visitor:
        request = visitor.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=f"//evil.example/?token={TOKEN}".encode())
        answer = await visitor.send(request)
    place_of_it = answer.headers["location"]
    assert answer.status_code == 302
    assert place_of_it == f"http://8080-{SESSION}.localhost:{place.port}//evil.example/"


async def test_a_public_preview_sets_no_cookie_that_somebody_made_up(place: Place) -> None:
    async with place.visitor(9090) as visitor:
        answer = await visitor.get(f"/a?token={new_token()}")
        assert (answer.status_code, "set-cookie" in answer.headers) == (302, False)
        assert answer.headers["location"].endswith("/a")


async def test_cookies_behind_https(app: tuple[int, Path]) -> None:
    async with Place(app[0]).open("https://previews.example.com") as place:
        host = f"8080-{SESSION}.previews.example.com"
        async with place.visitor(8080, host=host) as visitor:
            answer = await visitor.get(f"/a?token={TOKEN}&b=1")
            assert answer.headers["location"] == f"https://{host}/a?b=1"
            cookie = answer.headers["set-cookie"]
            assert cookie.startswith(f"__Host-sandbox_preview={TOKEN}; Path=/; HttpOnly")
            assert cookie.endswith("; Secure")
            seen = await visitor.get("/x", headers={"cookie": cookie.partition(";")[0]})
            assert dict(seen.json()["headers"])["x-forwarded-proto"] == "https"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "evil.example",
        f"9090-{SESSION}.localhost.evil.example",
        f"9090-{SESSION}.evil.example",
        f"9090-{SESSION}",
        f"9090-{SESSION}.localhost.",
        f"x.9090-{SESSION}.localhost",
        f"09090-{SESSION}.localhost",
        f"99999-{SESSION}.localhost",
        f"0-{SESSION}.localhost",
        f"9090-{SESSION}x.localhost",
        f"9090-..%2f{SESSION}.localhost",
        f"9090-{SESSION}.localhost:8000:8000",
        f"user@9090-{SESSION}.localhost",
        "",
    ],
)
async def test_odd_hosts(place: Place, host: str) -> None:
    found = await place.raw(
        b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host.encode()
    )
    assert found.startswith(b"HTTP/1.1 404")
    assert place.box.opened == 0


async def test_names_in_capitals(place: Place) -> None:
    async with place.visitor(host=f"9090-{SESSION.upper()}.LOCALHOST") as visitor:
        assert (await visitor.get("/x")).status_code == 200


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


async def test_both_lengths_are_one(place: Place) -> None:
    """The chunks count, here and in the box; what follows is the next request."""
    found = await place.raw(
        b"POST /sum HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        b"\r\n" + CHUNKED,
        b"GET /next HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
    )
    assert found.count(b"HTTP/1.1 200") in (1, 2)
    assert b'"size": 5' in found


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
        began = time.monotonic()
        assert (await place.raw(b"GET / HTTP/1.1\r\nHos")).startswith(b"HTTP/1.1 408")
        assert await place.raw(b"GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n")
        stalled = b"POST /sum HTTP/1.1\r\nHost: HOST\r\nContent-Length: 9\r\n\r\nabc"
        await place.raw(stalled, wait_s=5)
        assert time.monotonic() - began < 8
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
