"""Keys as an operator makes them with `sandbox keys`, at a server alone and in a fleet."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import Forbidden, SandboxError, Unauthorized
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from tests.contract.conftest import RUNTIMES, folder, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import Fleet, running_fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import PATIENCE_S, ServerProcess, running

__all__ = ["folder", "redis_server", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
COMMAND = ExecuteRequest(thread_id="t", command="echo done")


@dataclass
class Place:
    server: ServerProcess
    fleet: Fleet | None = None

    def keys(self, *words: str) -> Any:
        """What `sandbox keys` says, as JSON."""
        program = str(Path(sys.executable).with_name("sandbox"))
        told = subprocess.run(
            [program, "keys", *words, "--json"],
            env={"PATH": "/usr/bin:/bin", **self.server.settings},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(told.stdout)

    async def taken_up(self, key: str, *, valid: bool) -> None:
        """Returns when all processes agree: each new connection is for one of them."""
        agreed = 0
        async with asyncio.timeout(PATIENCE_S):
            while agreed < 10:
                async with httpx.AsyncClient(base_url=self.server.url) as http:
                    asked = await http.get("/sessions", headers={"x-api-key": key})
                agreed = agreed + 1 if (asked.status_code == 200) == valid else 0

    def backend(self, key: str | None) -> RemoteBackend:
        return RemoteBackend(self.server.url, api_key=key, retry_for_s=0)


@pytest.fixture(params=["alone", "processes", "fleet"])
async def place(
    request: pytest.FixtureRequest, folder: Path, redis_server: RedisServer
) -> AsyncIterator[Place]:
    if request.param == "fleet":
        async with running_fleet("bubblewrap", folder, redis_server, workers=1) as fleet:
            yield Place(fleet.coordinators[0], fleet)
        return
    processes = "2" if request.param == "processes" else "1"
    async with running("bubblewrap", folder, SANDBOX_PROCESSES=processes) as server:
        await server.healthy()
        yield Place(server)


async def test_keys(place: Place, subtests: pytest.Subtests) -> None:
    with subtests.test("without one, the server is open"):
        async with place.backend(None) as anyone:
            assert (await anyone.execute(COMMAND)).output == "done\n"

    acme = place.keys("create", "--tenant", "acme", "--name", "ci", "--expires", "90d")
    await place.taken_up("another", valid=False)
    with subtests.test("with the first one, callers need one"):
        async with place.backend(None) as anyone, place.backend("sbx_" + "0" * 56) as wrong:
            for caller in (anyone, wrong):
                with pytest.raises(Unauthorized):
                    await caller.execute(COMMAND)

    with subtests.test("it is that of its tenant"):
        other = place.keys("create", "--tenant", "other")
        await place.taken_up(other["key"], valid=True)
        async with place.backend(acme["key"]) as ours, place.backend(other["key"]) as theirs:
            made = await ours.create_session(CreateSessionRequest(thread_id="mine"))
            assert [each.thread_id for each in (await ours.sessions()).sessions] == ["mine"]
            assert (await theirs.sessions()).sessions == []
            with pytest.raises(SandboxError, match="no session"):
                await theirs.session(Target(session_id=made.session_id))

    with subtests.test("a key that reads writes nothing"):
        reader = place.keys("create", "--tenant", "acme", "--scope", "read")
        await place.taken_up(reader["key"], valid=True)
        async with place.backend(reader["key"]) as reading:
            assert (await reading.session(Target(thread_id="mine"))).generation == 1
            with pytest.raises(Forbidden, match="allows read; what was asked needs the scope use"):
                await reading.execute(COMMAND)

    with subtests.test("it is replaced without a gap"):
        new = place.keys("rotate", acme["key_id"], "--overlap", "1h")
        await place.taken_up(new["key"], valid=True)
        await place.taken_up(acme["key"], valid=True)

    with subtests.test("it is revoked"):
        place.keys("revoke", acme["key_id"])
        await place.taken_up(acme["key"], valid=False)

    with subtests.test("no text of a key is kept anywhere"):
        listed = {each["key_id"]: each for each in place.keys("list")}
        assert listed[acme["key_id"]]["state"] == "revoked"
        assert listed[acme["key_id"]]["replaced_by"] == new["key_id"]
        secrets = [each["key"].split("_", 2)[2] for each in (acme, other, reader, new)]
        assert not any(secret in json.dumps(listed) for secret in secrets)
        told = "\n".join(place.server.lines())
        assert not any(secret in told for secret in secrets)

    with subtests.test("a store that is emptied opens no door"):
        if place.fleet is not None:
            await place.fleet.store.delete(place.fleet.store.keys_key)
            await place.fleet.store.delete(f"{place.fleet.store.keys_key}:version")
            await place.taken_up(new["key"], valid=False)
            async with place.backend(None) as anyone:
                with pytest.raises(Unauthorized):
                    await anyone.sessions()


async def test_ten_thousand_wrong_keys(folder: Path) -> None:
    """All are refused alike, and nothing of them is kept or logged."""
    async with running("bubblewrap", folder, SANDBOX_API_KEYS="acme:right") as server:
        await server.ready()
        place = Place(server)
        right = place.keys("create", "--tenant", "acme")
        await place.taken_up(right["key"], valid=True)
        before = _memory(server.pid)
        answers: set[tuple[int, str]] = set()

        async def wrong(start: int) -> None:
            texts = (
                f"sbx_{number:012x}_{'x' * 43}" if number % 2 else f"wrong-{number}"
                for number in range(start, 10_000, 8)
            )
            async for status, body in _asked(server.port, texts):
                answers.add((status, json.loads(body)["error"]["message"]))

        await asyncio.gather(*map(wrong, range(8)))
        assert len(answers) == 1
        assert answers.pop()[0] == 401
        async with place.backend(right["key"]) as caller:
            assert (await caller.execute(COMMAND)).output == "done\n"
        assert "wrong-" not in "\n".join(server.lines())
        assert _memory(server.pid) - before < 50 << 20


async def _asked(port: int, keys: Iterable[str]) -> AsyncIterator[tuple[int, bytes]]:
    """The answers to requests with these keys, over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for key in keys:
            sent = f"GET /sessions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {key}\r\n\r\n"
            writer.write(sent.encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length: ")[2].split()[0])
            yield int(head.split()[1]), await reader.readexactly(size)
    finally:
        writer.close()


def _memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))
