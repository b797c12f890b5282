"""/terminal and /ws of a real server process, with a real WebSocket client."""

import asyncio
import base64
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from tests.contract.conftest import RUNTIMES, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import running_fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess, running

__all__ = ["redis_server", "state_dir"]

pytestmark = [
    pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="needs bubblewrap"),
    pytest.mark.timeout(300),
]
PATIENCE_S = 60.0


class Screen:
    """A viewer of a terminal."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.shown = ""
        self.offset = 0
        self.told: list[dict[str, Any]] = []

    async def started(self) -> str:
        return str((await self.until_told("start"))["command_id"])

    async def until_told(self, kind: str) -> dict[str, Any]:
        while True:
            for message in self.told:
                if message["type"] == kind:
                    self.told.remove(message)
                    return message
            await self._next()

    async def until_shown(self, text: str) -> None:
        while text not in self.shown:
            await self._next()
        self.shown = self.shown.partition(text)[2]

    async def _next(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.socket.recv()
        if isinstance(message, bytes):
            self.shown += message.decode()
            self.offset += len(message)
            return
        control = json.loads(message)
        if control["type"] in ("start", "offset"):
            self.offset = control["offset"]
        self.told.append(control)

    async def type(self, text: str) -> None:
        await self.socket.send(text.encode())

    async def control(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))


def address(server: ServerProcess, path: str, **query: object) -> str:
    return server.url.replace("http://", "ws://") + f"{path}?{urlencode(query)}"


@contextlib.asynccontextmanager
async def viewing(server: ServerProcess, **query: object) -> AsyncIterator[Screen]:
    async with connect(address(server, "/terminal", **query), compression=None) as socket:
        yield Screen(socket)


async def test_a_terminal(state_dir: Path, subtests: pytest.Subtests) -> None:
    async with running("bubblewrap", state_dir) as server:
        await server.ready()
        with subtests.test("keys go there, and what it shows comes back"):
            async with viewing(server, thread_id="t", rows=30, cols=90) as screen:
                command_id = await screen.started()
                await screen.until_shown("$ ")
                await screen.type("stty size; x=é\r")
                await screen.until_shown("\n30 90\r\n")
                await screen.control(type="resize", rows=31, cols=91)
                await screen.type("stty size; echo $x\r")
                await screen.until_shown("\n31 91\r\né\r\n")
                await screen.control(type="ping")
                await screen.until_told("pong")
                reached = screen.offset

        with subtests.test("it lives on, and is gone on with from an offset, by several at once"):
            about = {"thread_id": "t", "command_id": command_id}
            async with (
                viewing(server, **about, offset=reached) as again,
                viewing(server, **about) as other,
            ):
                await again.started()
                await other.until_shown("30 90")
                await again.type("echo two of us\r")
                await again.until_shown("\ntwo of us\r\n")
                await other.until_shown("\ntwo of us\r\n")
                await other.type("echo and me\r")
                await again.until_shown("\nand me\r\n")
                reached = again.offset

        with subtests.test("it outlives its server"):
            server.send(signal.SIGKILL)
            await server.ended()
            await server.start()
            await server.ready()
            async with viewing(server, **about, offset=reached) as screen:
                await screen.type("echo still $x\r")
                await screen.until_shown("\nstill é\r\n")
                await screen.type("exit 5\r")
                assert (await screen.until_told("exit"))["exit_code"] == 5
                with pytest.raises(ConnectionClosed) as closed:
                    await screen.until_told("nothing more")
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1000

        with subtests.test("what is wrong is told, and closes it"):
            for query, code in (
                ({"thread_id": "t", "command_id": "none"}, 4404),
                ({"thread_id": "t", "rows": 0}, 4422),
                ({}, 4422),
                ({"session_id": "00000000-0000-0000-0000-000000000000"}, 4404),
            ):
                async with viewing(server, **query) as screen:
                    told = await screen.until_told("error")
                    assert told["error"]["message"]
                    with pytest.raises(ConnectionClosed) as closed:
                        await screen.until_told("nothing more")
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.code == code


async def kept_typing(server: ServerProcess, killed: Callable[[], Awaitable[None]]) -> None:
    """A terminal and calls over one connection go on where they were after a kill. server: that
    which is called."""
    async with viewing(server, thread_id="t") as screen:
        command_id = await screen.started()
        await screen.until_shown("$ ")
        await screen.type("x=1; echo o''ne\r")
        await screen.until_shown("one\r\n")
        reached = screen.offset
        await killed()
        about = {"thread_id": "t", "command_id": command_id, "offset": reached}
        async with viewing(server, **about) as again:
            await again.type("echo $((x + 1)) two\r")
            await again.until_shown("2 two\r\n")
    async with connect(address(server, "/ws")) as socket:
        caller = Caller(socket)
        for thread in "tuvw":
            await caller.ask(thread, "execute", thread_id=thread, command="echo $0")
        for thread in "tuvw":
            assert (await caller.told(thread, "answer"))["answer"]["output"] == "bash\n"


async def test_on_a_server_of_several_processes(state_dir: Path) -> None:
    async with running("bubblewrap", state_dir, SANDBOX_PROCESSES="2") as server:
        await server.healthy()

        async def killed() -> None:
            for pid in server.children():
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0)
            await server.healthy()

        await kept_typing(server, killed)


async def test_through_a_coordinator(
    state_dir: Path, redis_server: RedisServer, subtests: pytest.Subtests
) -> None:
    async with running_fleet("bubblewrap", state_dir, redis_server, workers=2) as fleet:
        (coordinator,) = fleet.coordinators

        async def again(*processes: ServerProcess) -> None:
            for process in processes:
                process.send(signal.SIGKILL)
                await process.ended()
                await process.start()
                await process.ready()

        with subtests.test("that is killed"):
            await kept_typing(coordinator, lambda: again(coordinator))
        with subtests.test("whose workers are killed"):
            await kept_typing(coordinator, lambda: again(*fleet.workers))


class Caller:
    """Calls over /ws."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []

    async def ask(self, ident: str | int, op: str, **request: Any) -> None:
        await self.socket.send(json.dumps({"id": ident, "op": op, "request": request}))

    async def told(self, ident: str | int, kind: str) -> dict[str, Any]:
        """The next message for an id that has such a field or event."""
        while True:
            for message in self.messages:
                if message.get("id") == ident and (kind in message or message.get("event") == kind):
                    self.messages.remove(message)
                    return message
            async with asyncio.timeout(PATIENCE_S):
                self.messages.append(json.loads(await self.socket.recv()))


