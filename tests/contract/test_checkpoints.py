"""Checkpoints, restoring and forking, through every way to reach a sandbox."""

import asyncio
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    ForkRequest,
    RestoreRequest,
    Target,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.transfer import ByteChunks
from sandbox_server.checkpoints.manifest import Manifest
from sandbox_server.sessions.live import LiveSession

from .stand import CHECKPOINTS, Place, Stand

pytestmark = [pytest.mark.usefixtures("sandboxes"), pytest.mark.checkpoints]


async def run(sandboxes: Sandboxes, thread: str, command: str, **options: Any) -> ExecuteResult:
    return await sandboxes.execute(ExecuteRequest(thread_id=thread, command=command, **options))


async def put(sandboxes: Sandboxes, thread: str, path: str, text: str) -> None:
    await sandboxes.upload_file(Target(thread_id=thread), path, ByteChunks(text.encode()))


async def read(sandboxes: Sandboxes, thread: str, path: str) -> str:
    async with sandboxes.download_file(Target(thread_id=thread), path) as download:
        return b"".join([chunk async for chunk in download.chunks]).decode()


@pytest.mark.seam
async def test_a_thread_goes_back(sandboxes: Sandboxes) -> None:
    await put(sandboxes, "back", "a.txt", "one")
    before = await sandboxes.session(Target(thread_id="back"))
    first = await sandboxes.checkpoint(
        CheckpointRequest(thread_id="back", name="first", metadata={"step": "1"})
    )
    assert (first.thread_id, first.name, first.metadata) == ("back", "first", {"step": "1"})
    assert (first.session_id, first.generation) == (before.session_id, before.generation)
    assert (first.automatic, first.parent, first.running) == (False, None, [])
    assert first.files >= 1
    assert first.size >= 3
    await put(sandboxes, "back", "a.txt", "two")
    await put(sandboxes, "back", "b.txt", "new")
    second = await sandboxes.checkpoint(CheckpointRequest(session_id=before.session_id))
    assert (second.name, second.parent) == (None, first.checkpoint_id)

    restored = await sandboxes.restore(
        RestoreRequest(thread_id="back", checkpoint_id=first.checkpoint_id)
    )
    assert (restored.thread_id, restored.generation) == ("back", before.generation + 1)
    assert (restored.status, restored.session_id != before.session_id) == ("created", True)
    assert await read(sandboxes, "back", "a.txt") == "one"
    with pytest.raises(errors.FileMissing):
        await read(sandboxes, "back", "b.txt")
    with pytest.raises((errors.SessionNotFound, errors.SessionLost)):
        await sandboxes.session(Target(session_id=before.session_id))
    third = await sandboxes.checkpoint(CheckpointRequest(thread_id="back"))
    assert third.parent == first.checkpoint_id

    listed = await sandboxes.checkpoints(thread_id="back")
    ids = [each.checkpoint_id for each in listed.checkpoints]
    assert ids == [third.checkpoint_id, second.checkpoint_id, first.checkpoint_id]
    assert await sandboxes.get_checkpoint(first.checkpoint_id) == first
    assert (await sandboxes.checkpoints(thread_id="other")).checkpoints == []
    cut = await sandboxes.checkpoints(limit=1)
    assert (len(cut.checkpoints), cut.truncated) == (1, True)
    await sandboxes.delete_checkpoint(second.checkpoint_id)
    with pytest.raises(errors.CheckpointNotFound):
        await sandboxes.get_checkpoint(second.checkpoint_id)


async def test_a_checkpoint_outlives_its_session(sandboxes: Sandboxes) -> None:
    await put(sandboxes, "gone", "a.txt", "kept")
    made = await sandboxes.checkpoint(CheckpointRequest(thread_id="gone", name="kept"))
    await sandboxes.cleanup(Target(thread_id="gone"))
    found = (await sandboxes.checkpoints(thread_id="gone")).checkpoints
    assert [each.checkpoint_id for each in found] == [made.checkpoint_id]
    session = await sandboxes.create_session(
        CreateSessionRequest(thread_id="other", checkpoint_id=made.checkpoint_id)
    )
    assert (session.status, session.generation, session.not_applied) == ("created", 1, [])
    assert await read(sandboxes, "other", "a.txt") == "kept"
    again = await sandboxes.restore(
        RestoreRequest(thread_id="gone", checkpoint_id=made.checkpoint_id)
    )
    assert again.generation == 2
    assert await read(sandboxes, "gone", "a.txt") == "kept"


