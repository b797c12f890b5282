"""kill -9 of the server in the middle of everything: no result, file or session is lost, no command
runs twice, and no box is left."""

import asyncio
import json
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.events import ExitEvent, OutputEvent
from sandbox_sdk.protocol.models import ExecuteRequest, ExecuteResult, Target
from tests import lanes
from tests.contract.conftest import RUNTIMES, make_runtime
from tests.server_process import running

ROUNDS = lanes.rounds(4, "CHAOS_ROUNDS")
THREADS = 20


async def insist(client: RemoteBackend, request: ExecuteRequest) -> ExecuteResult:
    """What a patient caller does: the same call again, under the same key."""
    for _ in range(300):
        try:
            return await client.execute(request)
        except RuntimeUnavailable:
            await asyncio.sleep(0.1)
    raise AssertionError("the server never came back")


@pytest.mark.rounds
@pytest.mark.timeout(120 + 40 * ROUNDS)
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_nothing_is_lost_when_the_server_is_killed(runtime: str, state_dir: Path) -> None:
    threads = [f"conv-{i}" for i in range(THREADS)]
    async with running(runtime, state_dir) as server, RemoteBackend(server.url) as client:
        for round_ in range(1, ROUNDS + 1):
            command = (
                f"echo {round_} >> log; sleep 0.4; count=$(wc -l < log); echo $count; tail -1 log"
            )
            calls = [
                asyncio.create_task(
                    insist(
                        client,
                        ExecuteRequest(
                            thread_id=name, command=command, idempotency_key=f"round-{round_}"
                        ),
                    )
                )
                for name in threads
            ]
            await asyncio.sleep(0.05 + 0.35 * (round_ % 5) / 5 if round_ > 1 else 5.0)
            await server.stop()
            await server.start()
            results = await asyncio.gather(*calls)
            assert {r.output for r in results} == {f"{round_}\n{round_}\n"}, server.log()
            assert {r.generation for r in results} == {1}, server.log()
        counts = await asyncio.gather(
            *(insist(client, ExecuteRequest(thread_id=t, command="echo $count")) for t in threads)
        )
        assert {r.output for r in counts} == {f"{ROUNDS}\n"}
        await asyncio.gather(*(client.cleanup(Target(thread_id=t)) for t in threads))
        health = await client.health()
        assert health.active_sessions == 0
        async with make_runtime(runtime, state_dir) as boxes:
            left = await boxes.boxes(server.name)
        assert len(left) <= health.pool_size + 2, "boxes that belong to nobody"


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_a_polite_stop_leaves_sessions_to_the_next(runtime: str, state_dir: Path) -> None:
    """Warm boxes go: they hold nothing."""
    request = ExecuteRequest(thread_id="t", command="n=$((n+1)); echo $n")
    async with running(runtime, state_dir) as server, RemoteBackend(server.url) as client:
        assert (await insist(client, request)).output == "1\n"
        while (await client.health()).pool_size == 0:
            await asyncio.sleep(0.05)
        await server.stop(signal.SIGINT)
        async with make_runtime(runtime, state_dir) as boxes:
            assert len(await boxes.boxes(server.name)) == 1
        told = json.loads(server.lines()[-1])
        assert (told["event"], told["sessions"]) == ("server.stopped", 1)
        assert 2000 < (datetime.fromisoformat(told["until"]) - datetime.now(UTC)).seconds <= 2100
        await server.start()
        result = await insist(client, request)
        assert (result.output, result.generation, result.session_state) == ("2\n", 1, "live")


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_a_server_told_so_takes_its_boxes_along(runtime: str, state_dir: Path) -> None:
    async with running(runtime, state_dir, SANDBOX_DESTROY_ON_EXIT="1") as server:
        async with RemoteBackend(server.url) as client:
            await insist(client, ExecuteRequest(thread_id="t", command="true"))
        await server.stop(signal.SIGTERM)
        async with make_runtime(runtime, state_dir) as boxes:
            assert await boxes.boxes(server.name) == []
        await server.start()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_a_stream_goes_on_with_the_next_server(
    runtime: str, state_dir: Path, how: signal.Signals
) -> None:
    command = "echo x >> runs; for i in $(seq 250); do echo line $i; sleep 0.02; done; cat runs"
    request = ExecuteRequest(thread_id="t", command=command, timeout=120)
    async with (
        running(runtime, state_dir, SANDBOX_DRAIN_TIMEOUT="1") as server,
        RemoteBackend(server.url, retry_for_s=120) as client,
    ):
        await insist(client, ExecuteRequest(thread_id="t", command="true"))
        text, restarts, reached = "", 0, 0
        async for event in client.stream(request):
            if isinstance(event, OutputEvent):
                assert event.offset == reached
                text, reached = text + event.data, event.next_offset
                if restarts < 2 and text.count("\n") > 60 * (restarts + 1):
                    restarts += 1
                    await server.stop(how)
                    await server.start()
        assert restarts == 2
        assert text == "".join(f"line {i}\n" for i in range(1, 251)) + "x\n"
        assert isinstance(event, ExitEvent)
        assert (event.exit_code, event.generation) == (0, 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
async def test_a_call_goes_on_with_the_next_server(state_dir: Path, how: signal.Signals) -> None:
    """One that takes longer than a server that stops may take is ended there, and repeated."""
    command = "echo x >> runs; touch begun; until [ -e go ]; do sleep 0.1; done; cat runs"
    request = ExecuteRequest(thread_id="t", command=command, timeout=120)
    async with (
        running(RUNTIMES[0], state_dir, SANDBOX_DRAIN_TIMEOUT="1") as server,
        RemoteBackend(server.url, retry_for_s=120) as client,
    ):
        await insist(client, ExecuteRequest(thread_id="t", command="true"))
        calling = asyncio.create_task(client.execute(request))
        wait = "until [ -e begun ]; do sleep 0.1; done"
        await client.execute(ExecuteRequest(thread_id="t", command=wait))
        await server.stop(how)
        await server.start()
        await insist(client, ExecuteRequest(thread_id="t", command="touch go"))
        result = await calling
    assert (result.output, result.generation) == ("x\n", 1)
