"""Budgets of keys over HTTP: at a server alone, of several processes, and in a fleet."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol import calling_key
from sandbox_sdk.protocol.errors import RateLimited, SessionNotFound
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    ConnectRequest,
    CreateSessionRequest,
    ExecuteRequest,
    ForkRequest,
    HappeningsRequest,
    RestoreRequest,
    Target,
    UploadRequest,
)
from sandbox_sdk.protocol.operations import EVENTS
from sandbox_server.main import open_service
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES, folder, state_dir
from tests.egress import internet
from tests.fleet.conftest import redis_server
from tests.fleet.redis_server import RedisServer
from tests.integration.test_events import webhooks_file
from tests.internet import HERE, Internet
from tests.key_place import PLACES, KeyPlace, key_place
from tests.run import run_owner
from tests.server_process import PATIENCE_S
from tests.waiting import until_true
from tests.webhook_receiver import receiving

__all__ = ["folder", "internet", "redis_server", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


async def nothing() -> AsyncIterator[bytes]:
    yield b"x"


async def used_up(caller: RemoteBackend, thread: str, key_id: str) -> None:
    """Whatever uses more is refused, by the budget of this key; within seconds by each process."""
    await until_true(functools.partial(_is_refused, caller, thread))
    run = ExecuteRequest(thread_id=thread, command="true")
    with pytest.raises(
        RateLimited, match=f"budget of commands of key {key_id} is used up: 5 a day"
    ) as e:
        await caller.execute(run)
    assert e.value.details["budget"] == "commands"
    assert e.value.details["key"] == key_id
    assert 0 < e.value.details["retry_after_s"] <= 86400
    with pytest.raises(RateLimited):
        async for _ in caller.stream(run):
            pass
    with pytest.raises(RateLimited):
        await caller.upload(UploadRequest(thread_id=thread, path="a"), nothing())
    with pytest.raises(RateLimited):
        async with caller.connect(ConnectRequest(thread_id=thread, port=1)):
            pass


async def _is_refused(caller: RemoteBackend, thread: str) -> bool:
    """Asked with what changes nothing: the session is there."""
    try:
        await caller.create_session(CreateSessionRequest(thread_id=thread))
    except RateLimited:
        return True
    return False


@pytest.mark.parametrize("kind", PLACES)
async def test_a_budget_of_a_key(kind: str, folder: Path, redis_server: RedisServer) -> None:
    """A session is charged to the key that made it, whoever uses it; a restart forgets nothing. A
    webhook is told when it is nearly used up."""
    async with receiving() as receiver:
        settings = {
            "SANDBOX_BUDGETS": "key {bounded}: commands=5; acme: commands=15",
            "SANDBOX_WEBHOOKS": str(webhooks_file(folder, receiver.url, kinds=["budget.near"])),
        }
        async with key_place(kind, folder, redis_server, settings, "bounded", "free") as place:
            await _used(place)

            def told() -> dict[str | None, float]:
                data = [each.event["data"] for each in receiver.received if each.is_signed]
                return {each.get("key"): each["share"] for each in data}

            wanted = {place.id_of("bounded"), None}
            await receiver.until(lambda: told().keys() == wanted, within_s=PATIENCE_S)
            assert min(told().values()) >= 0.8


async def _used(place: KeyPlace) -> None:
    bounded_id = place.id_of("bounded")
    async with place.of("bounded") as bounded, place.of("free") as free:
        await bounded.create_session(CreateSessionRequest(thread_id="ours"))
        await free.create_session(CreateSessionRequest(thread_id="theirs"))
        for caller in (bounded, free):
            await caller.execute(ExecuteRequest(thread_id="ours", command="true"))
        for _ in range(7):  # Charged to the other key.
            await bounded.execute(ExecuteRequest(thread_id="theirs", command="true"))
        await free.usage()
    await place.restart()
    async with (
        place.of("bounded", retry_for_s=60) as bounded,
        place.of("free", retry_for_s=60) as free,
    ):
        for _ in range(3):
            await bounded.execute(ExecuteRequest(thread_id="ours", command="true"))
        await free.usage()  # Reads what was used.
    async with place.of("bounded") as bounded, place.of("free") as free:
        for caller, thread in ((bounded, "ours"), (bounded, "theirs"), (free, "ours")):
            await used_up(caller, thread, bounded_id)
        await until_true(functools.partial(_is_refused, bounded, "more"))
        with pytest.raises(RateLimited, match=f"of key {bounded_id}"):
            await bounded.create_session(CreateSessionRequest(thread_id="more"))
        with contextlib.suppress(SessionNotFound):  # Of a process that did not know yet.
            await bounded.cleanup(Target(thread_id="more"))
        await free.execute(ExecuteRequest(thread_id="theirs", command="true"))
        assert len((await bounded.sessions()).sessions) == 2
        told = await free.call(EVENTS, HappeningsRequest(after="", kind="budget.near", limit=1000))
        assert bounded_id in {each.data.get("key") for each in told.events}
        for thread in ("ours", "theirs"):
            await bounded.cleanup(Target(thread_id=thread))


async def test_egress_that_is_used_up(state_dir: Path, internet: Internet) -> None:
    """A command that runs makes no new connections either."""
    settings = load(
        runtime="bubblewrap", pool_size=0, min_pool_size=0, worker_id=run_owner("egress-budget"),
        state_dir=state_dir, destroy_on_exit=True, network="allowlist",
        network_allow=f"{HERE}:{internet.http}", budgets="*:egress_bytes=200",
    )  # fmt: skip
    get = f"curl -sS --noproxy '' http://{HERE}:{internet.http}/hello"
    async with open_service(settings) as service:
        sandboxes = service.of("acme")
        first = await sandboxes.execute(ExecuteRequest(thread_id="t", command=get))
        assert first.output == "hello\n"
        loop = f"until [ -e go ]; do sleep 0.05; done; {get}"
        request = ExecuteRequest(thread_id="t", command=loop)
        running = asyncio.create_task(sandboxes.execute(request))
        await sandboxes.execute(ExecuteRequest(thread_id="t", command="true"))
        await sandboxes.usage()
        with pytest.raises(RateLimited, match="egress_bytes"):
            await sandboxes.execute(ExecuteRequest(thread_id="t", command="true"))
        session = service._table.live("acme", "t")
        assert session is not None
        await session.agent.run("touch /workspace/go")
        assert "the budget of egress_bytes is used up: 200 a day" in (await running).output


async def test_who_is_charged(state_dir: Path) -> None:
    """The key whose call made a session; that of the one whose place it takes, if it takes one."""
    settings = load(
        runtime="bubblewrap", pool_size=0, min_pool_size=0, worker_id=run_owner("charged"),
        state_dir=state_dir, destroy_on_exit=True,
    )  # fmt: skip
    async with open_service(settings) as service:
        sandboxes = service.of("acme")

        def charged(thread: str) -> str:
            session = service._table.live("acme", thread)
            assert session is not None
            return session.made_by

        calling_key.begin("one")
        await sandboxes.create_session(CreateSessionRequest(thread_id="t"))
        calling_key.begin("two")
        await sandboxes.execute(ExecuteRequest(thread_id="t", command="true"))
        kept = await sandboxes.checkpoint(CheckpointRequest(thread_id="t"))
        restore = RestoreRequest(thread_id="t", checkpoint_id=kept.checkpoint_id)
        await sandboxes.restore(restore)
        assert charged("t") == "one"
        forked = await sandboxes.fork(ForkRequest(thread_id="t", into=["child"]))
        assert [charged(each.thread_id) for each in forked.sessions] == ["two"]
        await sandboxes.cleanup(Target(thread_id="t"))
        await sandboxes.execute(ExecuteRequest(thread_id="t", command="true"))
        assert charged("t") == "two"
        calling_key.begin("")
        await sandboxes.execute(ExecuteRequest(thread_id="without", command="true"))
        assert charged("without") == ""
