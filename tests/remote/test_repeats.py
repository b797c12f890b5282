"""Calls that are cut, refused and put off: repeated where that is safe, and never done twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandbox_sdk import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from tests.contract.stand import Stand
from tests.remote.conftest import Connect
from tests.remote.proxy import Answers, Closed, Cut, Fault, Proxy, Silent

FULL = Answers(
    "503 Service Unavailable",
    "retry-after: 1\r\ncontent-type: application/json\r\n",
    b'{"error": {"code": "capacity", "message": "full", "request_id": "r"}}',
)
BAD_GATEWAY = Answers("502 Bad Gateway", "content-type: text/html\r\n", b"<h1>Bad gateway</h1>")
ADD_A_LINE = "echo x >> lines; wc -l < lines"


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def lines(stand: Stand, thread_id: str) -> int:
    """How often ADD_A_LINE was run, asked past the proxy."""
    request = ExecuteRequest(thread_id=thread_id, command="wc -l < lines")
    return int((await stand.sandboxes.execute(request)).output)


@pytest.mark.parametrize(
    "faults",
    [
        [Closed()],
        [Cut()],
        [Cut(b"HTTP/1.1 200")],
        [Cut(b'"exit_code"')],
        [FULL],
        [BAD_GATEWAY],
        [Closed(), Cut(), BAD_GATEWAY, Cut(b"\r\n\r\n")],
    ],
    ids=repr,
)
async def test_a_command_runs_once(
    remote: RemoteBackend, proxy: Proxy, stand: Stand, thread_id: str, faults: list[Fault]
) -> None:
    proxy.faults.extend(faults)
    result = await remote.execute(ExecuteRequest(thread_id=thread_id, command=ADD_A_LINE))
    assert (result.output, result.exit_code, result.replayed) == ("1\n", 0, False)
    assert not proxy.faults
    assert await lines(stand, thread_id) == 1


async def test_the_callers_own_key_is_kept(
    remote: RemoteBackend, proxy: Proxy, stand: Stand, thread_id: str
) -> None:
    request = ExecuteRequest(thread_id=thread_id, command=ADD_A_LINE, idempotency_key="mine")
    proxy.faults.append(Cut())
    # The first was sent twice, but only the second repeats a call.
    assert not (await remote.execute(request)).replayed
    assert (await remote.execute(request)).replayed
    assert await lines(stand, thread_id) == 1
    (command, _) = (await remote.commands(Target(thread_id=thread_id))).commands
    assert command.idempotency_key == "mine"


async def test_two_calls_are_two_commands(
    remote: RemoteBackend, stand: Stand, thread_id: str
) -> None:
    request = ExecuteRequest(thread_id=thread_id, command=ADD_A_LINE)
    await remote.execute(request)
    await remote.execute(request)
    assert await lines(stand, thread_id) == 2


async def test_reading_is_repeated(remote: RemoteBackend, proxy: Proxy, thread_id: str) -> None:
    target = Target(thread_id=thread_id)
    await remote.create_session(CreateSessionRequest(thread_id=thread_id))
    for fault in (Closed(), Cut(), BAD_GATEWAY, FULL, Cut(b"\r\n\r\n")):
        proxy.faults.append(fault)
        assert (await remote.session(target)).thread_id == thread_id
        proxy.faults.append(fault)
        assert len((await remote.sessions()).sessions) == 1
        proxy.faults.append(fault)
        assert (await remote.list_files(target)).entries == []


async def test_a_session_for_a_thread_is_made_once(
    remote: RemoteBackend, proxy: Proxy, thread_id: str
) -> None:
    proxy.faults.append(Cut())
    session = await remote.create_session(CreateSessionRequest(thread_id=thread_id))
    assert (session.generation, session.status) == (1, "existing")


async def test_what_might_be_done_twice_is_not_repeated(
    remote: RemoteBackend, proxy: Proxy, thread_id: str
) -> None:
    session = await remote.create_session(CreateSessionRequest(thread_id=thread_id))
    for fault in (Closed(), Cut()):
        proxy.faults.append(fault)
        with pytest.raises(errors.RuntimeUnavailable, match="may have been carried out"):
            await remote.create_session(CreateSessionRequest())
    proxy.faults.append(BAD_GATEWAY)
    with pytest.raises(errors.RuntimeUnavailable, match="502"):
        await remote.cleanup(Target(session_id=session.session_id))
    assert (await remote.session(Target(thread_id=thread_id))).generation == 1


async def test_what_was_put_off_is_repeated_whatever_it_is(
    remote: RemoteBackend, proxy: Proxy, thread_id: str
) -> None:
    proxy.faults.append(FULL)
    session = await remote.create_session(CreateSessionRequest())
    proxy.faults.append(FULL)
    await remote.cleanup(Target(session_id=session.session_id))


async def test_put_off_for_longer_than_patience_is_told_at_once(
    proxy: Proxy, connect: Connect
) -> None:
    async with connect(proxy.url, retry_for_s=5) as remote:
        proxy.faults.append(Answers(FULL.status, "retry-after: 3600\r\n", FULL.body))
        with pytest.raises(errors.Capacity, match="full"):
            await remote.create_session(CreateSessionRequest())


async def test_without_repeats_every_fault_is_told(
    proxy: Proxy, thread_id: str, connect: Connect
) -> None:
    async with connect(proxy.url, retry_for_s=0) as remote:
        told: list[tuple[Fault, type[errors.SandboxError]]] = [
            (Closed(), errors.RuntimeUnavailable),
            (Cut(), errors.RuntimeUnavailable),
            (FULL, errors.Capacity),
            (BAD_GATEWAY, errors.RuntimeUnavailable),
        ]
        for fault, error in told:
            proxy.faults.append(fault)
            with pytest.raises(error):
                await remote.execute(ExecuteRequest(thread_id=thread_id, command="true"))
        assert proxy.accepted == 4


async def test_a_server_that_comes_back(
    remote: RemoteBackend,
    proxy: Proxy,
    stand: Stand,
    thread_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is waited for, and who waits is told."""
    monkeypatch.setattr("sandbox_sdk.backends.remote.retry.SILENT_S", 0.1)
    await remote.health()
    await proxy.down()
    request = ExecuteRequest(thread_id=thread_id, command=ADD_A_LINE)
    calls = [
        asyncio.create_task(remote.execute(request)),
        asyncio.create_task(remote.create_session(CreateSessionRequest())),
        asyncio.create_task(remote.upload_file(Target(thread_id="up"), "file", chunks(b"a", b"b"))),
    ]
    done, _ = await asyncio.wait(calls, timeout=0.5)
    assert not done
    await proxy.up()
    await asyncio.gather(*calls)
    (told, *_) = [each.getMessage() for each in caplog.records if each.name == "sandbox.remote"]
    assert f"{proxy.url} does not answer (connection refused); trying for another" in told
    assert await lines(stand, thread_id) == 1
    assert (await remote.list_files(Target(thread_id="up"))).entries[0].size == 2


