"""What a server believes of the boxes it finds after a restart: its own records, not their word."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import SessionLost
from sandbox_sdk.protocol.models import EgressRules, Target
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.network.modes import NetworkModes
from sandbox_server.network.networks import Networks
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.source import PooledBoxes, PooledEnvironment
from sandbox_server.registry.agents import KeptTool, SessionAgent
from sandbox_server.runtime.base import Box, BoxSpec, Limits, Runtime
from sandbox_server.sessions import adoption
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions
from sandbox_server.sessions.previews import AllPorts
from sandbox_server.sessions.registry import Status
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.worker import Worker
from tests.contract.conftest import server_runtime, state_dir

__all__ = ["server_runtime", "state_dir"]

PATIENCE_S = 30.0
OpenWorker = Callable[..., contextlib.AbstractAsyncContextManager[Worker]]


@pytest.fixture
def owner() -> str:
    return f"adopts-{os.getpid()}-{uuid.uuid4().hex[:6]}"


async def as_it_is(spec: BoxSpec) -> BoxSpec:
    return spec


@pytest.fixture
async def opened(server_runtime: Runtime, state_dir: Path, owner: str) -> AsyncIterator[OpenWorker]:
    """Workers of one name, one after the other; their boxes go in the end."""

    @contextlib.asynccontextmanager
    async def open_worker(
        *, warm: int = 0, limits: Limits | None = None, **changes: Any
    ) -> AsyncIterator[Worker]:
        registry = SqliteRegistry(state_dir / f"{owner}.sqlite", worker=owner)
        settings: dict[str, Any] = {
            "pool": PoolSettings(size=warm, min_size=warm, max_size=warm, tick_s=0.05),
            "environments": lambda: dict.fromkeys(
                ["strict", "open"], PooledEnvironment(declared="as it is", ready=as_it_is)
            ),
            "idle_timeout_s": 600,
            "capacity": 5,
            "tick_s": 0.05,
        }
        lease = LoneLease(owner, registry.next_epoch())
        spec = BoxSpec(owner=owner, deadman_s=300, limits=limits or Limits())
        async with Worker(server_runtime, spec, registry, lease, **{**settings, **changes}) as made:
            yield made
        await registry.close()

    yield open_worker
    left = await server_runtime.boxes(owner)
    await asyncio.gather(*(box.destroy() for box in left))


async def tells(box: Box, state: dict[str, Any]) -> None:
    """Let a box say this of itself, as code that has taken over its warden could."""
    async with box.agent(epoch=1) as warden:
        await warden.set_state(state)


async def told_state(session: LiveSession) -> dict[str, Any]:
    return (await session.agent.state()).state


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


async def lost(worker: Worker, session: LiveSession) -> bool:
    """Whether the loss is told by session, and the thread starts anew."""
    with pytest.raises(SessionLost):
        await worker.table.find(SOLE_TENANT, Target(session_id=session.record.session_id))
    again, state = await worker.table.open(SOLE_TENANT, session.record.thread_id)
    generation = session.record.generation + 1
    return (again.record.generation, state) == (generation, "recreated")


async def test_a_box_with_another_identity_is_lost(
    opened: OpenWorker, server_runtime: Runtime, owner: str
) -> None:
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
        told = await told_state(session)
    await tells(session.box, {**told, "thread_id": "victim"})
    async with opened() as worker:
        assert worker.table.sessions() == []
        assert worker.table.live(SOLE_TENANT, "victim") is None
        assert await server_runtime.boxes(owner) == []
        assert await lost(worker, session)


async def test_what_the_server_wrote_down_wins(opened: OpenWorker) -> None:
    lies = {"environment": "open", "idle_timeout_s": 1e12, "created_at": "nonsense"}
    async with opened() as worker:
        tool = KeptTool(name="t", description="d", command="ls")
        agent = SessionAgent(name="a", tools=("t",), declared=(tool,))
        life = SessionOptions(
            environment="strict", idle_timeout_s=77, made_for=agent, policy="strict"
        )
        session, _ = await worker.table.open(SOLE_TENANT, "mine", life)
        told = await told_state(session)
        assert "agent" not in told, "what an operator has declared is none of the box's business"
    await tells(session.box, {**told, **lies, "agent": {"name": "b"}, "policy": "open"})
    async with opened() as worker:
        (found,) = worker.table.sessions()
        assert (found.environment, found.idle_timeout_s) == ("strict", 77)
        assert (found.made_for, found.policy) == (agent, "strict")
        assert found.record.created_at == session.record.created_at


async def test_the_end_of_a_lifetime_is_that_of_the_last_call(opened: OpenWorker) -> None:
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine", SessionOptions(lifetime_s=600))
        short, _ = await worker.table.open(SOLE_TENANT, "short", SessionOptions(lifetime_s=600))
        first = session.end_at
        assert first is not None
        await worker.table.set_end(session, first + 300)
        await worker.table.set_end(short, first - 1000)
    async with opened() as worker:
        await eventually(lambda: worker.table.live(SOLE_TENANT, "short") is None)
        (found,) = worker.table.sessions()
        assert (found.record.session_id, found.end_at) == (
            session.record.session_id,
            first + 300,
        )


async def test_egress_rules_are_those_of_the_last_call(opened: OpenWorker) -> None:
    asked = {"egress_rules": {"deny": ["192.0.2.0/24"]}, "ports": {"public": False}}
    rules = EgressRules(deny=["192.0.2.0/24"])
    options = SessionOptions(egress_rules=rules, asked=asked)
    networks = Networks(NetworkModes(default="open"))
    later = EgressRules(deny=["0.0.0.0/0"])
    async with opened(networks=networks) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine", options)
        other, _ = await worker.table.open(SOLE_TENANT, "other", options)
        await worker.table.open(SOLE_TENANT, "third", options)
        await worker.table.set_egress(session, later)
        await worker.table.set_egress(other, None)
    async with opened(networks=networks) as worker:
        found = {each.record.thread_id: each for each in worker.table.sessions()}
        has = {thread: each.egress_rules for thread, each in found.items()}
        assert has == {"mine": later, "other": None, "third": rules}
        told = {thread: each.network.told()[0] for thread, each in found.items()}
        assert told == {"mine": "none", "other": "open", "third": "open"}
        narrowing = found["third"].network.rules.narrowing
        assert narrowing is not None
        assert narrowing.denied
        previews = worker.table.previews_of(session.record.session_id)
        assert previews is not None
        assert previews.all_ports == AllPorts(public=False)
        await worker.table.cleanup(found["mine"])
        ended = worker.table.previews_of(session.record.session_id)
        assert ended is not None
        assert ended.ended_at is not None
    networks.close()


async def test_a_paused_session_is_still_paused(opened: OpenWorker) -> None:
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
        await session.agent.start("while true; do echo; sleep 0.05; done", timeout_s=None)
        await worker.table.pause(session)
    async with opened() as worker:
        (found,) = worker.table.sessions()
        assert found.paused_at == session.paused_at
        before = (await found.agent.state()).commands[0].output_bytes
        await asyncio.sleep(0.3)
        (command,) = (await found.agent.state()).commands
        assert (command.running, command.output_bytes) == (True, before)
        await worker.table.unpause(found)
        async with asyncio.timeout(PATIENCE_S):
            while (await found.agent.state()).commands[0].output_bytes == before:
                await asyncio.sleep(0.02)


async def test_a_used_box_that_says_it_is_new_is_handed_to_nobody(
    opened: OpenWorker, server_runtime: Runtime, owner: str
) -> None:
    """It holds a file and has run nothing: only the server's own record tells."""

    async def secret() -> AsyncIterator[bytes]:
        yield b"of the first thread"

    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "first")
        await session.agent.put("/workspace/secret", secret(), limit=100)
    await tells(session.box, {})
    async with opened(warm=1) as worker:
        other, _ = await worker.table.open(SOLE_TENANT, "second")
        assert other.box.id != session.box.id
        assert (await other.agent.run("ls -A /workspace")).output == ""
        assert session.box.id not in {box.id for box in await server_runtime.boxes(owner)}
        assert await lost(worker, session)


