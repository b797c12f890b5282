"""One primitive: a command that is stateful, streaming, killable and resumable."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import CommandResult, Gap, Output, Started
from sandbox_server.runtime.warden.client import WardenClient
from tests.waiting import until_running

MIB = 1 << 20


def much(runtime_name: str) -> int:
    """More bytes than there is room for anywhere. System calls are slow on gVisor."""
    return (20 if runtime_name.endswith("gvisor") else 100) * MIB


async def processes(warden: WardenClient) -> str:
    return (
        await warden.run("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done")
    ).stdout


# Output


@pytest.mark.kernel
async def test_streams_apart_and_together(warden: WardenClient) -> None:
    result = await warden.run("echo out; sleep 0.1; echo err >&2; sleep 0.1; echo out2")
    assert (result.stdout, result.stderr) == ("out\nout2\n", "err\n")
    assert result.output == "out\nerr\nout2\n"
    assert (result.output_bytes, result.truncated) == (13, False)


async def test_one_mebibyte_is_kept_whole(warden: WardenClient) -> None:
    result = await warden.run(f"head -c {MIB} /dev/zero | tr '\\0' x")
    assert result.output == "x" * MIB
    assert not result.truncated


@pytest.mark.kernel
async def test_more_is_cut_in_the_middle_and_told(warden: WardenClient, runtime_name: str) -> None:
    size = much(runtime_name)
    result = await warden.run(f"echo first; head -c {size} /dev/zero | tr '\\0' x; echo last")
    assert result.output.startswith("first\nxxx")
    assert result.output.endswith("xxx\nlast\n") or result.output.endswith("xxxlast\n")
    assert result.output_bytes == size + 11
    assert result.truncated
    assert len(result.output) < MIB + 100
    left_out = result.output_bytes - MIB
    assert f"\n[{left_out} bytes of output left out]\n" in result.output


async def test_bytes_that_are_not_text_are_replaced(warden: WardenClient) -> None:
    result = await warden.run(r"printf 'a\xff\x00b\xe2\x82'")
    assert result.output == "a\ufffd\x00b\ufffd"
    assert result.output_bytes == 6


async def test_a_line_of_fifty_megabytes(warden: WardenClient) -> None:
    result = await warden.run("head -c 50000000 /dev/urandom | tr -d '\\n'")
    assert result.exit_code == 0
    assert result.truncated


async def test_broken_pipes_are_quiet(warden: WardenClient) -> None:
    result = await warden.run("yes | head -2")
    assert (result.output, result.exit_code) == ("y\ny\n", 0)


async def test_commands_of_any_length(warden: WardenClient) -> None:
    result = await warden.run("echo " + "x" * 500_000 + " | wc -c")
    assert result.output == "500001\n"


# Streaming


async def test_a_stream_tells_start_output_and_exit_in_order(warden: WardenClient) -> None:
    events = [event async for event in warden.stream("echo a; sleep 0.1; echo b >&2; exit 3")]
    assert isinstance(events[0], Started)
    assert events[1:3] == [Output("stdout", 0, b"a\n"), Output("stderr", 2, b"b\n")]
    assert isinstance(events[3], CommandResult)
    assert events[3].exit_code == 3


async def test_output_arrives_before_the_command_ends(warden: WardenClient) -> None:
    stream = warden.stream("echo early; until [ -e /tmp/go ]; do sleep 0.05; done; echo late")
    async for event in stream:
        if isinstance(event, Output):
            break
    assert event == Output("stdout", 0, b"early\n")
    await warden.run("touch /tmp/go")
    rest = [e async for e in stream]
    assert rest[0] == Output("stdout", 6, b"late\n")
    assert isinstance(rest[-1], CommandResult)


@pytest.mark.kernel
async def test_a_stream_is_complete_whatever_its_size(
    warden: WardenClient, runtime_name: str
) -> None:
    size, gaps = 0, 0
    async for event in warden.stream(f"head -c {much(runtime_name)} /dev/zero", timeout_s=60):
        if isinstance(event, Output):
            assert event.offset == size
            size += len(event.data)
        gaps += isinstance(event, Gap)
    assert (size, gaps) == (much(runtime_name), 0)


async def test_a_slow_reader_holds_its_command_back_and_loses_nothing(warden: WardenClient) -> None:
    size = 0
    async for event in warden.stream(f"head -c {8 * MIB} /dev/zero", timeout_s=60):
        if isinstance(event, Output):
            size += len(event.data)
            if size < MIB:
                await asyncio.sleep(0.02)
    assert size == 8 * MIB


async def test_leaving_a_stream_does_not_end_the_command(warden: WardenClient) -> None:
    stream = warden.stream("echo begun; sleep 0.3; touch /tmp/done", command_id="left")
    async for event in stream:
        if isinstance(event, Output):
            break
    await stream.aclose()
    events = [event async for event in warden.attach("left")]
    assert events[1] == Output("stdout", 0, b"begun\n")
    assert isinstance(events[-1], CommandResult)
    assert (await warden.run("[ -e /tmp/done ]")).exit_code == 0


async def test_attach_from_an_offset(warden: WardenClient) -> None:
    await warden.run("echo one; echo two", command_id="c")
    events = [event async for event in warden.attach("c", offset=4)]
    assert b"".join(e.data for e in events if isinstance(e, Output)) == b"two\n"


async def test_attach_to_an_unknown_command(warden: WardenClient) -> None:
    with pytest.raises(errors.NotFound):
        [event async for event in warden.attach("nobody")]


# Input


async def test_stdin_is_empty_unless_given(warden: WardenClient) -> None:
    result = await warden.run("cat; read x; echo $?")
    assert result.output == "1\n"


@pytest.mark.kernel
async def test_stdin_of_any_size(warden: WardenClient) -> None:
    data = b"0123456789abcdef" * (3 * MIB // 16)
    result = await warden.run("sha256sum; wc -c", stdin=data)
    import hashlib

    assert result.output.startswith(hashlib.sha256(data).hexdigest())


async def test_stdin_that_nobody_reads(warden: WardenClient) -> None:
    result = await warden.run("echo done", stdin=b"x" * 5 * MIB)
    assert (result.output, result.exit_code) == ("done\n", 0)


# Time, kills and children


@pytest.mark.kernel
async def test_a_timeout_ends_everything_and_keeps_the_output(warden: WardenClient) -> None:
    await warden.run("kept=1; cd /tmp")
    result = await warden.run("kept=2; cd /; echo partial; sleep 1000", timeout_s=4)
    assert (result.exit_code, result.timed_out) == (124, True)
    assert result.output == "partial\n"
    assert (await warden.run("echo $kept; pwd")).output == "1\n/tmp\n"


@pytest.mark.kernel
async def test_a_timeout_reaches_daemons(warden: WardenClient) -> None:
    """setsid and a double fork, an emptied environment, and signals that are ignored."""
    result = await warden.run(
        "(setsid bash -c 'sleep 1111 & disown; sleep 1112' &) ; "
        "env -i setsid sh -c '(trap \"\" TERM HUP INT; while :; do sleep 1113; done) &' ; "
        "python3 -c 'import os,time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "time.sleep(1114)' ; sleep 1115",
        timeout_s=4,
    )
    assert result.timed_out
    assert "111" not in (await processes(warden)).replace("tr", "")


@pytest.mark.kernel
async def test_background_children_do_not_hold_the_call(warden: WardenClient) -> None:
    result = await warden.run("sleep 1234 & echo begun", timeout_s=60)
    assert result.output == "begun\n"
    async with asyncio.timeout(20):
        while "sleep 1234" not in await processes(warden):
            await asyncio.sleep(0.05)  # bash may still be about to become it.


async def test_a_server_in_the_background_lives_on(warden: WardenClient) -> None:
    server = (
        'python3 -c \'import socket; s=socket.create_server(("127.0.0.1", 8123)); '
        'c,_=s.accept(); c.sendall(b"served")\''
    )
    await warden.run(f"{server} &")
    client = (
        "python3 -c 'import socket,time\n"
        "for _ in range(100):\n"
        '  try: print(socket.create_connection(("127.0.0.1", 8123)).recv(9)); break\n'
        "  except OSError: time.sleep(0.05)'"
    )
    assert (await warden.run(client)).output == "b'served'\n"


@pytest.mark.kernel
async def test_later_timeouts_spare_earlier_background_children(warden: WardenClient) -> None:
    await warden.run("sleep 1235 &")
    assert (await warden.run("sleep 1000", timeout_s=0.3)).timed_out
    assert "sleep 1235" in await processes(warden)


async def test_output_of_a_child_after_the_end_does_not_block_it(warden: WardenClient) -> None:
    await warden.run("(sleep 0.2; head -c 3000000 /dev/zero; touch /tmp/wrote) & echo begun")
    result = await warden.run("until [ -e /tmp/wrote ]; do sleep 0.05; done; echo ok", timeout_s=60)
    assert result.output == "ok\n"


@pytest.mark.kernel
async def test_a_signal_reaches_the_whole_tree(warden: WardenClient) -> None:
    running = asyncio.create_task(
        warden.run("echo up; sh -c 'sleep 1236'; echo down", command_id="s")
    )
    await until_output(warden, "s")
    await warden.signal("s", 9)
    result = await running
    assert (result.exit_code, result.reason) == (137, None)
    assert "1236" not in await processes(warden)


@pytest.mark.parametrize("stdin_open", [False, True])
async def test_a_kill_that_comes_before_the_command_has_begun(
    warden: WardenClient, stdin_open: bool
) -> None:
    """The shell that waits for it is killed, and no other takes its place."""
    for _ in range(20):
        command_id = await warden.start("sleep 1237", timeout_s=300, stdin_open=stdin_open)
        await warden.signal(command_id, 9)
        async with asyncio.timeout(30):
            await warden.ended(command_id)
        assert (await warden.result(command_id)).exit_code == 137
    async with asyncio.timeout(30):  # One that was killed shows until it is reaped.
        while "1237" in await processes(warden):
            await asyncio.sleep(0.1)


async def test_a_handler_gets_its_signal(warden: WardenClient) -> None:
    command = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.05; done"
    running = asyncio.create_task(warden.run(command, command_id="i"))
    await until_output(warden, "i")
    await warden.signal("i", 2)
    result = await running
    assert (result.output, result.exit_code) == ("up\ncaught\n", 5)


async def until_output(warden: WardenClient, command_id: str) -> None:
    for _ in range(200):
        try:
            async for event in warden.attach(command_id):
                if isinstance(event, Output):
                    return
        except errors.NotFound:
            await asyncio.sleep(0.02)


# Overlap


@pytest.mark.kernel
async def test_twenty_commands_at_once(warden: WardenClient) -> None:
    await warden.run("base=7")
    commands = (warden.run(f"sleep 0.3; echo $(({i} * base)); n{i}=1") for i in range(20))
    results = await asyncio.gather(*commands)
    assert [r.output for r in results] == [f"{i * 7}\n" for i in range(20)]


async def test_state_is_taken_over_in_order_of_completion(warden: WardenClient) -> None:
    wait = "until [ -e /tmp/go ]; do sleep 0.05; done"
    slow = asyncio.create_task(warden.run(f"{wait}; who=slow", timeout_s=60))
    await until_running(warden)
    await warden.run("who=quick")
    assert (await warden.run("echo $who")).output == "quick\n"
    await warden.put("/tmp/go", nothing())  # Not by a command, which has a state of its own.
    await slow
    assert (await warden.run("echo $who")).output == "slow\n"


async def nothing() -> AsyncIterator[bytes]:
    yield b""


# Idempotency


@pytest.mark.kernel
async def test_the_same_key_runs_once(warden: WardenClient) -> None:
    first = await warden.run("echo x >> /tmp/count; wc -l < /tmp/count", key="k1")
    again = await warden.run("echo x >> /tmp/count; wc -l < /tmp/count", key="k1")
    assert first.output == again.output == "1\n"
    assert first.model_dump() == again.model_dump()


async def test_a_retry_joins_the_running_command(warden: WardenClient) -> None:
    calls = (warden.run("sleep 0.3; echo x >> /tmp/c; wc -l < /tmp/c", key="k") for _ in range(5))
    results = await asyncio.gather(*calls)
    assert {r.output for r in results} == {"1\n"}
    assert len({r.command_id for r in results}) == 1


async def test_the_same_key_with_another_command_is_refused(warden: WardenClient) -> None:
    await warden.run("echo 1", key="k2")
    with pytest.raises(errors.IdempotencyMismatch):
        await warden.run("echo 2", key="k2")


# Limits


async def test_bad_requests_are_refused_and_hurt_nobody(warden: WardenClient) -> None:
    with pytest.raises(errors.InvalidRequest):
        await warden.run("echo", env={"not a name": "x"})
    with pytest.raises(errors.FileMissing):
        await warden.run("echo", cwd="/workspace/nowhere")
    assert (await warden.run("echo ok")).output == "ok\n"


async def test_results_of_long_ago_are_bounded_and_told(warden: WardenClient) -> None:
    await warden.run(f"head -c {MIB} /dev/zero", command_id="old", key="old")
    for _ in range(9):
        await warden.run(f"head -c {MIB} /dev/zero")
    again = await warden.run(f"head -c {MIB} /dev/zero", key="old", command_id="old")
    assert again.exit_code == 0
    assert again.truncated
    assert again.output_bytes == MIB


@pytest.mark.kernel
async def test_usage_is_told(warden: WardenClient) -> None:
    await warden.run("python3 -c 'sum(range(3000000))'; head -c 5000000 /dev/zero > /workspace/big")
    usage = await warden.usage()
    assert usage.cpu_s > 0
    assert usage.pids >= 1
    assert usage.disk_bytes is not None
    assert usage.disk_bytes >= 5_000_000