@pytest.mark.seam
async def test_threads_from_a_thread(sandboxes: Sandboxes) -> None:
    await put(sandboxes, "trunk", "a.txt", "trunk")
    forked = await sandboxes.fork(ForkRequest(thread_id="trunk", into=["twig-1", "twig-2"]))
    assert [session.thread_id for session in forked.sessions] == ["twig-1", "twig-2"]
    await put(sandboxes, "twig-1", "a.txt", "twig")
    seen = [await read(sandboxes, name, "a.txt") for name in ("trunk", "twig-1", "twig-2")]
    assert seen == ["trunk", "twig", "trunk"]
    await sandboxes.cleanup(Target(thread_id="twig-2"))
    same = ForkRequest(checkpoint_id=forked.checkpoint_id, into=["twig-1"])
    assert (await sandboxes.fork(same)).sessions[0].session_id == forked.sessions[0].session_id
    with pytest.raises(errors.Conflict, match="'trunk' has a session already"):
        await sandboxes.fork(ForkRequest(checkpoint_id=forked.checkpoint_id, into=["trunk"]))


@pytest.mark.seam
async def test_the_same_call_twice(sandboxes: Sandboxes) -> None:
    await put(sandboxes, "twice", "a.txt", "one")
    wanted = CheckpointRequest(thread_id="twice", name="n", idempotency_key="key-1")
    made = await sandboxes.checkpoint(wanted)
    await put(sandboxes, "twice", "a.txt", "two")
    assert await sandboxes.checkpoint(wanted) == made
    assert len((await sandboxes.checkpoints(thread_id="twice")).checkpoints) == 1
    with pytest.raises(errors.IdempotencyMismatch):
        await sandboxes.checkpoint(wanted.model_copy(update={"name": "other"}))
    back = RestoreRequest(
        thread_id="twice", checkpoint_id=made.checkpoint_id, idempotency_key="key-2"
    )
    first = await sandboxes.restore(back)
    await put(sandboxes, "twice", "a.txt", "three")
    assert (await sandboxes.restore(back)).session_id == first.session_id
    assert await read(sandboxes, "twice", "a.txt") == "three"
    fork = ForkRequest(thread_id="twice", into=["two-a"], idempotency_key="key-3")
    forked = await sandboxes.fork(fork)
    again = await sandboxes.fork(fork)
    assert again.checkpoint_id == forked.checkpoint_id
    assert [s.session_id for s in again.sessions] == [s.session_id for s in forked.sessions]


@pytest.mark.seam
async def test_what_is_not_there(sandboxes: Sandboxes) -> None:
    await put(sandboxes, "here", "a.txt", "here")
    session = await sandboxes.session(Target(thread_id="here"))
    for unknown in ("cp-0199f3c2a1b4-5d1c0a9e7f", "cp-never-was", "CP", "a..b"):
        with pytest.raises(errors.CheckpointNotFound):
            await sandboxes.restore(RestoreRequest(thread_id="here", checkpoint_id=unknown))
        with pytest.raises(errors.CheckpointNotFound):
            await sandboxes.create_session(
                CreateSessionRequest(thread_id="new", checkpoint_id=unknown)
            )
        with pytest.raises(errors.CheckpointNotFound):
            await sandboxes.fork(ForkRequest(checkpoint_id=unknown, into=["new"]))
        with pytest.raises(errors.CheckpointNotFound):
            await sandboxes.delete_checkpoint(unknown)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.checkpoint(CheckpointRequest(thread_id="never"))
    assert (await sandboxes.session(Target(thread_id="here"))).session_id == session.session_id
    assert await read(sandboxes, "here", "a.txt") == "here"
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(Target(thread_id="new"))