async def test_many_calls_over_one_connection(state_dir: Path) -> None:
    async with running("bubblewrap", state_dir) as server:
        await server.ready()
        async with connect(address(server, "/ws")) as socket:
            caller = Caller(socket)
            await caller.ask(
                1, "stream", thread_id="t", command="read a; echo got $a", stdin_open=True
            )
            started = await caller.told(1, "start")
            about = {"thread_id": "t", "command_id": started["command_id"]}
            await caller.ask("two", "execute", thread_id="t", command="echo beside")
            assert (await caller.told("two", "answer"))["answer"]["output"] == "beside\n"
            await caller.ask(3, "stdin", **about, data="it\n")
            assert (await caller.told(3, "answer"))["answer"] == {"received": 3}
            assert (await caller.told(1, "stdout"))["data"] == "got it\n"
            assert (await caller.told(1, "exit"))["exit_code"] == 0
            await caller.ask(4, "stream", thread_id="t", command="sleep 1000")
            slow = await caller.told(4, "start")
            await caller.ask(4, "cancel")
            await caller.ask(
                4, "signal", thread_id="t", command_id=slow["command_id"], signal="KILL"
            )
            assert (await caller.told(4, "answer"))["answer"]["command_id"] == slow["command_id"]
            await caller.ask(5, "excute", thread_id="t", command="x")
            assert "execute" in (await caller.told(5, "error"))["error"]["message"]
            await caller.ask(6, "execute", thread_id="t")
            assert (await caller.told(6, "error"))["error"]["code"] == "invalid_request"
            await socket.send("no JSON")
            with pytest.raises(ConnectionClosed) as closed:
                await caller.told(7, "answer")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4422


async def test_who_may_open_one(state_dir: Path, subtests: pytest.Subtests) -> None:
    keys = {"SANDBOX_API_KEYS": "acme:key-ä,globex:key-g"}
    async with running("bubblewrap", state_dir, **keys) as server:
        await server.ready()
        url = address(server, "/ws")
        with subtests.test("nobody without a key"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url)
            assert refused.value.response.status_code == 401
            assert b"needs an API key" in (refused.value.response.body or b"")
        with subtests.test("with a header, or as a page does, with a protocol"):
            text = base64.urlsafe_b64encode("key-ä".encode()).decode().rstrip("=")
            protocols = [Subprotocol("sandbox.v1"), Subprotocol(f"sandbox.key.{text}")]
            async with connect(url, subprotocols=protocols) as socket:
                assert socket.subprotocol == "sandbox.v1"
                caller = Caller(socket)
                await caller.ask(1, "create_session", thread_id="mine")
                await caller.told(1, "answer")
            async with connect(url, additional_headers={"X-API-Key": "key-g"}) as socket:
                caller = Caller(socket)
                await caller.ask(1, "sessions")
                assert (await caller.told(1, "answer"))["answer"]["sessions"] == []
        with subtests.test("no page of another site, key or not"):
            headers = {"X-API-Key": "key-g"}
            with pytest.raises(InvalidStatus) as refused:
                await connect(
                    url, additional_headers=headers, origin=Origin("https://evil.example")
                )
            assert refused.value.response.status_code == 403
            own = server.url.removesuffix("/")
            async with connect(url, additional_headers=headers, origin=Origin(own)):
                pass
