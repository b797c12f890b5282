"""The tools over the Model Context Protocol, with its official client."""

import asyncio
import base64
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from sandbox_sdk.integrations.arguments import ALL
from sandbox_server.main import make_app
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES
from tests.contract.stand import Stand
from tests.server_process import ServerProcess, running, served

PROCESSES = pytest.mark.timeout(300)
"""Starting programs takes long on a busy machine."""
SANDBOX = str(Path(sys.executable).with_name("sandbox"))


@pytest.fixture
async def url(stand: Stand) -> AsyncIterator[str]:
    async with served(make_app(stand.service, load())) as url:
        yield url


@contextlib.asynccontextmanager
async def over_http(
    url: str, thread: str | None = None, *, mode: str = "auto", key: str | None = None
) -> AsyncIterator[Client]:
    headers = {"X-Sandbox-Thread": thread} if thread else {}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def over_stdio(
    url: str | None, thread: str | None = None, *, env: dict[str, str] | None = None
) -> AsyncIterator[Client]:
    where = ["--url", url] if url else []
    args = ["mcp", *where, *(["--thread", thread] if thread else [])]
    async with Client(StdioServerParameters(command=SANDBOX, args=args, env=env)) as client:
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    return result


async def text(client: Client, tool: str, **arguments: Any) -> str:
    """What a model is told of a call that was carried out."""
    result = await called(client, tool, **arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert not result.is_error, content.text
    return content.text


@PROCESSES
@pytest.mark.parametrize(
    ("runtime", "way"),
    [
        (name, way)
        for name, way in (
            ("bubblewrap", over_http),
            ("bubblewrap", over_stdio),
            ("docker", over_http),
        )
        if name in RUNTIMES
    ],
)
async def test_a_conversation_outlives_the_server(runtime: str, state_dir: Path, way: Any) -> None:
    """Two at once: each writes a file in its first turn, edits it in the second after the server
    was restarted, and runs it in the third."""

    async def each(turn: Any) -> list[str]:
        async def one(name: str) -> str:
            async with way(server.url, name) as client:
                return str(await turn(client, name))

        return list(await asyncio.gather(one("ann"), one("bob")))

    async def write(client: Client, name: str) -> str:
        return await text(client, "write_file", path="hi.py", content=f"print('hi', '{name}')\n")

    async def edit(client: Client, _name: str) -> str:
        return await text(client, "edit_file", path="hi.py", old="'hi'", new="'hello'")

    async def run(client: Client, _name: str) -> str:
        return await text(client, "bash", command="python3 hi.py; ls")

    async with running(runtime, state_dir) as server:
        await server.ready()
        await each(write)
        await again(server)
        await each(edit)
        assert await each(run) == [
            "hello ann\nhi.py\n[exit code 0]",
            "hello bob\nhi.py\n[exit code 0]",
        ]


@PROCESSES
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name == "bubblewrap"])
async def test_a_client_that_stays_is_served_again_after_a_restart(
    runtime: str, state_dir: Path
) -> None:
    async with running(runtime, state_dir) as server:
        await server.ready()
        async with over_http(server.url, "a") as client:
            await text(client, "bash", command="echo kept > file")
            await again(server)
            found = await text(client, "bash", command="cat file")
        assert found == "kept\n[exit code 0]"


async def again(server: ServerProcess) -> None:
    """As an operator does."""
    await server.stop(signal.SIGTERM)
    await server.start()
    await server.ready()