@pytest.mark.bash
async def test_the_shell_goes_back_too(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "shell", "mkdir -p d; cd d; x=1; f() { echo f$x; }; echo t > /tmp/t")
    made = await sandboxes.checkpoint(CheckpointRequest(thread_id="shell"))
    assert made.cwd == "/workspace/d"
    bare = await sandboxes.checkpoint(CheckpointRequest(thread_id="shell", tmp=False))
    await run(sandboxes, "shell", "cd /tmp; x=2; unset -f f; rm -rf /workspace/d")
    await sandboxes.restore(RestoreRequest(thread_id="shell", checkpoint_id=made.checkpoint_id))
    seen = await run(sandboxes, "shell", "pwd; f; cat /tmp/t")
    assert (seen.output, seen.session_state) == ("/workspace/d\nf1\nt\n", "live")
    await sandboxes.restore(RestoreRequest(thread_id="shell", checkpoint_id=bare.checkpoint_id))
    assert (await run(sandboxes, "shell", "f; find /tmp -mindepth 1")).output == "f1\n"


@pytest.mark.bash
async def test_what_runs_is_named_and_goes_on(sandboxes: Sandboxes) -> None:
    started = await run(sandboxes, "runs", "sleep 1000", background=True)
    await run(sandboxes, "runs", "until grep -qa 'sleep.100[0]' /proc/*/cmdline; do :; done")
    made = await sandboxes.checkpoint(CheckpointRequest(thread_id="runs"))
    assert any("sleep 1000" in each for each in made.running)
    assert made.paused_ms > 0
    commands = (await sandboxes.commands(Target(thread_id="runs"))).commands
    assert [c.running for c in commands if c.command_id == started.command_id] == [True]
    await sandboxes.signal(Target(thread_id="runs"), started.command_id, signal="KILL")


@pytest.mark.bash
async def test_limits_and_environment_come_over(sandboxes: Sandboxes) -> None:
    wanted = CreateSessionRequest.model_validate(
        {"thread_id": "big", "limits": {"disk": "2g"}, "idle_timeout_s": 77.0}
    )
    await sandboxes.create_session(wanted)
    made = await sandboxes.checkpoint(CheckpointRequest(thread_id="big"))
    session = await sandboxes.create_session(
        CreateSessionRequest(thread_id="as-big", checkpoint_id=made.checkpoint_id)
    )
    assert session.limits.disk_bytes == 2 << 30
    narrow = CreateSessionRequest.model_validate(
        {"thread_id": "narrow", "checkpoint_id": made.checkpoint_id, "limits": {"disk": "1g"}}
    )
    assert (await sandboxes.create_session(narrow)).limits.disk_bytes == 1 << 30


