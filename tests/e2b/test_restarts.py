"""e2b's SDK at a server that is killed, and with a key that is revoked."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import to_thread
from e2b import AsyncSandbox, AuthenticationException, Sandbox, SandboxException

from tests.contract.conftest import RUNTIMES, folder
from tests.e2b.servers import KEYS, Served
from tests.server_process import PATIENCE_S, ServerProcess, running

__all__ = ["folder"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
TICKS = "mkdir seen; i=0; while sleep 0.05; do touch seen/$i; i=$((i+1)); done"


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[ServerProcess]:
    async with running("bubblewrap", folder, SANDBOX_API_KEYS=KEYS) as made:
        await made.healthy()
        yield made


async def killed(server: ServerProcess) -> None:
    await server.stop()
    await server.start()
    await server.healthy()


async def test_a_watch_goes_on_after_the_server_was_killed(server: ServerProcess) -> None:
    """What was made while it was gone is told, too."""
    options = Served([server.url]).options()
    box = await to_thread.run_sync(partial(Sandbox.create, timeout=300, **options))
    box.commands.run(TICKS, background=True, timeout=0)
    while not await to_thread.run_sync(box.files.exists, "seen/0"):
        pass
    watch = await to_thread.run_sync(box.files.watch_dir, "seen")
    seen: set[int] = set()

    async def see(*, at_least: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(seen) < at_least:
                events = await to_thread.run_sync(watch.get_new_events)
                seen.update(int(each.name) for each in events if each.type.value == "create")

    await see(at_least=5)
    before = max(seen)
    await killed(server)
    await see(at_least=len(seen) + 20)
    assert sorted(seen) == list(range(min(seen), max(seen) + 1))
    assert max(seen) > before
    await to_thread.run_sync(box.kill)


async def test_a_stream_of_events_says_that_the_server_was_killed(server: ServerProcess) -> None:
    box = await AsyncSandbox.create(timeout=300, **Served([server.url]).options())
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    await box.files.watch_dir(".", on_event=lambda _: None, on_exit=ended.set_result)
    await killed(server)
    async with asyncio.timeout(PATIENCE_S):
        assert isinstance(await ended, Exception)
    assert await box.is_running()
    await box.kill()


def keys(server: ServerProcess, *words: str) -> Any:
    """What `sandbox keys` says."""
    program = str(Path(sys.executable).with_name("sandbox"))
    environment = {"PATH": "/usr/bin:/bin", **server.settings}
    told = subprocess.run(
        [program, "keys", *words, "--json"], env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(told.stdout)


async def taken_up(server: ServerProcess, key: str, *, valid: bool) -> None:
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(base_url=server.url) as http:
        while True:
            asked = await http.get("/sessions", headers={"x-api-key": key})
            if (asked.status_code == 200) == valid:
                return


async def test_a_revoked_key_takes_its_tokens_with_it(server: ServerProcess) -> None:
    """Those of its sandboxes, and the URLs that they signed. Another key of the tenant has them."""
    first, other = (keys(server, "create", "--tenant", "initech") for _ in range(2))
    await taken_up(server, other["key"], valid=True)
    served = Served([server.url])
    box = await AsyncSandbox.create(timeout=300, **served.options(key=first["key"]))
    await box.files.write("a.txt", "kept")
    url = box.download_url("a.txt")
    running = await box.commands.run("exec sleep 1000", background=True)
    keys(server, "revoke", first["key_id"])
    await taken_up(server, first["key"], valid=False)

    for call in (
        partial(box.files.read, "a.txt"),
        partial(box.files.exists, "a.txt"),
        partial(box.commands.run, "true"),
        partial(box.commands.connect, running.pid),
        partial(box.set_timeout, 100),
        box.get_info,
    ):
        with pytest.raises(AuthenticationException):
            await call()
    async with httpx.AsyncClient() as http:
        assert (await http.get(url)).status_code == 401
    again = await AsyncSandbox.connect(box.sandbox_id, **served.options(key=other["key"]))
    assert await again.files.read("a.txt") == "kept"
    async with httpx.AsyncClient() as http:
        assert (await http.get(again.download_url("a.txt"))).text == "kept"
    await again.kill()


async def test_events_that_are_not_kept_are_missed(server: ServerProcess) -> None:
    """That is told once; what comes then is told again."""
    box = await to_thread.run_sync(
        partial(Sandbox.create, timeout=300, **Served([server.url]).options())
    )
    await to_thread.run_sync(box.files.make_dir, "seen")
    watch = await to_thread.run_sync(box.files.watch_dir, "seen")
    await to_thread.run_sync(box.commands.run, "cd seen; seq 9000 | xargs touch; rm -f 1")
    with pytest.raises(SandboxException, match="events are missing"):
        await to_thread.run_sync(watch.get_new_events)
    await to_thread.run_sync(box.files.write, "seen/later", "x")
    names: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while "later" not in names:
            events = await to_thread.run_sync(watch.get_new_events)
            names += [each.name for each in events]
    await to_thread.run_sync(box.kill)
