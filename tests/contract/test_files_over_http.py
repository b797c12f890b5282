"""Large requests, listings and downloads through everything there is between a client and a box."""

import hashlib
import json
import logging
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox_sdk import AsyncSandboxClient
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import MAX_COMMAND_BYTES, MAX_ENV_BYTES
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .stand import RoutedStand
from .test_sandboxes import run, thread

pytestmark = pytest.mark.one_way
MIB = 1 << 20
BIG = 64 * MIB
REWRITE = f"printf x | dd of=f bs=1 seek={BIG - 5} conv=notrunc status=none"


@pytest.fixture
def http(stand: RoutedStand) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stand.coordinator_url, timeout=60)


def body(**fields: Any) -> bytes:
    return json.dumps({"thread_id": "t", **fields}, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"command": ": " + "x" * 1_048_000}, MAX_COMMAND_BYTES),
        ({"command": ": " + "é" * 600_000}, MAX_COMMAND_BYTES),
        ({"command": ":", "env": {"A": "x" * 1_100_000}}, MAX_COMMAND_BYTES),
        ({"env": {"A": "x" * 1_100_000}}, MAX_ENV_BYTES),
        ({"env": {f"A{n}": "'" * 20 for n in range(6000)}}, MAX_ENV_BYTES),
    ],
    ids=["command", "utf-8", "env", "env of a session", "many"],
)
async def test_what_is_too_large_is_refused_and_makes_no_session(
    http: httpx.AsyncClient, fields: dict[str, Any], limit: int
) -> None:
    async with http:
        route = "/execute" if "command" in fields else "/create_session"
        answer = await http.post(route, content=body(**fields), headers=JSON)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (422, "invalid_request")
        assert str(limit) in error["message"]
        found = await http.get("/session", params={"thread_id": "t"})
        assert found.status_code == 404


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("field", ["command", "stdin", "cwd", "env"])
async def test_half_a_surrogate_pair(http: httpx.AsyncClient, field: str) -> None:
    text = {"A": "\ud800"} if field == "env" else "\ud800"
    sent = json.dumps({"thread_id": "t", "command": ":", field: text})
    async with http:
        answer = await http.post("/execute", content=sent, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")


async def test_what_is_just_not_too_large(http: httpx.AsyncClient) -> None:
    source = "echo ${#A} # "
    fits = source + "é" * ((MAX_COMMAND_BYTES - 200_000) // 2)
    async with http:
        env = {"A": "x" * 100_000}
        answer = await http.post("/execute", content=body(command=fits, env=env), headers=JSON)
        assert answer.json()["output"] == "100000\n"
        quotes = {
            "thread_id": "quotes",
            "env": {"Q": "'" * 20_000 + "x" * (MAX_ENV_BYTES - 20_001)},
        }
        made = await http.post("/create_session", json=quotes)
        assert made.status_code == 201, made.text
        asked = {"thread_id": "quotes", "command": "echo ${#Q}"}
        answer = await http.post("/execute", json=asked)
        assert answer.json()["output"] == f"{MAX_ENV_BYTES - 1}\n"


@pytest.mark.rest
async def test_a_listing_of_more_than_fifty_thousand(sandboxes: Sandboxes) -> None:
    command = "mkdir many; cd many; seq -f %06g 50200 | xargs touch"
    made = await run(sandboxes, "t", command, timeout=300)  # A disk may be slow.
    assert made.exit_code == 0, made
    listing = await sandboxes.list_files(thread("t"), path="many", limit=100_000)
    assert (len(listing.entries), listing.truncated) == (50_200, False)


async def test_odd_times_and_long_paths(http: httpx.AsyncClient) -> None:
    code = "import os\nfor _ in range(40): os.mkdir('x' * 250); os.chdir('x' * 250)\n"
    command = "touch -d @99999999999999 /dev/shm/f; touch -d @-99999999999 /dev/shm/g; python3 -"
    async with http:
        await http.post("/execute", json={"thread_id": "t", "command": command, "stdin": code})
        params = {"thread_id": "t", "path": "/dev/shm"}
        answer = await http.get("/list_files", params=params)
        assert [entry["name"] for entry in answer.json()["entries"]] == ["f", "g"]
        answer = await http.get("/download_file", params={"thread_id": "t", "path": "/dev/shm/f"})
        assert answer.headers["x-sandbox-modified-at"].startswith("9999-12-31")
        answer = await http.get("/list_files", params={"thread_id": "t", "recursive": "true"})
        assert (answer.status_code, answer.json()["truncated"]) == (200, True)
        answer = await http.get("/list_files", params={"thread_id": "t", "path": "x" * 9000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_path")


async def test_a_download_is_cut_where_its_etag_would_be_wrong(
    sandboxes: Sandboxes, http: httpx.AsyncClient
) -> None:
    await run(sandboxes, "t", f"head -c {BIG} /dev/zero > f")
    with pytest.raises(httpx.RemoteProtocolError):
        await read_while_it_is_rewritten(sandboxes, http)
    with pytest.raises(errors.SandboxError):
        await download_while_it_is_rewritten(sandboxes)
    digest = (await run(sandboxes, "t", "sha256sum < f")).output.split()[0]
    async with sandboxes.download_file(thread("t"), "f") as file:
        got = hashlib.sha256(b"".join([chunk async for chunk in file.chunks]))
    assert got.hexdigest() == digest == file.info.sha256


async def read_while_it_is_rewritten(sandboxes: Sandboxes, http: httpx.AsyncClient) -> None:
    params = {"thread_id": "t", "path": "f"}
    async with http, http.stream("GET", "/download_file", params=params) as answer:
        chunks = answer.aiter_raw()
        await anext(chunks)
        await run(sandboxes, "t", REWRITE)
        async for _ in chunks:
            pass


async def download_while_it_is_rewritten(sandboxes: Sandboxes) -> None:
    async with sandboxes.download_file(thread("t"), "f") as file:
        await anext(file.chunks)
        await run(sandboxes, "t", REWRITE.replace("printf x", "printf y"))
        async for _ in file.chunks:
            pass


async def test_what_a_tar_lacks_is_told(
    sandboxes: Sandboxes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await run(sandboxes, "t", "mkdir d; echo 1 > d/a; echo 2 > d/b; chmod 0 d/b")
    async with AsyncSandboxClient("t", backend=sandboxes) as sandbox:
        with caplog.at_level(logging.WARNING, logger="sandbox"):
            saved = await sandbox.download_file("d", tmp_path)
        assert "/workspace/d" in caplog.text
        assert "b: Permission denied" in caplog.text
        with tarfile.open(saved) as archive:
            assert archive.getnames() == ["a", "LEFT-OUT-BY-SANDBOX.txt"]
        caplog.clear()
        await run(sandboxes, "t", "chmod 600 d/b")
        await sandbox.download_file("d", tmp_path)
        assert "left out" not in caplog.text


async def test_commands_that_are_remembered_and_not_told(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "t", ":")
    assert (await sandboxes.commands(thread("t"))).truncated is False
    for number in range(260):
        await run(sandboxes, "t", ":", idempotency_key="\U0001f600" * 190 + str(number))
    found = await sandboxes.commands(thread("t"))
    assert (len(found.commands), found.truncated) == (256, True)