async def test_a_box_nobody_knows_is_destroyed(
    opened: OpenWorker, server_runtime: Runtime, owner: str
) -> None:
    box = await server_runtime.create(BoxSpec(owner=owner, deadman_s=300))
    identity = {
        "tenant": SOLE_TENANT,
        "thread_id": "never-was",
        "generation": 1,
        "session_id": "never-was",
        "created_at": 1.0,
    }
    await tells(box, identity)
    async with opened() as worker:
        assert worker.table.sessions() == []
        assert await server_runtime.boxes(owner) == []


async def test_a_session_that_was_ended_stays_so(
    opened: OpenWorker, server_runtime: Runtime, owner: str
) -> None:
    """The server was killed after it had written the end down and before the box was gone."""
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
        await worker.table._registry.end(session.record, Status.CLEANED)
    async with opened() as worker:
        assert worker.table.sessions() == []
        assert await server_runtime.boxes(owner) == []
        again, state = await worker.table.open(SOLE_TENANT, "mine")
        assert (again.record.generation, state) == (2, "created")


async def test_a_session_whose_box_is_gone_is_not_live_any_more(opened: OpenWorker) -> None:
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
    await session.box.destroy()
    async with opened() as worker:
        assert await worker.table._registry.live() == []
        assert await lost(worker, session)


