"""The preview server: what passes, and who gets in."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandbox_server.sessions.previews import digest, new_token
from tests.api.preview_place import MEGABYTE, SESSION, TOKEN, Place, app, place

__all__ = ["app", "place"]


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