async def test_a_command_longer_than_what_is_before_the_server_allows(
    proxy: Proxy, stand: Stand, thread_id: str, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    """A proxy that gives up on quiet connections, again and again, does not wear patience out."""
    monkeypatch.setattr("sandbox_sdk.backends.remote.retry.HELD_S", 0.0)
    async with connect(proxy.url, retry_for_s=0.6) as remote:
        proxy.faults.extend([Cut()] * 12)
        command = f"until [ -e go ]; do sleep 0.05; done; {ADD_A_LINE}"
        request = ExecuteRequest(thread_id=thread_id, command=command)
        call = asyncio.create_task(remote.execute(request))
        await stand.sandboxes.execute(ExecuteRequest(thread_id=thread_id, command="touch go"))
        assert (await call).output == "1\n"


# Input and signals


async def test_input_is_written_once(remote: RemoteBackend, proxy: Proxy, thread_id: str) -> None:
    target = Target(thread_id=thread_id)
    request = ExecuteRequest(
        thread_id=thread_id, command="cat", background=True, stdin_open=True, timeout=60
    )
    command_id = (await remote.execute(request)).command_id
    proxy.faults.append(Cut())
    await remote.send_stdin(target, command_id, b"one\n", offset=0)
    proxy.faults.append(Closed())
    await remote.send_stdin(target, command_id, b"two\n", offset=4, eof=True)
    events = [event async for event in remote.follow(target, command_id)]
    assert "".join(e.data for e in events if e.event == "stdout") == "one\ntwo\n"


async def test_input_without_an_offset_is_not_repeated(
    remote: RemoteBackend, proxy: Proxy, thread_id: str
) -> None:
    request = ExecuteRequest(
        thread_id=thread_id, command="cat", background=True, stdin_open=True, timeout=60
    )
    command_id = (await remote.execute(request)).command_id
    proxy.faults.append(Cut())
    with pytest.raises(errors.RuntimeUnavailable, match="may have been carried out"):
        await remote.send_stdin(Target(thread_id=thread_id), command_id, b"one\n")


async def test_only_a_signal_nobody_can_handle_is_repeated(
    remote: RemoteBackend, proxy: Proxy, thread_id: str
) -> None:
    target = Target(thread_id=thread_id)
    request = ExecuteRequest(thread_id=thread_id, command="sleep 60", background=True, timeout=90)
    command_id = (await remote.execute(request)).command_id
    proxy.faults.append(Cut())
    with pytest.raises(errors.RuntimeUnavailable):
        await remote.signal(target, command_id, signal="USR1")
    proxy.faults.append(Cut())
    assert (await remote.signal(target, command_id, signal="KILL")).command_id == command_id


# Files


async def test_an_upload_that_is_cut_is_told(
    remote: RemoteBackend, proxy: Proxy, thread_id: str
) -> None:
    for fault in (Closed(), Cut()):
        proxy.faults.append(fault)
        with pytest.raises(errors.RuntimeUnavailable, match="look first"):
            await remote.upload_file(Target(thread_id=thread_id), "file", chunks(b"x" * 100_000))
    proxy.faults.append(FULL)
    with pytest.raises(errors.Capacity):
        await remote.upload_file(Target(thread_id=thread_id), "file", chunks(b"x"))


async def test_a_download_begins_again_but_is_not_pieced_together(
    remote: RemoteBackend, proxy: Proxy, thread_id: str
) -> None:
    target = Target(thread_id=thread_id)
    data = b"".join(b"%07d\n" % number for number in range(100_000))
    await remote.upload_file(target, "file", chunks(data))
    proxy.faults.append(Cut())
    async with remote.download_file(target, "file") as download:
        assert b"".join([chunk async for chunk in download.chunks]) == data
    proxy.faults.append(Cut(b"0050000"))
    async with remote.download_file(target, "file") as download:
        with pytest.raises(errors.RuntimeUnavailable, match="broke off"):
            async for _ in download.chunks:
                pass


# Time


async def test_a_server_that_takes_a_call_and_never_answers(
    proxy: Proxy, thread_id: str, connect: Connect
) -> None:
    async with connect(proxy.url, read_timeout_s=0.5) as remote:
        proxy.faults.append(Silent())
        with pytest.raises(errors.RuntimeUnavailable, match="did not answer in time"):
            await remote.session(Target(thread_id=thread_id))


async def test_the_time_of_a_command_is_not_the_time_for_an_answer(
    proxy: Proxy, thread_id: str, connect: Connect
) -> None:
    async with connect(proxy.url) as patient:
        await patient.create_session(CreateSessionRequest(thread_id=thread_id))
    async with connect(proxy.url, read_timeout_s=0.5) as remote:
        request = ExecuteRequest(thread_id=thread_id, command="sleep 1.5; echo late")
        assert (await remote.execute(request)).output == "late\n"