async def warm_box(opened: OpenWorker, server_runtime: Runtime, owner: str) -> Box:
    async with opened(warm=1) as worker:
        await eventually(lambda: worker.load().warm == 1)
        kill_instead_of_stopping(worker)
    (box,) = await server_runtime.boxes(owner)
    return box


def kill_instead_of_stopping(worker: Worker) -> None:
    """Its warm boxes stay, as after kill -9."""
    default = next(iter(worker._boxes.sources.values()))
    close = default._pool.close

    async def leave(*, destroy: bool) -> None:
        await close(destroy=False)

    default._pool.close = leave  # type: ignore[method-assign]


async def test_a_warm_box_is_warm_again(
    opened: OpenWorker, server_runtime: Runtime, owner: str
) -> None:
    box = await warm_box(opened, server_runtime, owner)
    async with opened(warm=1) as worker:
        assert worker.load().warm == 1
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
        assert session.box.id == box.id


async def test_a_warm_box_that_ran_something_is_handed_to_nobody(
    opened: OpenWorker, server_runtime: Runtime, owner: str
) -> None:
    box = await warm_box(opened, server_runtime, owner)
    async with box.agent(epoch=1) as warden:
        await warden.run("true")
    async with opened(warm=1) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
        assert session.box.id != box.id


async def test_a_warden_of_another_version_is_handed_to_nobody(
    opened: OpenWorker, server_runtime: Runtime, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await warm_box(opened, server_runtime, owner)
    monkeypatch.setattr(PooledBoxes, "build", "a later one")
    async with opened(warm=1) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
        assert session.box.id != box.id


async def test_a_warm_box_with_other_limits_is_handed_to_nobody(
    opened: OpenWorker, server_runtime: Runtime, owner: str
) -> None:
    """The session would be told of limits that its box does not have."""
    box = await warm_box(opened, server_runtime, owner)
    async with opened(warm=1, limits=Limits(memory_bytes=256 << 20)) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
        assert session.box.id != box.id


async def test_a_session_goes_on_with_the_warden_it_has(
    opened: OpenWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "mine")
    monkeypatch.setattr(PooledBoxes, "build", "a later one")
    async with opened() as worker:
        (found,) = worker.table.sessions()
        assert found.box.id == session.box.id


async def test_a_box_cannot_keep_itself_from_expiring(opened: OpenWorker) -> None:
    """It says that it is in use, and the server knows that nobody uses it."""
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t", SessionOptions(idle_timeout_s=0.3))
        lying = asyncio.create_task(in_use(session.box))
        try:
            await eventually(lambda: len(worker.table) == 0)
        finally:
            lying.cancel()
            await asyncio.wait([lying])


async def in_use(box: Box) -> None:
    async with box.agent(epoch=1) as warden:
        while True:
            await warden.run("true")
            await asyncio.sleep(0.02)


async def test_a_command_that_nobody_waits_for_keeps_its_session(opened: OpenWorker) -> None:
    """The server has not seen its end, so here the box is asked."""
    async with opened() as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t", SessionOptions(idle_timeout_s=0.1))
        using = session.use(for_s=60)
        with contextlib.suppress(RuntimeError), using:
            await session.agent.start("sleep 1")
            raise RuntimeError("the caller has left")
        before = session.last_used
        await eventually(lambda: session.last_used > before + 0.5 or session.ended)
        assert session.ended is None
        await eventually(lambda: len(worker.table) == 0)


class Killed(BaseException):
    """As if the server were: nothing more is done."""


@pytest.mark.parametrize("first", ["old", "new"])
async def test_a_session_that_another_has_replaced_is_not_the_one_found(
    opened: OpenWorker,
    server_runtime: Runtime,
    owner: str,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is killed as a thread goes back leaves both boxes; whichever answers first."""

    async def killed(*_: object, **__: object) -> None:
        raise Killed

    async with opened() as worker:
        old, _ = await worker.table.open(SOLE_TENANT, "mine")
        monkeypatch.setattr(worker.table, "_end", killed)
        with pytest.raises(Killed):
            await worker.table.restore(SOLE_TENANT, "mine", SessionOptions())
        (new,) = worker.table.sessions()
        await new.agent.run("echo kept > file")
    boxes = await server_runtime.boxes(owner)
    boxes.sort(key=lambda box: (box.id == new.box.id) == (first == "old"))

    async def in_this_order(_: str) -> list[Box]:
        return boxes

    assert {box.id for box in boxes} == {old.box.id, new.box.id}
    with monkeypatch.context() as patch:
        patch.setattr(server_runtime, "boxes", in_this_order)
        patch.setattr(adoption, "AT_ONCE", 1)
        async with opened() as worker:
            (found,) = worker.table.sessions()
            assert found.record.session_id == new.record.session_id
            assert (await found.agent.run("cat file")).stdout == "kept\n"
            assert found.ended is None
    assert [box.id for box in await server_runtime.boxes(owner)] == [new.box.id]