async def test_bad_requests(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    bad: list[dict[str, Any]] = [
        {"into": ["a"]},
        {"thread_id": "t", "checkpoint_id": "c", "into": ["a"]},
        {"thread_id": "t", "into": []},
        {"thread_id": "t", "into": ["a", "a"]},
        {"thread_id": "t", "into": ["t"]},
        {"thread_id": "t", "into": [f"a{n}" for n in range(101)]},
        {"thread_id": "t", "into": ["not valid!"]},
    ]
    for fields in bad:
        with subtests.test(str(fields)[:60]), pytest.raises((ValueError, errors.InvalidRequest)):
            ForkRequest(**fields)
    for every in ("0", "0.1s", "soon", "0 commands", -1):
        with subtests.test(str(every)), pytest.raises(ValueError, match="checkpoint_every"):
            CreateSessionRequest(thread_id="t", checkpoint_every=every)
    for malformed in ("../../etc/passwd", "a/b", "", "x" * 65):
        with pytest.raises(ValueError, match="checkpoint_id"):
            RestoreRequest(thread_id="t", checkpoint_id=malformed)
    with pytest.raises(ValueError, match="at most 8192"):
        CheckpointRequest(thread_id="t", metadata={"a": "x" * 9000})
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.fork(ForkRequest(thread_id="never", into=["a"]))


# Threads that go on after their boxes.


async def idle(sandboxes: Sandboxes, thread: str) -> None:
    """Wait until the session has ended by itself."""
    async with asyncio.timeout(20):
        while True:
            try:
                await sandboxes.session(Target(thread_id=thread))
            except errors.SessionNotFound:
                return
            await asyncio.sleep(0.1)


async def test_a_thread_that_persists_goes_on(sandboxes: Sandboxes) -> None:
    made = await sandboxes.create_session(
        CreateSessionRequest(thread_id="on", persist=True, idle_timeout_s=0.3)
    )
    await put(sandboxes, "on", "a.txt", "kept")
    await idle(sandboxes, "on")
    result = await run(sandboxes, "on", "true")
    assert (result.session_state, result.generation) == ("resumed", made.generation + 1)
    assert result.resumed is not None
    assert (result.resumed.complete, result.resumed.age_s >= 0) == (True, True)
    assert await read(sandboxes, "on", "a.txt") == "kept"
    result = await run(sandboxes, "on", "true")
    assert (result.session_state, result.resumed) == ("live", None)
    await idle(sandboxes, "on")  # It persists still.
    assert (await run(sandboxes, "on", "true")).session_state == "resumed"
    await sandboxes.cleanup(Target(thread_id="on"))
    assert (await sandboxes.checkpoints(thread_id="on")).checkpoints == []
    result = await run(sandboxes, "on", "true")
    assert (result.session_state, result.resumed) == ("created", None)
    with pytest.raises(errors.FileMissing):
        await read(sandboxes, "on", "a.txt")


async def test_a_thread_that_began_with_a_checkpoint_goes_on_unused(sandboxes: Sandboxes) -> None:
    """What another thread has, or somebody may delete, is not what it goes on from."""
    await put(sandboxes, "first", "a.txt", "kept")
    made = await sandboxes.checkpoint(CheckpointRequest(thread_id="first", name="n"))
    await sandboxes.cleanup(Target(thread_id="first"))
    await sandboxes.create_session(
        CreateSessionRequest(
            thread_id="unused", checkpoint_id=made.checkpoint_id, persist=True, idle_timeout_s=0.3
        )
    )
    await idle(sandboxes, "unused")
    await sandboxes.delete_checkpoint(made.checkpoint_id)
    assert (await run(sandboxes, "unused", "true")).session_state == "resumed"
    assert await read(sandboxes, "unused", "a.txt") == "kept"
    named = await sandboxes.checkpoint(CheckpointRequest(thread_id="unused", name="n"))
    await idle(sandboxes, "unused")
    await sandboxes.delete_checkpoint(named.checkpoint_id)
    assert (await run(sandboxes, "unused", "true")).session_state == "resumed"
    assert await read(sandboxes, "unused", "a.txt") == "kept"


@pytest.mark.seam
@pytest.mark.bash
@pytest.mark.inside
async def test_a_lost_box_goes_on_from_the_last_checkpoint(
    sandboxes: Sandboxes, stand: Place
) -> None:
    await sandboxes.create_session(
        CreateSessionRequest(thread_id="lost", persist=True, checkpoint_every="2 commands")
    )
    await run(sandboxes, "lost", "x=1; echo 1 > a")
    await run(sandboxes, "lost", "x=2; echo 2 > a")
    async with asyncio.timeout(20):
        while not (found := (await sandboxes.checkpoints(thread_id="lost")).checkpoints):
            await asyncio.sleep(0.05)
    assert found[0].automatic
    await run(sandboxes, "lost", "x=3; echo 3 > a")
    await stand.lose_box("lost")
    try:
        result = await run(sandboxes, "lost", "echo $x; cat a")
    except errors.SessionLost:  # It had begun before the loss was known.
        result = await run(sandboxes, "lost", "echo $x; cat a")
    assert (result.output, result.session_state) == ("2\n2\n", "resumed")
    assert result.resumed is not None
    assert (result.resumed.complete, result.resumed.checkpoint_id) == (
        False,
        found[0].checkpoint_id,
    )


@pytest.mark.bash
@pytest.mark.inside
async def test_a_lost_box_goes_on_from_where_its_thread_went_back_to(
    sandboxes: Sandboxes, stand: Place
) -> None:
    await sandboxes.create_session(CreateSessionRequest(thread_id="back", persist=True))
    await run(sandboxes, "back", "echo 1 > a")
    first = await sandboxes.checkpoint(CheckpointRequest(thread_id="back"))
    await run(sandboxes, "back", "echo 2 > a")
    await sandboxes.checkpoint(CheckpointRequest(thread_id="back"))
    await sandboxes.restore(RestoreRequest(thread_id="back", checkpoint_id=first.checkpoint_id))
    await stand.lose_box("back")
    try:
        result = await run(sandboxes, "back", "cat a")
    except errors.SessionLost:  # It had begun before the loss was known.
        result = await run(sandboxes, "back", "cat a")
    assert (result.output, result.session_state) == ("1\n", "resumed")


@pytest.mark.bash
@pytest.mark.inside
@pytest.mark.one_way
async def test_a_command_while_its_idle_thread_is_kept(
    sandboxes: Sandboxes, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did is not lost."""
    keeper = stand.worker.table.keeper
    take = keeper.take
    taken = asyncio.Event()

    async def with_a_command(session: LiveSession, **options: Any) -> Manifest:
        manifest = await take(session, **options)
        if not taken.is_set():
            taken.set()
            await sandboxes.execute(
                ExecuteRequest(session_id=session.record.session_id, command="echo 2 > n")
            )
        return manifest

    monkeypatch.setattr(keeper, "take", with_a_command)
    await sandboxes.create_session(
        CreateSessionRequest(thread_id="late", persist=True, idle_timeout_s=0.3)
    )
    await run(sandboxes, "late", "echo 1 > n")
    await taken.wait()
    for _ in range(2):
        assert (await run(sandboxes, "late", "cat n")).output == "2\n"
        await idle(sandboxes, "late")


@pytest.mark.bash
@pytest.mark.inside
@pytest.mark.one_way
async def test_what_a_running_command_does_after_a_checkpoint_is_kept(sandboxes: Sandboxes) -> None:
    await sandboxes.create_session(
        CreateSessionRequest(
            thread_id="long", persist=True, idle_timeout_s=1.0, checkpoint_every="1s"
        )
    )
    await run(sandboxes, "long", "echo 1 > n; sleep 1.8; echo 2 > n")
    assert (await sandboxes.checkpoints(thread_id="long")).checkpoints
    await idle(sandboxes, "long")
    result = await run(sandboxes, "long", "cat n")
    assert (result.output, result.session_state) == ("2\n", "resumed")


@pytest.mark.bash
@pytest.mark.inside
@pytest.mark.one_way
async def test_a_store_that_is_full(sandboxes: Sandboxes, stand: Stand) -> None:
    await sandboxes.create_session(
        CreateSessionRequest(thread_id="full", persist=True, idle_timeout_s=1.0)
    )
    half = CHECKPOINTS.quota // 2 >> 20
    await run(sandboxes, "full", f"head -c {half}M /dev/urandom > a")
    await sandboxes.checkpoint(CheckpointRequest(thread_id="full", name="named"))
    await run(sandboxes, "full", f"head -c {half + 1}M /dev/urandom > a; echo 1 > kept")
    with pytest.raises(errors.DiskFull, match="SANDBOX_CHECKPOINT_QUOTA"):
        await sandboxes.checkpoint(CheckpointRequest(thread_id="full"))
    (live,) = stand.worker.table.sessions()
    async with asyncio.timeout(20):
        while live.problem is None:
            await asyncio.sleep(0.05)
    assert live.ended is None
    assert (await run(sandboxes, "full", "cat kept")).output == "1\n"
    names = [each.name for each in (await sandboxes.checkpoints()).checkpoints]
    assert names == ["named"]


MIDDLE = """
seq 999999 | head -c 950000 > /tmp/b
for n in {1..12}; do { echo $n; head -c 900000 /tmp/b; } > f$n; done
for n in {1..10}; do { echo $n; cat /tmp/b; } > ~/h$n; done
for n in {1..25}; do { echo $n; head -c 10000 /tmp/b; } > /tmp/a$n; done
"""


@pytest.mark.bash
async def test_files_of_nearly_a_mebibyte(sandboxes: Sandboxes) -> None:
    """Several in a row are more than a frame holds, and more than is granted at once."""
    assert (await run(sandboxes, "middle", MIDDLE)).exit_code == 0
    sums = "cat f* ~/h* /tmp/[ab]* | sha256sum"
    before = (await run(sandboxes, "middle", sums)).output
    made = await sandboxes.checkpoint(CheckpointRequest(thread_id="middle"))
    assert made.files >= 36
    await run(sandboxes, "middle", "rm -r f* ~/h* /tmp/[ab]*")
    await sandboxes.restore(RestoreRequest(thread_id="middle", checkpoint_id=made.checkpoint_id))
    assert (await run(sandboxes, "middle", sums)).output == before
    forked = await sandboxes.fork(ForkRequest(thread_id="middle", into=["middle-2"]))
    assert len(forked.sessions) == 1
    assert (await run(sandboxes, "middle-2", sums)).output == before
