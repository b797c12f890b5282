"""Commands in the background, through every way to reach a Sandboxes: looked at, waited for, fed,
signalled and listed."""

import asyncio
import contextlib
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.events import ExitEvent, StartEvent
from sandbox_sdk.protocol.models import (
    CommandInfo,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.runtime.warden import WardenClient

from .stand import Stand
from .test_sandboxes import MIB, collect, run, text_of, thread

pytestmark = pytest.mark.wire

PATIENCE_S = 30.0


async def start(sandboxes: Sandboxes, name: str, command: str, **options: Any) -> str:
    options = {"timeout": 60, **options}
    return (await run(sandboxes, name, command, background=True, **options)).command_id


async def ended(sandboxes: Sandboxes, name: str, command_id: str) -> ExecuteResult:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            result = await sandboxes.result(thread(name), command_id)
            if result.exit_code is not None:
                return result
            await asyncio.sleep(0.02)


async def said(sandboxes: Sandboxes, name: str, command_id: str, text: str) -> ExecuteResult:
    """Wait until a command has written something."""
    async with asyncio.timeout(PATIENCE_S):
        while text not in (result := await sandboxes.result(thread(name), command_id)).output:
            await asyncio.sleep(0.02)
    return result


async def only(sandboxes: Sandboxes, name: str) -> CommandInfo:
    (found,) = (await sandboxes.commands(thread(name))).commands
    return found


# Looking


@pytest.mark.seam
async def test_how_a_command_stands_and_how_it_ended(sandboxes: Sandboxes) -> None:
    command = "echo out; echo err >&2; until [ -e go ]; do sleep 0.05; done; echo end; exit 3"
    command_id = await start(sandboxes, "bg", command)
    await said(sandboxes, "bg", command_id, "out")
    before = await said(sandboxes, "bg", command_id, "err")
    assert (before.exit_code, before.stdout, before.stderr) == (None, "out\n", "err\n")
    assert (before.command_id, before.output_bytes) == (command_id, 8)
    assert before.duration_ms > 0
    assert (before.truncated, before.timed_out, before.session_state) == (False, False, "live")
    await run(sandboxes, "bg", "touch go")
    after = await ended(sandboxes, "bg", command_id)
    assert (after.exit_code, after.stdout) == (3, "out\nend\n")
    assert after.duration_ms > before.duration_ms


async def test_the_result_of_a_command_that_was_waited_for(sandboxes: Sandboxes) -> None:
    result = await run(sandboxes, "fg", "echo é; exit 7")
    again = await sandboxes.result(thread("fg"), result.command_id)
    assert again == result.model_copy(update={"session_state": "live"})


async def test_what_is_kept_of_a_long_output_so_far(sandboxes: Sandboxes) -> None:
    command = f"echo first; head -c {5 * MIB} /dev/zero | tr '\\0' x; echo last; sleep 60"
    command_id = await start(sandboxes, "long", command)
    result = await said(sandboxes, "long", command_id, "last")
    assert (result.exit_code, result.truncated) == (None, True)
    assert result.output_bytes == 5 * MIB + 11
    assert result.output.startswith("first\nxxx")
    assert result.output.endswith("xxxlast\n")
    assert "bytes of output left out" in result.output


async def test_a_background_command_that_times_out(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "late", "echo part; sleep 60", timeout=1)
    result = await ended(sandboxes, "late", command_id)
    assert (result.exit_code, result.timed_out, result.output) == (124, True, "part\n")


@pytest.mark.seam
async def test_waiting_by_following(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "wait", "echo a; sleep 0.3; echo b")
    events = await collect(sandboxes.follow(thread("wait"), command_id))
    assert text_of(events) == "a\nb\n"
    assert isinstance(events[-1], ExitEvent)
    assert (await sandboxes.result(thread("wait"), command_id)).exit_code == 0


async def test_an_unknown_command(sandboxes: Sandboxes) -> None:
    await run(sandboxes, "known", "true")
    with pytest.raises(errors.NotFound, match="no command nobody"):
        await sandboxes.result(thread("known"), "nobody")
    with pytest.raises(errors.NotFound):
        await sandboxes.signal(thread("known"), "nobody")
    with pytest.raises(errors.NotFound):
        await sandboxes.send_stdin(thread("known"), "nobody", b"x")


async def test_no_session_is_made(sandboxes: Sandboxes) -> None:
    nobody = thread("nobody")
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.result(nobody, "c")
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.commands(nobody)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.signal(nobody, "c")
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.send_stdin(nobody, "c", b"x")
    assert (await sandboxes.sessions()).sessions == []


async def test_the_commands_of_a_session(sandboxes: Sandboxes) -> None:
    await sandboxes.create_session(CreateSessionRequest(thread_id="list"))
    assert (await sandboxes.commands(thread("list"))).commands == []
    await run(sandboxes, "list", "echo one; exit 4", idempotency_key="k")
    command_id = await start(sandboxes, "list", "sleep 60")
    first, second = (await sandboxes.commands(thread("list"))).commands
    assert (first.idempotency_key, first.running, first.exit_code) == ("k", False, 4)
    assert first.output_bytes == 4
    assert (first.command, second.command) == ("echo one; exit 4", "sleep 60")
    assert (second.command_id, second.running, second.exit_code) == (command_id, True, None)
    assert 0 <= second.age_s <= first.age_s


# Staying


@pytest.mark.inside
async def test_a_result_outlives_the_link_it_was_asked_over(
    sandboxes: Sandboxes, stand: Stand
) -> None:
    command_id = await start(sandboxes, "cut", "echo a; sleep 1; echo b")
    (session,) = stand.worker.table.sessions()
    assert isinstance(session.agent, WardenClient)
    assert session.agent._link is not None
    await session.agent._link._stream.close()
    assert (await ended(sandboxes, "cut", command_id)).output == "a\nb\n"


async def test_a_session_does_not_expire_under_a_background_command(sandboxes: Sandboxes) -> None:
    await sandboxes.create_session(CreateSessionRequest(thread_id="stay", idle_timeout_s=1))
    command_id = await start(sandboxes, "stay", "sleep 4; echo done")
    # Looking on does not count as use; that the command runs does.
    assert (await ended(sandboxes, "stay", command_id)).output == "done\n"


@pytest.mark.seam
async def test_a_lost_box_is_told(sandboxes: Sandboxes, stand: Stand) -> None:
    command_id = await start(sandboxes, "lost", "sleep 60", stdin_open=True)
    await stand.lose_box("lost")
    with pytest.raises(errors.SessionLost):
        await sandboxes.result(thread("lost"), command_id)
    with pytest.raises(errors.SessionLost):
        await sandboxes.send_stdin(thread("lost"), command_id, b"x")


# Signals


@pytest.mark.seam
async def test_kill_ends_everything_a_command_has_started(sandboxes: Sandboxes) -> None:
    tree = (
        "(setsid bash -c 'sleep 1116 & disown; sleep 1117' &);"
        " python3 -c 'import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        'open("daemon", "w").close()\n'
        "time.sleep(1118)';"
        " until [ -e daemon ]; do sleep 0.05; done; echo up; sleep 1119"
    )
    command_id = await start(sandboxes, "tree", tree)
    await said(sandboxes, "tree", command_id, "up")
    await sandboxes.signal(thread("tree"), command_id, signal="KILL")
    result = await ended(sandboxes, "tree", command_id)
    assert (result.exit_code, result.signal) == (137, "KILL")
    all_of_them = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"
    look = f"{all_of_them} | grep -c 'sleep[ (]11[1]' || :"
    assert (await run(sandboxes, "tree", look)).output == "0\n"


async def test_a_signal_can_be_handled(sandboxes: Sandboxes) -> None:
    handlers = "trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM"
    command_id = await start(sandboxes, "sig", f"{handlers}; echo up; while :; do sleep 0.05; done")
    await said(sandboxes, "sig", command_id, "up")
    info = await sandboxes.signal(thread("sig"), command_id, signal="USR1")
    assert (info.command_id, info.running, info.exit_code) == (command_id, True, None)
    await said(sandboxes, "sig", command_id, "usr1")
    await sandboxes.signal(thread("sig"), command_id)
    assert (await ended(sandboxes, "sig", command_id)).exit_code == 5


async def test_stop_and_go_on(sandboxes: Sandboxes) -> None:
    command_id = await start(
        sandboxes, "stop", "echo up; until [ -e go ]; do sleep 0.05; done; echo went"
    )
    await said(sandboxes, "stop", command_id, "up")
    await sandboxes.signal(thread("stop"), command_id, signal="STOP")
    states = "cat /proc/[0-9]*/stat | grep -c ') T '"
    await run(sandboxes, "stop", f"touch go; until [ $({states}) -gt 0 ]; do sleep 0.05; done")
    assert "went" not in (await sandboxes.result(thread("stop"), command_id)).output
    await sandboxes.signal(thread("stop"), command_id, signal="CONT")
    assert (await ended(sandboxes, "stop", command_id)).output == "up\nwent\n"


async def test_a_signal_for_a_command_that_has_ended(sandboxes: Sandboxes) -> None:
    result = await run(sandboxes, "over", "exit 6")
    for signal in ("TERM", "KILL"):
        info = await sandboxes.signal(thread("over"), result.command_id, signal=signal)
        assert (info.running, info.exit_code) == (False, 6)


# Input


async def test_input_in_pieces(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "in", "cat; echo end", stdin_open=True)
    receipt = await sandboxes.send_stdin(thread("in"), command_id, b"one\n")
    assert receipt.received == 4
    await said(sandboxes, "in", command_id, "one\n")
    assert (await sandboxes.result(thread("in"), command_id)).exit_code is None
    receipt = await sandboxes.send_stdin(thread("in"), command_id, b"two\n", eof=True)
    assert receipt.received == 8
    assert (await ended(sandboxes, "in", command_id)).output == "one\ntwo\nend\n"


@pytest.mark.seam
async def test_a_conversation(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "repl", "python3 -iuq 2>&1", stdin_open=True)
    offset = 0
    for number in (7, 8, 9):
        line = f"print('square', {number} ** 2)\n".encode()
        receipt = await sandboxes.send_stdin(thread("repl"), command_id, line, offset=offset)
        offset = receipt.received
        await said(sandboxes, "repl", command_id, f"square {number**2}\n")
    await sandboxes.send_stdin(thread("repl"), command_id, b"", eof=True)
    assert (await ended(sandboxes, "repl", command_id)).exit_code == 0


async def test_the_same_piece_twice_is_written_once(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "twice", "cat", stdin_open=True)
    target = thread("twice")
    for _ in range(2):
        receipt = await sandboxes.send_stdin(target, command_id, b"abc", offset=0)
        assert receipt.received == 3
    receipt = await sandboxes.send_stdin(target, command_id, b"bcde", offset=1)
    assert receipt.received == 5
    for _ in range(2):
        receipt = await sandboxes.send_stdin(target, command_id, b"f\n", offset=5, eof=True)
        assert receipt.received == 7
    assert (await ended(sandboxes, "twice", command_id)).output == "abcdef\n"
    # Also when the command is over: what was said of the first time holds.
    receipt = await sandboxes.send_stdin(target, command_id, b"f\n", offset=5, eof=True)
    assert receipt.received == 7


async def test_a_hole_is_refused(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "hole", "cat", stdin_open=True)
    with pytest.raises(errors.InvalidRequest, match="hole"):
        await sandboxes.send_stdin(thread("hole"), command_id, b"x", offset=1)
    await sandboxes.send_stdin(thread("hole"), command_id, b"y", offset=0, eof=True)
    assert (await ended(sandboxes, "hole", command_id)).output == "y"


@pytest.mark.seam
async def test_bytes_of_any_kind_and_number(sandboxes: Sandboxes) -> None:
    data = bytes(range(256)) * 12_000
    command_id = await start(sandboxes, "bytes", "cat > copy; sha256sum copy", stdin_open=True)
    await sandboxes.send_stdin(thread("bytes"), command_id, data, eof=True)
    await ended(sandboxes, "bytes", command_id)
    async with sandboxes.download_file(thread("bytes"), "copy") as download:
        assert b"".join([chunk async for chunk in download.chunks]) == data


async def test_input_given_at_the_start_and_more(sandboxes: Sandboxes) -> None:
    options = {"stdin": "first\n", "stdin_open": True}
    command_id = await start(sandboxes, "both", "cat", **options)
    await said(sandboxes, "both", command_id, "first\n")
    await sandboxes.send_stdin(thread("both"), command_id, b"second\n", eof=True)
    assert (await ended(sandboxes, "both", command_id)).output == "first\nsecond\n"


async def test_input_given_to_a_background_command(sandboxes: Sandboxes) -> None:
    text = "0123456789abcdef\n" * 30_000
    command_id = await start(sandboxes, "given", "sleep 0.5; wc -c", stdin=text)
    assert (await ended(sandboxes, "given", command_id)).output == f"{len(text)}\n"


async def test_input_for_a_streamed_command(sandboxes: Sandboxes) -> None:
    request = ExecuteRequest(thread_id="str", command="cat", stdin_open=True)
    events = []
    async for event in sandboxes.stream(request):
        events.append(event)
        if isinstance(event, StartEvent):
            await sandboxes.send_stdin(thread("str"), event.command_id, b"hi\n", eof=True)
    assert text_of(events) == "hi\n"


@pytest.mark.inside
async def test_input_waits_for_a_command_that_does_not_read(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox_server.runtime.warden.commands.UNREAD_S", 1.0)
    data = b"".join(b"%07d\n" % number for number in range(500_000))
    wait = "until [ -e go ]; do sleep 0.05; done; cat > copy"
    command_id = await start(sandboxes, "slow", wait, stdin_open=True)
    with pytest.raises(errors.Capacity, match="does not read"):
        await sandboxes.send_stdin(thread("slow"), command_id, data, offset=0, eof=True)
    await run(sandboxes, "slow", "touch go")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(errors.Capacity):
                await sandboxes.send_stdin(thread("slow"), command_id, data, offset=0, eof=True)
                break
    assert (await ended(sandboxes, "slow", command_id)).exit_code == 0
    async with sandboxes.download_file(thread("slow"), "copy") as download:
        assert b"".join([chunk async for chunk in download.chunks]) == data


async def test_input_nobody_takes(sandboxes: Sandboxes) -> None:
    closed = await start(sandboxes, "shut", "sleep 60")
    given = await start(sandboxes, "shut", "cat; sleep 60", stdin="x")
    over = (await run(sandboxes, "shut", "true")).command_id
    ended_input = await start(sandboxes, "shut", "cat; sleep 60", stdin_open=True)
    await sandboxes.send_stdin(thread("shut"), ended_input, b"", eof=True)
    for command_id in (closed, given, over, ended_input):
        with pytest.raises(errors.StdinClosed):
            await sandboxes.send_stdin(thread("shut"), command_id, b"more")
    finished = await start(sandboxes, "shut", "exit 0", stdin_open=True)
    await ended(sandboxes, "shut", finished)
    with pytest.raises(errors.StdinClosed):
        await sandboxes.send_stdin(thread("shut"), finished, b"more")


# What a command was started with


async def test_a_running_command_tells_what_it_is(sandboxes: Sandboxes) -> None:
    source = "echo $$ > pid; until [ -e /workspace/go ]; do sleep 0.05; done"
    options = {"cwd": "/tmp", "env": {"COLOUR": "blue"}}
    command_id = await start(sandboxes, "told", f"cd /workspace; {source}", **options)
    info = await only(sandboxes, "told")
    assert (info.command_id, info.command) == (command_id, f"cd /workspace; {source}")
    assert (info.cwd, info.env) == ("/tmp", {"COLOUR": "blue"})
    assert info.pid is not None
    found = await run(
        sandboxes, "told", "until [ -s /workspace/pid ]; do sleep 0.02; done; cat /workspace/pid"
    )
    assert int(found.output) == info.pid
    await run(sandboxes, "told", "touch /workspace/go")
    await ended(sandboxes, "told", command_id)
    over = next(
        each
        for each in (await sandboxes.commands(thread("told"))).commands
        if each.command_id == command_id
    )
    assert (over.pid, over.cwd, over.env) == (None, None, None)


async def test_the_start_tells_the_pid(sandboxes: Sandboxes) -> None:
    request = ExecuteRequest(thread_id="pid", command="echo $$; exec bash -c 'echo $$'")
    events = [event async for event in sandboxes.stream(request)]
    assert isinstance(events[0], StartEvent)
    assert text_of(events) == f"{events[0].pid}\n" * 2


async def test_no_time_limit(sandboxes: Sandboxes) -> None:
    request = ExecuteRequest(thread_id="endless", command="echo a; sleep 0.2; echo b", timeout=0)
    result = await sandboxes.execute(request)
    assert (result.output, result.timed_out) == ("a\nb\n", False)


# Sessions


@pytest.mark.seam
async def test_the_sessions(sandboxes: Sandboxes) -> None:
    first = await sandboxes.create_session(CreateSessionRequest(thread_id="one"))
    await sandboxes.create_session(CreateSessionRequest(thread_id="two", idle_timeout_s=300))
    found = (await sandboxes.sessions()).sessions
    assert [session.thread_id for session in found] == ["one", "two"]
    assert (found[0].session_id, found[0].generation, found[0].state) == (
        first.session_id,
        1,
        "idle",
    )
    assert (found[0].worker, found[0].runtime) == (first.worker, first.runtime)
    assert (found[0].created_at, found[0].idle_s >= 0) == (first.created_at, True)
    assert found[1].expires_at < found[0].expires_at
    await sandboxes.cleanup(thread("one"))
    assert [s.thread_id for s in (await sandboxes.sessions()).sessions] == ["two"]


@pytest.mark.inside
async def test_sessions_of_others_do_not_show(stand: Stand) -> None:
    request = CreateSessionRequest(thread_id="same")
    await stand.service.of("acme").create_session(request)
    own = await stand.service.of("globex").create_session(request)
    found = (await stand.service.of("globex").sessions()).sessions
    assert [session.session_id for session in found] == [own.session_id]
    assert (await stand.sandboxes.sessions()).sessions == []


async def test_a_session_is_busy_as_long_as_something_runs_in_it(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "busy", "sleep 60")
    (session,) = (await sandboxes.sessions()).sessions
    assert (session.state, session.idle_s) == ("busy", 0)
    await sandboxes.signal(thread("busy"), command_id, signal="KILL")
    async with asyncio.timeout(PATIENCE_S):
        while (await sandboxes.sessions()).sessions[0].state == "busy":
            await asyncio.sleep(0.05)