@PROCESSES
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name == "bubblewrap"])
async def test_without_a_server(runtime: str, state_dir: Path) -> None:
    foreign = ("SANDBOX_", "REDIS_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env = {**own, "SANDBOX_RUNTIME": runtime, "SANDBOX_STATE_DIR": str(state_dir / "alone")}
    async with over_stdio(None, "a", env=env) as client:
        await text(client, "bash", command="echo kept > file")
    async with over_stdio(None, "a", env=env) as client:
        assert await text(client, "bash", command="cat file") == "kept\n[exit code 0]"
    ended = await asyncio.create_subprocess_exec(SANDBOX, "rm", "a", env=env)
    assert await ended.wait() == 0


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_without_a_name_the_session_is_the_conversation(url: str, mode: str) -> None:
    async with over_http(url, mode=mode) as one, over_http(url, mode=mode) as other:
        await text(one, "bash", command="echo mine > file")
        assert await text(one, "bash", command="cat file") == "mine\n[exit code 0]"
        assert "No such file" in await text(other, "bash", command="cat file")


async def test_without_a_name_or_a_session_there_is_no_conversation(url: str) -> None:
    async with over_http(url, mode="2026-07-28") as nobody:
        refused = await called(nobody, "bash", command="true")
    assert refused.is_error
    assert "X-Sandbox-Thread" in str(refused.content)


async def test_ten_calls_at_once(url: str) -> None:
    for way in (over_http, over_stdio):
        async with way(url, "a") as client:
            await text(client, "bash", command="rm -rf /tmp/here; mkdir /tmp/here")
            # Each waits for all the others: one after the other, none would ever end.
            wait = "until [ $(ls /tmp/here | wc -l) = 10 ]; do sleep 0.3; done"
            commands = [f"touch /tmp/here/{n}; {wait}; echo {n}" for n in range(10)]
            said = await asyncio.gather(
                *(text(client, "bash", command=command, timeout=100) for command in commands)
            )
            assert said == [f"{n}\n[exit code 0]" for n in range(10)]


async def test_every_tool(url: str) -> None:
    async with over_http(url, "a") as client:
        offered = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(offered) == [name for name in ALL if name != "undo"]
        assert offered["bash"].description
        assert offered["read_file"].input_schema["required"] == ["path"]
        pixel, data = b"\x89PNG\r\n\x1a\n\0", bytes(range(256))
        for path, content in (("dot.png", pixel), ("sub/data.bin", data)):
            encoded = base64.b64encode(content).decode()
            await text(client, "upload_file", path=path, data_base64=encoded)
        listing = await text(client, "list_files", recursive=True)
        assert [line.split()[1] for line in listing.splitlines()] == [
            "/workspace/dot.png",
            "/workspace/sub/",
            "/workspace/sub/data.bin",
        ]
        (image,) = (await called(client, "download_file", path="dot.png")).content
        assert isinstance(image, ImageContent)
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", pixel)
        (file,) = (await called(client, "download_file", path="sub/data.bin")).content
        assert isinstance(file, EmbeddedResource)
        assert isinstance(file.resource, BlobResourceContents)
        assert base64.b64decode(file.resource.blob) == data
        await text(client, "write_file", path="a.txt", content="one\ntwo\n")
        assert "     2\ttwo" in await text(client, "read_file", path="a.txt")
        assert "empty, as new" in await text(client, "bash", restart=True)
        assert "is empty" in await text(client, "list_files")
        for tool, given in (("read_file", {"path": "gone"}), ("dash", {}), ("bash", {})):
            assert (await called(client, tool, **given)).is_error


@pytest.mark.parametrize("way", [over_http, over_stdio])
async def test_output_is_told_as_it_comes(url: str, way: Any) -> None:
    came, first = [], asyncio.Event()

    async def progress(done: float, _total: float | None, message: str | None) -> None:
        came.append(message)
        first.set()

    async with way(url, "a") as client:
        running = asyncio.create_task(
            client.call_tool(
                "bash",
                {"command": "echo one; until [ -e go ]; do sleep 0.05; done; echo two"},
                progress_callback=progress,
            )
        )
        await asyncio.wait_for(first.wait(), 30)
        await text(client, "bash", command="touch go")
        (content,) = (await running).content
        assert content.text == "one\ntwo\n[exit code 0]"
        assert came[0] == "one\n"


async def test_a_key_is_asked_for_and_tells_the_tenant(stand: Stand) -> None:
    async with served(make_app(stand.service, load(api_keys="x:one,y:two"))) as url:
        async with httpx2.AsyncClient() as http:
            refused = await http.post(f"{url}/mcp", json={})
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "unauthorized"
        async with over_http(url, "a", key="one") as one, over_http(url, "a", key="two") as two:
            await text(one, "bash", command="echo mine > file")
            assert "No such file" in await text(two, "bash", command="cat file")
            assert await text(one, "bash", command="cat file") == "mine\n[exit code 0]"


async def test_a_session_belongs_to_the_tenant_that_began_it(stand: Stand) -> None:
    begin = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "by hand", "version": "1"},
        },
    }
    accept = {"Accept": "application/json, text/event-stream"}
    async with (
        served(make_app(stand.service, load(api_keys="x:one,y:two"))) as url,
        httpx2.AsyncClient(base_url=url, headers=accept) as http,
    ):
        begun = await http.post("/mcp", json=begin, headers={"X-API-Key": "one"})
        session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        statuses = [
            (await http.post("/mcp", json=ping, headers={"X-API-Key": key, **session})).status_code
            for key in ("one", "two")
        ]
    assert statuses == [200, 404]


