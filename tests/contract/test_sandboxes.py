"""The behaviours of the wire contract, through every way to reach a Sandboxes."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.events import (
    CommandEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    StartEvent,
)
from sandbox_sdk.protocol.models import (
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    FileEntry,
    RenameRequest,
    SessionLimits,
    Target,
    checked,
)
from sandbox_sdk.protocol.operations import RENAME
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .stand import LIMITS, MOST, Place

MIB = 1 << 20


async def run(sandboxes: Sandboxes, thread: str, command: str, **options: Any) -> ExecuteResult:
    request = ExecuteRequest(thread_id=thread, command=command, **options)
    return await sandboxes.execute(request)


def thread(name: str) -> Target:
    return Target(thread_id=name)


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]


# Sessions


@pytest.mark.seam
async def test_creating_twice_gives_the_same_session(sandboxes: Sandboxes) -> None:
    first = await sandboxes.create_session(CreateSessionRequest(thread_id="t"))
    again = await sandboxes.create_session(CreateSessionRequest(thread_id="t"))
    assert (first.status, again.status) == ("created", "existing")
    assert first.session_id == again.session_id
    assert (first.thread_id, first.generation, first.user) == ("t", 1, "sandboxuser")
    assert first.expires_at > first.created_at


@pytest.mark.seam
async def test_options_that_a_live_session_does_not_have_are_named(sandboxes: Sandboxes) -> None:
    made = CreateSessionRequest(thread_id="opt", env={"A": "1"}, idle_timeout_s=100)
    assert (await sandboxes.create_session(made)).not_applied == []
    for other, named in (
        ({}, []),
        ({"env": {"A": "1"}, "idle_timeout_s": 100.0}, []),
        ({"env": {"A": "2"}}, ["env"]),
        ({"environment": "node", "idle_timeout_s": 7.0}, ["environment", "idle_timeout_s"]),
    ):
        again = await sandboxes.create_session(CreateSessionRequest(thread_id="opt", **other))
        assert (again.status, again.environment, again.not_applied) == ("existing", None, named)
    ended = await sandboxes.cleanup(thread("opt"))
    assert (ended.environment, ended.idle_timeout_s) == (None, 100)


@pytest.mark.seam
async def test_a_session_has_the_limits_it_asks_for(sandboxes: Sandboxes) -> None:
    asked = checked(
        SessionLimits, memory="256m", cpus=1.5, pids=64, disk="32m", command_timeout_s=0.5
    )
    made = await sandboxes.create_session(CreateSessionRequest(thread_id="lim", limits=asked))
    told = {**made.limits.values(), "not_applied": made.not_applied}
    assert told == {**asked.given(), "not_applied": []}
    assert (await sandboxes.session(thread("lim"))).limits == made.limits
    assert (await run(sandboxes, "lim", "sleep 30")).timed_out, "after half a second"
    for other, named in (
        ({"memory": "256m", "pids": 64}, []),
        ({"memory": "512m", "pids": 64, "cpus": 1.0}, ["limits.memory", "limits.cpus"]),
    ):
        request = CreateSessionRequest(thread_id="lim", limits=checked(SessionLimits, **other))
        again = await sandboxes.create_session(request)
        assert (again.status, again.not_applied) == ("existing", named)
        assert again.limits == made.limits
    assert (await sandboxes.cleanup(thread("lim"))).limits == asked.given()
    usual = await sandboxes.create_session(CreateSessionRequest(thread_id="lim"))
    assert usual.limits.values() == LIMITS.values()


async def test_more_than_the_maximum_is_refused_and_the_maximum_named(
    sandboxes: Sandboxes,
) -> None:
    for asked, setting, most in (
        ({"memory": "1025m"}, "SANDBOX_MAX_MEMORY", "1 GiB"),
        ({"cpus": 2.5}, "SANDBOX_MAX_CPUS", "2"),
        ({"pids": 513}, "SANDBOX_MAX_PIDS", "512"),
        ({"disk": 1 << 60, "memory": "1g"}, "SANDBOX_MAX_DISK", "2 GiB"),
    ):
        request = CreateSessionRequest(limits=checked(SessionLimits, **asked))
        with pytest.raises(errors.InvalidRequest, match=rf"may have, {most}: .*{setting}") as told:
            await sandboxes.create_session(request)
        ((name, maximum),) = told.value.details["maximum"].items()
        assert (name in asked, maximum == getattr(checked(SessionLimits, **MOST), name)) == (
            True,
            True,
        )
    assert (await sandboxes.sessions()).sessions == []


async def test_providers(sandboxes: Sandboxes) -> None:
    (name,) = (await sandboxes.health()).providers
    made = await sandboxes.create_session(CreateSessionRequest(thread_id="p", provider=name))
    assert made.runtime == name
    for other, says in (
        ("e2b", r"not set up: `pip install agent-sandbox\[e2b\]`, set SANDBOX_E2B_API_KEY"),
        ("kubernetes", "not set up.*SANDBOX_PROVIDERS"),
        (f"{name[:-1]}x", f"there is {name}; did you mean {name}"),
        ("nobody", f"unknown provider 'nobody': there is {name}$"),
    ):
        if other == name or (name == "e2b" and other == "e2x"):  # Nothing is near to so short one.
            continue
        with pytest.raises(errors.InvalidRequest, match=says) as told:
            await sandboxes.create_session(CreateSessionRequest(provider=other))
        assert told.value.details == {"provider": other, "providers": [name]}
    request = CreateSessionRequest(thread_id="p", provider="docker" if name == "e2b" else "e2b")
    assert (await sandboxes.create_session(request)).not_applied == ["provider"]


@pytest.mark.bash
async def test_limits_of_a_session_hold_in_its_box(sandboxes: Sandboxes) -> None:
    asked = checked(SessionLimits, memory="128m", pids=24, disk="16m")
    await sandboxes.create_session(CreateSessionRequest(thread_id="small", limits=asked))
    hog = await run(sandboxes, "small", "python3 -c 'x = b\"x\" * (200 << 20)'")
    assert (hog.exit_code, hog.reason) == (137, "oom")
    full = await run(sandboxes, "small", "head -c 20m /dev/zero > file")
    assert full.exit_code == 1
    assert "/workspace has 16 MiB" in (full.hint or "")
    with pytest.raises(errors.DiskFull, match=r"limits\.disk of the session, 16 MiB"):
        await sandboxes.upload_file(thread("small"), "more", chunks(b"x" * (7 << 20)))
    forks = "import subprocess; [subprocess.Popen(['sleep', '1']) for _ in range(40)]"
    many = await run(sandboxes, "small", f'python3 -c "{forks}"')
    assert "limit of 24 processes" in (many.hint or "")


async def test_without_a_thread_the_session_is_its_own(sandboxes: Sandboxes) -> None:
    session = await sandboxes.create_session(CreateSessionRequest())
    assert session.thread_id == session.session_id
    by_session = ExecuteRequest(session_id=session.session_id, command="echo here")
    assert (await sandboxes.execute(by_session)).output == "here\n"
    assert (await run(sandboxes, session.thread_id, "echo there")).output == "there\n"


@pytest.mark.seam
async def test_fifty_concurrent_creates_make_one_box(sandboxes: Sandboxes) -> None:
    made = await asyncio.gather(
        *(sandboxes.create_session(CreateSessionRequest(thread_id="one")) for _ in range(50))
    )
    assert len({session.session_id for session in made}) == 1
    assert [session.status for session in made].count("created") == 1


@pytest.mark.seam
async def test_a_session_is_made_on_first_use(sandboxes: Sandboxes) -> None:
    result = await run(sandboxes, "fresh", "pwd")
    assert (result.output, result.session_state, result.generation) == (
        "/workspace\n",
        "created",
        1,
    )
    assert (await run(sandboxes, "fresh", "pwd")).session_state == "live"
    assert (await sandboxes.list_files(thread("listed"))).entries == []
    uploaded = await sandboxes.upload_file(thread("uploaded"), "f", chunks(b"x"))
    assert uploaded.path == "/workspace/f"


@pytest.mark.seam
async def test_an_unknown_session_id_is_not_found(sandboxes: Sandboxes) -> None:
    unknown = Target(session_id="00000000-0000-0000-0000-000000000000")
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.execute(ExecuteRequest(session_id=unknown.session_id, command="echo"))
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.upload_file(unknown, "f", chunks(b"x"))
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.list_files(unknown)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(unknown)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.cleanup(unknown)


async def test_looking_neither_makes_nor_uses_a_session(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(thread("nobody"))
    await run(sandboxes, "seen", "sleep 0.3")
    await asyncio.sleep(0.3)
    first = await sandboxes.session(thread("seen"))
    second = await sandboxes.session(thread("seen"))
    assert 0.2 < first.idle_s <= second.idle_s
    assert (first.commands, first.state, first.running) == (1, "idle", [])
    assert first.usage.pids >= 1


@pytest.mark.seam
async def test_a_running_command_shows(sandboxes: Sandboxes) -> None:
    started = await run(sandboxes, "busy", "sleep 30", background=True)
    assert started.exit_code is None
    info = await sandboxes.session(thread("busy"))
    assert info.state == "busy"
    assert [command.command_id for command in info.running] == [started.command_id]
    assert info.idle_s == 0


@pytest.mark.seam
async def test_cleanup_ends_a_session_and_the_thread_may_begin_anew(sandboxes: Sandboxes) -> None:
    first = await run(sandboxes, "again", "echo x > file")
    await sandboxes.cleanup(thread("again"))
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.cleanup(thread("again"))
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.execute(ExecuteRequest(session_id=first.session_id, command="echo"))
    anew = await run(sandboxes, "again", "cat file")
    assert (anew.exit_code, anew.generation, anew.session_state) == (1, 2, "created")


@pytest.mark.seam
async def test_a_lost_box_is_told_and_replaced_for_its_thread(
    sandboxes: Sandboxes, stand: Place
) -> None:
    first = await run(sandboxes, "lost", "echo x > file")
    await stand.lose_box("lost")
    with pytest.raises(errors.SessionLost):
        await sandboxes.execute(ExecuteRequest(session_id=first.session_id, command="echo"))
    anew = await run(sandboxes, "lost", "cat file")
    assert (anew.exit_code, anew.generation, anew.session_state) == (1, 2, "recreated")
    assert (await run(sandboxes, "lost", "echo on")).session_state == "live"


@pytest.mark.seam
async def test_a_box_lost_in_the_middle_is_told(sandboxes: Sandboxes, stand: Place) -> None:
    await run(sandboxes, "mid", "true")
    running = asyncio.create_task(run(sandboxes, "mid", "sleep 60", timeout=90))
    while not (await sandboxes.session(thread("mid"))).running:
        await asyncio.sleep(0.02)
    await stand.lose_box("mid")
    with pytest.raises(errors.SessionLost):
        await running
    assert (await run(sandboxes, "mid", "echo on")).session_state == "recreated"


@pytest.mark.seam
async def test_idle_sessions_expire_and_are_told(sandboxes: Sandboxes) -> None:
    request = CreateSessionRequest(thread_id="idle", idle_timeout_s=1)
    first = await sandboxes.create_session(request)
    for _ in range(400):
        try:
            await sandboxes.session(thread("idle"))
        except errors.SessionNotFound:
            break
        await asyncio.sleep(0.1)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.execute(ExecuteRequest(session_id=first.session_id, command="echo"))
    anew = await run(sandboxes, "idle", "echo back")
    assert (anew.generation, anew.session_state) == (2, "recreated")


@pytest.mark.one_way
async def test_a_running_command_keeps_its_session(sandboxes: Sandboxes) -> None:
    await sandboxes.create_session(CreateSessionRequest(thread_id="long", idle_timeout_s=4))
    result = await run(sandboxes, "long", "sleep 7; echo done")
    assert (result.output, result.session_state) == ("done\n", "live")


@pytest.mark.seam
async def test_a_command_cut_off_by_cleanup_is_not_told_as_a_loss(sandboxes: Sandboxes) -> None:
    running = asyncio.create_task(run(sandboxes, "cut", "sleep 60"))
    while True:
        with contextlib.suppress(errors.SessionNotFound):
            if (await sandboxes.session(thread("cut"))).running:
                break
        await asyncio.sleep(0.05)
    await sandboxes.cleanup(thread("cut"))
    with pytest.raises(errors.SessionNotFound):
        await running


async def test_variables_given_at_creation(sandboxes: Sandboxes) -> None:
    env = {"TOKEN": "it's $x"}
    await sandboxes.create_session(CreateSessionRequest(thread_id="env", env=env))
    assert (await run(sandboxes, "env", 'echo "$TOKEN"')).output == "it's $x\n"


# Commands


@pytest.mark.seam
@pytest.mark.bash
async def test_state_output_and_exit(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "s", "cd /tmp; x=1; f() { echo f$x; }")
    result = await run(sandboxes, "s", "pwd; f; echo e >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "/tmp\nf1\n", "e\n")
    assert (result.cwd, result.timed_out, result.truncated) == ("/tmp", False, False)
    assert result["output"] == result.output


@pytest.mark.seam
@pytest.mark.bash
async def test_timeout_and_truncation(sandboxes: Sandboxes) -> None:
    result = await run(sandboxes, "t", "echo part; sleep 60", timeout=4)
    assert (result.exit_code, result.timed_out, result.output) == (124, True, "part\n")
    big = await run(sandboxes, "t", f"head -c {3 * MIB} /dev/zero | tr '\\0' x")
    assert (big.truncated, big.output_bytes) == (True, 3 * MIB)


@pytest.mark.seam
async def test_call_options(sandboxes: Sandboxes) -> None:
    result = await run(
        sandboxes, "o", "cat; pwd; echo $A", stdin="in\n", cwd="/tmp", env={"A": "1"}
    )
    assert result.output == "in\n/tmp\n1\n"


@pytest.mark.seam
async def test_exactly_once(sandboxes: Sandboxes) -> None:
    command = "sleep 0.2; echo x >> n; wc -l < n"
    results = await asyncio.gather(
        *(run(sandboxes, "once", command, idempotency_key="k") for _ in range(5))
    )
    assert {result.output for result in results} == {"1\n"}
    assert sorted(result.replayed for result in results) == [False, True, True, True, True]
    assert not (await sandboxes.result(thread("once"), results[0].command_id)).replayed
    with pytest.raises(errors.IdempotencyMismatch):
        await run(sandboxes, "once", "other", idempotency_key="k")


@pytest.mark.seam
async def test_a_stream_that_is_asked_for_again_says_so(sandboxes: Sandboxes) -> None:
    request = ExecuteRequest(thread_id="s", command="echo one; echo two", idempotency_key="k")
    told = []
    for _ in range(2):
        start, *_, end = await collect(sandboxes.stream(request))
        assert isinstance(start, StartEvent)
        assert isinstance(end, ExitEvent)
        told.append((start.replayed, end.replayed))
    assert told == [(False, False), (True, True)]


@pytest.mark.bash
async def test_a_wall_is_explained_whatever_way_it_is_asked(sandboxes: Sandboxes) -> None:
    command = "echo out; echo 'bash: line 1: sudo: command not found' >&2; exit 127"
    result = await run(sandboxes, "w", command)
    assert result.hint is not None
    assert result.hint.startswith("nobody is root")
    told = [(await sandboxes.result(thread("w"), result.command_id)).hint]
    for events in (
        sandboxes.stream(ExecuteRequest(thread_id="w", command=command)),
        sandboxes.follow(thread("w"), result.command_id),
        sandboxes.follow(thread("w"), result.command_id, offset=result.output_bytes),
    ):
        told += [event.hint for event in await collect(events) if isinstance(event, ExitEvent)]
    assert told == [result.hint] * 4
    assert (await run(sandboxes, "w", f"({command}) || true")).hint is None


@pytest.mark.seam
async def test_overlap(sandboxes: Sandboxes) -> None:
    results = await asyncio.gather(
        *(run(sandboxes, "o", f"sleep 0.2; echo {i}") for i in range(10))
    )
    assert [result.output for result in results] == [f"{i}\n" for i in range(10)]


@pytest.mark.seam
@pytest.mark.bash
async def test_threads_do_not_see_each_other(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "a", "echo secret > /workspace/f; echo secret > /tmp/f; x=1")
    result = await run(sandboxes, "b", "cat /workspace/f /tmp/f; echo [$x]")
    assert result.stdout == "[]\n"


# Streaming


async def collect(events: AsyncIterator[CommandEvent]) -> list[CommandEvent]:
    return [event async for event in events]


def text_of(events: list[CommandEvent]) -> str:
    return "".join(event.data for event in events if isinstance(event, OutputEvent))


def bytes_of(events: list[CommandEvent], stream: str = "stdout") -> bytes:
    return b"".join(e.raw() for e in events if isinstance(e, OutputEvent) and e.event == stream)


@pytest.mark.seam
@pytest.mark.wire
async def test_output_byte_by_byte(sandboxes: Sandboxes) -> None:
    """As text it has marks in place of what is no UTF-8; as bytes it is what was written."""
    command = r"for i in 0 1 2; do printf '\xff\x00%d\xc3' $i; sleep 0.05; done; printf '\xa9' >&2"
    request = ExecuteRequest(thread_id="raw", command=command)
    shown = await collect(sandboxes.stream(request))
    assert "\ufffd" in text_of(shown)
    exact = request.model_copy(update={"encoding": "bytes"})
    events = await collect(sandboxes.stream(exact))
    written = b"\xff\x000\xc3\xff\x001\xc3\xff\x002\xc3"
    assert (bytes_of(events), bytes_of(events, "stderr")) == (written, b"\xa9")
    assert isinstance(events[0], StartEvent)
    followed = sandboxes.follow(thread("raw"), events[0].command_id, offset=3, encoding="bytes")
    assert bytes_of(await collect(followed)) == written[3:]


@pytest.mark.seam
@pytest.mark.wire
async def test_input_and_output_from_the_first_byte(sandboxes: Sandboxes) -> None:
    """Far more than is kept: whoever follows from the start on loses nothing."""
    request = ExecuteRequest(
        thread_id="from-start", command="cat", stdin_open=True, encoding="bytes", timeout=0
    )
    block, size = os.urandom(MIB // 4), 0
    async with contextlib.aclosing(sandboxes.stream(request)) as events:
        start = await anext(events)
        assert isinstance(start, StartEvent)

        async def send() -> None:
            for _ in range(12):
                await sandboxes.send_stdin(thread("from-start"), start.command_id, block)
            await sandboxes.send_stdin(thread("from-start"), start.command_id, b"", eof=True)

        sending = asyncio.create_task(send())
        digest = hashlib.sha256()
        async for event in events:
            assert not isinstance(event, GapEvent)
            if isinstance(event, OutputEvent):
                digest.update(event.raw())
                size += len(event.raw())
        await sending
    assert (size, digest.hexdigest()) == (12 * len(block), hashlib.sha256(block * 12).hexdigest())


@pytest.mark.seam
async def test_a_stream(sandboxes: Sandboxes) -> None:
    request = ExecuteRequest(thread_id="st", command="echo é; sleep 0.1; echo b >&2; exit 4")
    events = await collect(sandboxes.stream(request))
    assert isinstance(events[0], StartEvent)
    assert events[0].session_state == "created"
    assert [
        (e.event, e.offset, e.next_offset) for e in events[1:3] if isinstance(e, OutputEvent)
    ] == [
        ("stdout", 0, 3),
        ("stderr", 3, 5),
    ]
    assert isinstance(events[-1], ExitEvent)
    assert events[-1].exit_code == 4


@pytest.mark.seam
async def test_resuming_a_stream(sandboxes: Sandboxes) -> None:
    result = await run(sandboxes, "re", "echo one; echo two")
    events = await collect(sandboxes.follow(thread("re"), result.command_id, offset=4))
    assert text_of(events) == "two\n"
    with pytest.raises(errors.NotFound):
        await collect(sandboxes.follow(thread("re"), "no-such-command"))


@pytest.mark.seam
async def test_a_command_in_the_background_can_be_followed(sandboxes: Sandboxes) -> None:
    started = await run(sandboxes, "bg", "echo a; sleep 0.3; echo b", background=True)
    events = await collect(sandboxes.follow(thread("bg"), started.command_id))
    assert text_of(events) == "a\nb\n"
    assert isinstance(events[-1], ExitEvent)


@pytest.mark.seam
@pytest.mark.bash
async def test_leaving_a_stream_does_not_end_the_command(sandboxes: Sandboxes) -> None:
    request = ExecuteRequest(thread_id="lv", command="echo a; sleep 0.5; echo b > done")
    stream = sandboxes.stream(request)
    async for event in stream:
        if isinstance(event, OutputEvent):
            break
    await stream.aclose()
    waiting = "until [ -e done ]; do sleep 0.05; done; cat done"
    assert (await run(sandboxes, "lv", waiting)).output == "b\n"


# Files


@pytest.mark.seam
async def test_files(sandboxes: Sandboxes) -> None:
    data = bytes(range(256)) * 20_000
    digest = hashlib.sha256(data).hexdigest()
    uploaded = await sandboxes.upload_file(thread("f"), "dir/a b.bin", chunks(data))
    assert (uploaded.path, uploaded.filename) == ("/workspace/dir/a b.bin", "a b.bin")
    assert (uploaded.size, uploaded.sha256) == (len(data), digest)
    async with sandboxes.download_file(thread("f"), "dir/a b.bin") as download:
        assert (download.info.size, download.info.sha256) == (len(data), digest)
        assert download.info.filename == "a b.bin"
        assert b"".join([chunk async for chunk in download.chunks]) == data
    listing = await sandboxes.list_files(thread("f"), path="/workspace", recursive=True)
    assert {(e.path, e.type) for e in listing.entries} == {
        ("/workspace/dir", "directory"),
        ("/workspace/dir/a b.bin", "file"),
    }
    async with sandboxes.download_file(thread("f"), "dir") as download:
        assert download.info.type == "directory"
        assert len(b"".join([chunk async for chunk in download.chunks])) > len(data)


async def test_renaming(sandboxes: Sandboxes) -> None:
    await sandboxes.upload_file(thread("rn"), "a.txt", chunks(b"one"))
    await sandboxes.upload_file(thread("rn"), "b.txt", chunks(b"two"))

    async def rename(path: str, to: str, *, replace: bool = False) -> FileEntry:
        request = RenameRequest(thread_id="rn", path=path, to=to, replace=replace)
        return await sandboxes.call(RENAME, request)

    moved = await rename("a.txt", "new/c.txt")
    assert (moved.path, moved.size, moved.type) == ("/workspace/new/c.txt", 3, "file")
    with pytest.raises(errors.FileMissing):
        await rename("a.txt", "d.txt")
    with pytest.raises(errors.InvalidPath, match="exists"):
        await rename("b.txt", "new/c.txt")
    with pytest.raises(errors.InvalidPath):
        await rename("b.txt", "new")
    for path, to in (("b.txt", "/etc/x"), ("/etc/passwd", "x"), ("/workspace", "x")):
        with pytest.raises(errors.InvalidPath):
            await rename(path, to)
    assert (await rename("b.txt", "new/c.txt", replace=True)).size == 3
    assert (await rename("new", "newer")).type == "directory"
    found = await sandboxes.list_files(thread("rn"), recursive=True)
    assert [entry.path for entry in found.entries] == [
        "/workspace/newer",
        "/workspace/newer/c.txt",
    ]
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.call(RENAME, RenameRequest(thread_id="nobody", path="a", to="b"))


@pytest.mark.seam
@pytest.mark.bash
async def test_file_errors(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "fe", "mkfifo pipe")
    for path, error in [
        ("nothing", errors.FileMissing),
        ("pipe", errors.InvalidPath),
    ]:
        with pytest.raises(error):
            async with sandboxes.download_file(thread("fe"), path):
                pass
    with pytest.raises(errors.InvalidPath):
        await sandboxes.upload_file(thread("fe"), "/etc/x", chunks(b"x"))
    with pytest.raises(errors.FileTooLarge):
        await sandboxes.upload_file(thread("fe"), "big", chunks(bytes(9 * MIB)))
    assert [e.name for e in (await sandboxes.list_files(thread("fe"))).entries] == ["pipe"]
    with pytest.raises(errors.FileMissing):
        await sandboxes.list_files(thread("fe"), path="nowhere")


@pytest.mark.seam
async def test_errors_name_the_thing(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    """The same words in-process, over HTTP and through a coordinator."""

    async def told(kind: type[errors.SandboxError], call: Awaitable[object], *names: str) -> None:
        with subtests.test(kind.__name__):
            with pytest.raises(kind) as caught:
                await call
            assert [name for name in names if name not in caught.value.message] == []

    async def read(target: Target, path: str) -> None:
        async with sandboxes.download_file(target, path):
            pass

    started = await run(sandboxes, "t", "cat", idempotency_key="k-1", background=True)
    here = thread("t")
    await told(errors.FileMissing, read(here, "no/file.txt"), "/workspace/no/file.txt", "list")
    await told(errors.FileMissing, sandboxes.list_files(here, path="nowhere"), "/workspace/nowhere")
    rename = RenameRequest(thread_id="t", path="lost.txt", to="b")
    await told(errors.FileMissing, sandboxes.call(RENAME, rename), "/workspace/lost.txt")
    upload = sandboxes.upload_file(here, "big.bin", chunks(bytes(9 * MIB)))
    await told(errors.FileTooLarge, upload, "big.bin", "SANDBOX_MAX_UPLOAD", "8 MiB", "split")
    upload = sandboxes.upload_file(here, "/etc/x", chunks(b"x"))
    await told(errors.InvalidPath, upload, "/etc/x", "/workspace")
    await told(errors.NotFound, sandboxes.result(here, "nobody"), "no command nobody", "list")
    stdin = sandboxes.send_stdin(here, started.command_id, b"x")
    await told(errors.StdinClosed, stdin, started.command_id, "stdin_open")
    again = run(sandboxes, "t", "true", idempotency_key="k-1")
    await told(errors.IdempotencyMismatch, again, "idempotency_key", "k-1")
    await told(errors.SessionNotFound, sandboxes.session(thread("nobody")), "thread 'nobody'")
    unknown = sandboxes.session(Target(session_id="s-1"))
    await told(errors.SessionNotFound, unknown, "session 's-1'", "create_session")


@pytest.mark.seam
async def test_health(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "h", "true")
    async with asyncio.timeout(30):  # What a coordinator tells is as old as the last heartbeat.
        while not (health := await sandboxes.health()).active_sessions:
            await asyncio.sleep(0.05)
    assert health.status in ("healthy", "degraded")
    assert "ok" in health.checks.values()


@pytest.mark.seam
async def test_a_full_server_says_when_to_come_back(sandboxes: Sandboxes, stand: Place) -> None:
    for i in range(stand.capacity):
        await run(sandboxes, f"full-{i}", "true")
    with pytest.raises(errors.Capacity):
        await run(sandboxes, "one-too-many", "true")
    await sandboxes.cleanup(thread("full-0"))
    assert (await run(sandboxes, "one-too-many", "echo in")).output == "in\n"
