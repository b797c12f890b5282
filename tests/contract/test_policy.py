"""Every way in passes the gate: no command reaches a box that the policy rejects."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from sandbox_sdk import AsyncSandboxClient
from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.policy.policy import Policy
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.service.gate import Gate
from tests.contract.stand import LIMITS, RoutedStand, Stand, served

pytestmark = pytest.mark.wire

REJECTED = "touch ran; bash -c 'rm -rf /'"
WayIn = Callable[[Stand, str], Awaitable[None]]


def request(command: str, **options: bool) -> ExecuteRequest:
    return ExecuteRequest.model_validate({"thread_id": "t", "command": command, **options})


async def by_service(stand: Stand, command: str) -> None:
    await stand.sandboxes.execute(request(command))


async def by_service_stream(stand: Stand, command: str) -> None:
    async for _ in stand.sandboxes.stream(request(command)):
        pass


async def in_the_background(stand: Stand, command: str) -> None:
    await stand.sandboxes.execute(request(command, background=True))


async def by_backend(stand: Stand, command: str) -> None:
    async with served(stand.service) as url, RemoteBackend(url) as remote:
        await remote.execute(request(command))


async def by_backend_stream(stand: Stand, command: str) -> None:
    async with served(stand.service) as url, RemoteBackend(url) as remote:
        async for _ in remote.stream(request(command)):
            pass


async def by_http(stand: Stand, command: str) -> None:
    await post(stand, {"thread_id": "t", "command": command}, {})


async def by_events(stand: Stand, command: str) -> None:
    await post(stand, {"thread_id": "t", "command": command}, {"accept": "text/event-stream"})


async def by_session_id(stand: Stand, command: str) -> None:
    made = await stand.sandboxes.execute(request("true"))
    body = {"session_id": made.session_id, "command": command, "background": True}
    await post(stand, body, {})


async def post(stand: Stand, body: dict[str, object], headers: dict[str, str]) -> None:
    async with served(stand.service) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/execute", json=body, headers=headers, timeout=60)
    if answer.is_error:
        told = answer.json()["error"]
        assert answer.status_code == 403
        raise errors.SandboxError.from_wire(told["code"], told["message"], told["details"])


async def by_coordinator(stand: Stand, command: str) -> None:
    assert isinstance(stand, RoutedStand)
    async with RemoteBackend(stand.coordinator_url) as remote:
        await remote.execute(request(command))


async def by_coordinator_stream(stand: Stand, command: str) -> None:
    assert isinstance(stand, RoutedStand)
    async with RemoteBackend(stand.coordinator_url) as remote:
        async for _ in remote.stream(request(command)):
            pass


async def by_client(stand: Stand, command: str) -> None:
    async with (
        served(stand.service) as url,
        AsyncSandboxClient("t", backend=RemoteBackend(url)) as client,
    ):
        await client.execute(command)


async def by_background_process(stand: Stand, command: str) -> None:
    async with (
        served(stand.service) as url,
        AsyncSandboxClient("t", backend=RemoteBackend(url)) as client,
    ):
        await client.start(command)


async def by_command_line(stand: Stand, command: str) -> None:
    async with served(stand.service) as url:
        program = (str(Path(sys.executable).with_name("sandbox")), "run", "--json", "--thread", "t")
        process = await asyncio.create_subprocess_exec(
            *program, "--url", url, "--no-stdin", command, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
    for line in told.splitlines():
        if error := json.loads(line).get("error"):
            raise errors.SandboxError.from_wire(error["code"], error["message"], error["details"])


WAYS_IN: list[WayIn] = [
    by_service,
    by_service_stream,
    in_the_background,
    by_backend,
    by_backend_stream,
    by_http,
    by_events,
    by_session_id,
    by_coordinator,
    by_coordinator_stream,
    by_client,
    by_background_process,
    by_command_line,
]


@pytest.mark.seam
@pytest.mark.one_way
@pytest.mark.parametrize("way_in", WAYS_IN)
async def test_every_way_in_passes_the_gate(stand: Stand, way_in: WayIn) -> None:
    with pytest.raises(errors.CommandRejected) as caught:
        await way_in(stand, REJECTED)
    assert caught.value.details["rule"] == "remove-root"
    assert caught.value.details["command"] == "bash -c 'rm -rf /'"
    assert caught.value.details["start"] == REJECTED.index("bash")
    await way_in(stand, "touch allowed")
    result = await stand.sandboxes.execute(request("until [ -e allowed ]; do sleep 0.1; done; ls"))
    assert result.output == "allowed\n"


async def test_a_dry_run_tells_and_does_nothing(sandboxes: Sandboxes) -> None:
    verdict = await sandboxes.check(request("touch ran; reboot"))
    assert (verdict.allowed, verdict.rule, verdict.policy) == (False, "shutdown", "default")
    assert [command.argv for command in verdict.commands] == [["touch", "ran"], ["reboot"]]
    assert (await sandboxes.check(request("touch ran"))).allowed
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(Target(thread_id="t"))


async def test_a_dry_run_is_not_executed(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.InvalidRequest):
        await sandboxes.execute(request("touch ran", dry_run=True))
    with pytest.raises(errors.InvalidRequest):
        async for _ in sandboxes.stream(request("touch ran", dry_run=True)):
            pass


async def test_a_dry_run_in_a_session_that_is_not_there(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.check(ExecuteRequest(session_id="none", command="ls"))


async def test_where_a_session_stands_counts(sandboxes: Sandboxes) -> None:
    await sandboxes.execute(request("cd / && pwd"))
    with pytest.raises(errors.CommandRejected):
        await sandboxes.execute(request("rm -rf *"))


@pytest.fixture
def strict(stand: Stand) -> SandboxService:
    facts = ServiceFacts(worker_id="strict", runtime="any", limits=LIMITS)
    gate = Gate(Policy.read("strict"))
    return SandboxService(stand.worker.table, facts, health=stand.worker.health, gate=gate)


@pytest.mark.one_way
async def test_under_a_whitelist_a_name_means_the_program(
    stand: Stand, strict: SandboxService
) -> None:
    """A program of the same name, where the box's own PATH begins, is not run."""
    place = "/workspace/.local/bin"
    fake = f"printf '#!/bin/sh\\necho fake\\n' > {place}/nproc; chmod +x {place}/nproc"
    await stand.sandboxes.execute(request(f"mkdir -p {place}; {fake}; PATH={place}:$PATH"))
    assert (await stand.sandboxes.execute(request("nproc"))).output == "fake\n"
    assert (await strict.of(SOLE_TENANT).execute(request("nproc"))).output != "fake\n"