async def test_a_foreign_name_of_this_machine_is_refused(url: str) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(
            f"{url}/mcp", json={}, headers={"Host": "evil.example", "Accept": "*/*"}
        )
    assert answer.status_code == 403


async def test_stdio_without_a_thread_leaves_nothing(url: str) -> None:
    async with over_stdio(url) as client:
        assert await text(client, "bash", command="echo $((6 * 7))") == "42\n[exit code 0]"
    async with httpx2.AsyncClient() as http:
        deadline = asyncio.get_running_loop().time() + 30
        while (await http.get(f"{url}/sessions")).json()["sessions"]:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)


@PROCESSES
@pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="needs bubblewrap")
async def test_a_server_of_several_processes(state_dir: Path) -> None:
    """A conversation is in the memory of one process, and its connections come to any."""
    async with running("bubblewrap", state_dir, SANDBOX_PROCESSES="3") as server:
        await server.ready()
        for number in range(4):
            async with over_http(server.url, mode="legacy") as client:
                for step in range(3):
                    told = await client.call_tool("bash", {"command": f"echo {number} >> f; cat f"})
                    assert isinstance(told.content[0], TextContent)
                    assert told.content[0].text.startswith(f"{number}\n" * (step + 1))
            async with over_http(server.url, f"conv-{number}") as client:
                told = await client.call_tool("bash", {"command": "echo here"})
                assert isinstance(told.content[0], TextContent)
                assert told.content[0].text.startswith("here")


async def test_artifacts_are_resources_of_their_conversation(url: str) -> None:
    async with over_http(url, thread="maker") as client:
        await text(client, "bash", command="echo seven > r.txt; save_artifact r.txt")
        (resource,) = (await client.list_resources()).resources
        assert (resource.name, resource.mime_type) == ("/workspace/r.txt", "text/plain")
        (content,) = (await client.read_resource(resource.uri)).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == "seven\n"
    async with over_http(url, thread="other") as client:
        assert (await client.list_resources()).resources == []
        with pytest.raises(MCPError, match="no artifact"):
            await client.read_resource(resource.uri)


@PROCESSES
@pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="needs bubblewrap")
async def test_the_process_that_has_the_conversations_may_be_away(state_dir: Path) -> None:
    """Calls that no other process can serve wait for it, however large they are."""
    async with running("bubblewrap", state_dir, SANDBOX_PROCESSES="3") as server:
        await server.healthy()
        large = "x" * 300_000
        for number in range(3):  # Most connections arrive at another process.
            has_conversations = server.children()[-1 if number else 0]
            os.kill(has_conversations, signal.SIGKILL)
            while has_conversations in server.children():
                await asyncio.sleep(0)
            async with over_http(server.url, f"conv-{number}") as client:
                await text(client, "write_file", path="f", content=large)
                assert (await text(client, "bash", command="wc -c < f")).startswith("300000\n")
