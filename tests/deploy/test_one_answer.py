"""Each request has one answer, whatever its framing and its segments, and the same one through
nginx, through haproxy and directly. What follows a refused request is not read."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox_server.api.auth import ApiKeys
from tests.api.serving import served
from tests.deploy.doubtful import KEY, SMUGGLED, Answer, Case, answers, generated
from tests.deploy.proxies import haproxy, plain_nginx, program
from tests.internet import HERE

pytestmark = [
    pytest.mark.skipif(
        not (program("nginx") and program("haproxy")), reason="no nginx or no haproxy here"
    ),
    pytest.mark.timeout(120),
]
_CASES = 2000
_AT_ONCE = 40
_BYTE_BY_BYTE = 24


@dataclass
class Seen:
    """What the app gets."""

    ids: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)

    def around(self, app: ASGIApp) -> ASGIApp:
        async def looked_at(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] in ("http", "websocket"):
                self.paths[scope["path"]] += 1
                self.ids[dict(scope["headers"]).get(b"x-request-id", b"").decode()] += 1
            await app(scope, receive, send)

        return looked_at


@dataclass
class Front:
    """Ways to one server, by name."""

    ports: dict[str, int]
    seen: Seen


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    seen, folder = Seen(), tmp_path_factory.mktemp("proxies")
    with (
        served(keys=ApiKeys.parse(f"acme:{KEY}"), around=seen.around) as server,
        plain_nginx(folder, server.port) as nginx_port,
        haproxy(folder, server.port) as haproxy_port,
    ):
        yield Front({"direct": server.port, "nginx": nginx_port, "haproxy": haproxy_port}, seen)


async def ask(port: int, case: Case, segments: Sequence[bytes]) -> list[Answer]:
    """The answers to a case and the request behind it."""
    reader, writer = await asyncio.open_connection(HERE, port)
    data = bytearray()

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                data.extend(piece)
                if b" 101 " in data[:20]:
                    return  # What follows are frames.

    reading = asyncio.create_task(read())
    try:
        for segment in segments:
            with contextlib.suppress(ConnectionError):
                writer.write(segment)
                await writer.drain()
            await asyncio.sleep(0.001)
            if reading.done():
                break
        await reading
    finally:
        reading.cancel()
        writer.transport.abort()
    try:
        return answers(bytes(data), case.data.partition(b" ")[0])
    except (AssertionError, ValueError) as exc:
        raise AssertionError(f"{case.about}, port {port}: {bytes(data)!r}") from exc


def in_two(case: Case) -> list[bytes]:
    return [case.data[: case.cut], case.data[case.cut :] + case.next_request()]


def by_byte(case: Case) -> list[bytes]:
    return [bytes([each]) for each in case.data] + [case.next_request()]


async def asked(front: Front, case: Case, segments: list[bytes]) -> dict[str, list[Answer]]:
    """By way."""
    return {way: await ask(port, case, segments) for way, port in front.ports.items()}


async def all_asked(
    front: Front, cases: Sequence[Case], segments: Callable[[Case], list[bytes]]
) -> list[dict[str, list[Answer]]]:
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(case: Case) -> dict[str, list[Answer]]:
        async with free:
            return await asked(front, case, segments(case))

    return await asyncio.gather(*map(one, cases))


def wrong_with(case: Case, found: dict[str, list[Answer]]) -> str:
    direct = found["direct"]
    for way, got in found.items():
        if not got or [each.id for each in got[1:]] not in ([], [case.after]):
            return f"{way}: {got}"
        if case.refused and got[0].status not in (400, 501) and not is_repaired(case, way, got):
            return f"{way}: not refused: {got}"
        same = got[0].status == direct[0].status and got[0].id in (case.id, "")
        if not case.refused and not same:
            return f"{way}: another answer than {direct}: {got}"
    if case.refused:  # A proxy may go on with its client; here, nothing is read any more.
        return f"not the last answer: {direct}" if len(direct) > 1 else ""
    follows = len(direct) > 1 or case.waits or case.opens
    return "" if follows else f"the last answer: {direct}"


def is_repaired(case: Case, way: str, got: list[Answer]) -> bool:
    """haproxy leaves out a Content-Length beside chunks, and an Upgrade beside a body: what it
    passes on can be read in one way."""
    return way == "haproxy" and got[0].id == case.id


async def test_generated_requests(front: Front) -> None:
    cases = generated(_CASES)
    found = await all_asked(front, cases, in_two)
    wrong = [
        f"{case.about}: {why}"
        for case, got in zip(cases, found, strict=True)
        if (why := wrong_with(case, got))
    ]
    assert f"/{SMUGGLED}" not in front.seen.paths
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)}:", *wrong[:40]])
    per_way = {name: count for name, count in front.seen.ids.items() if count > len(front.ports)}
    assert not per_way


async def test_byte_by_byte(front: Front) -> None:
    cases = generated(_BYTE_BY_BYTE)
    found = await all_asked(front, cases, by_byte)
    wrong = [wrong_with(case, got) for case, got in zip(cases, found, strict=True)]
    assert not any(wrong), wrong
    assert f"/{SMUGGLED}" not in front.seen.paths
