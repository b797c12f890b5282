"""The network of a whole server: its settings, its environments, its audit log."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import InvalidRequest, RateLimited
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.checks import check_settings
from sandbox_server.main import open_service
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES, state_dir
from tests.egress import internet
from tests.internet import HERE, PIECE, Internet
from tests.run import run_owner
from tests.server_process import ServerProcess, running

__all__ = ["internet", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


async def test_from_settings_to_the_audit_log(
    state_dir: Path, tmp_path: Path, internet: Internet
) -> None:
    registry, audit = tmp_path / "registry", tmp_path / "audit.log"
    (registry / "environments").mkdir(parents=True)
    (registry / "environments" / "closed.yaml").write_text("name: closed\nnetwork: none\n")
    (registry / "environments" / "other.yaml").write_text(
        f"name: other\nnetwork: allowlist\nallow: ['{HERE}:{internet.https}']\nwarm: 1\n"
    )
    settings = load(
        runtime="bubblewrap",
        pool_size=1,
        min_pool_size=1,
        worker_id=run_owner("egress-settings"),
        state_dir=state_dir,
        destroy_on_exit=True,
        registry=registry,
        audit_log=audit,
        network="allowlist",
        network_allow=f"{HERE}:{internet.http}",
    )
    get = f"curl -sS --noproxy '' http://{HERE}:{internet.http}/hello"
    async with open_service(settings) as service:
        sandboxes = service.of(SOLE_TENANT)

        async def output(thread_id: str) -> str:
            request = ExecuteRequest(thread_id=thread_id, command=get)
            return (await sandboxes.execute(request)).output

        assert await output("usual") == "hello\n"
        for environment, network in (("closed", "none"), ("other", "allowlist")):
            made = await sandboxes.create_session(
                CreateSessionRequest(thread_id=environment, environment=environment)
            )
            assert made.limits.network == network
        assert "Failed to connect" in await output("closed")
        assert f"Allowed are: {HERE}:{internet.https}." in await output("other")
        with pytest.raises(InvalidRequest, match="SANDBOX_MAX_NETWORK"):
            await sandboxes.create_session(CreateSessionRequest(network="open"))
        info = await sandboxes.session(Target(thread_id="usual"))
        assert info.egress is not None
        assert info.egress.connections == 1
        assert info.limits.network_allow == [f"{HERE}:{internet.http}"]
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    found = [line for line in lines if line.get("kind") == "connection"]
    fields = ("tenant", "thread", "host", "port", "method", "verdict")
    assert [tuple(line[name] for name in fields) for line in found] == [
        (SOLE_TENANT, "usual", HERE, internet.http, "GET", "allowed"),
        (SOLE_TENANT, "other", HERE, internet.http, "GET", "refused"),
    ]
    assert found[0]["session"] == info.session_id
    assert min(found[0]["bytes_in"], found[0]["bytes_out"]) > 50
    assert "may not GET" in found[1]["why"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"network_allow": "index"}, "no preset 'index'; did you mean indexes"),
        ({"network_allow": "http://a.test/"}, "SANDBOX_NETWORK_ALLOW: 'http://a.test/'"),
        ({"network_presets": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
async def test_rules_that_mean_nothing(state_dir: Path, given: dict[str, str], told: str) -> None:
    settings = load(runtime="bubblewrap", state_dir=state_dir, network="allowlist", **given)
    with pytest.raises(InvalidRequest, match=told):
        await check_settings(settings)


def test_more_than_is_allowed() -> None:
    with pytest.raises(InvalidRequest, match="SANDBOX_NETWORK=open is more than"):
        load(network="open", max_network="allowlist")


async def counted(server: ServerProcess, state_dir: Path, least: int) -> None:
    """Wait until the usage ledger of a server has so many bytes. It writes by itself."""
    ledger = f"file:{state_dir / server.name}.usage?mode=ro"
    async with asyncio.timeout(60):
        while True:
            with sqlite3.connect(ledger, uri=True) as database:
                (found,) = database.execute("select sum(egress_bytes) from session_days").fetchone()
            database.close()
            if (found or 0) >= least:
                return
            await asyncio.sleep(0.1)


async def test_bytes_of_a_day_stay_counted_over_restarts(
    state_dir: Path, internet: Internet
) -> None:
    """Of a session and of a tenant, when the server was killed, and when it was stopped at once."""
    settings = {
        "SANDBOX_NETWORK": "allowlist",
        "SANDBOX_NETWORK_ALLOW": f"{HERE}:{internet.http}",
        "SANDBOX_NETWORK_BYTES": "1m",
        "SANDBOX_BUDGETS": "*:egress_bytes=1500k",
    }
    curl = f"curl -s --noproxy '' http://{HERE}:{internet.http}"
    async with (
        running("bubblewrap", state_dir, **settings) as server,
        RemoteBackend(server.url, retry_for_s=60) as client,
    ):

        async def output(thread_id: str, path: str) -> str:
            request = ExecuteRequest(thread_id=thread_id, command=f"{curl}{path} | tail -c 1000")
            return (await client.execute(request)).output

        await server.ready()
        for number in (signal.SIGKILL, signal.SIGTERM):
            await output("t", "/large?pieces=8")
            if number is signal.SIGKILL:
                await counted(server, state_dir, 8 * len(PIECE))
            await server.stop(number)
            await server.start()
            await server.ready()
        told = await output("t", "/hello")
        assert "has used the 1 MiB of network traffic" in told, server.log()
        await output("other", "/large?pieces=8")
        (total,) = (await client.usage(by="total")).rows
        assert total.egress_bytes > 1_500_000
        with pytest.raises(RateLimited, match="the budget of egress_bytes is used up"):
            await output("other", "/hello")


async def until(held: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while not await held():
            await asyncio.sleep(0.05)


async def test_presets_change_while_the_server_runs(
    state_dir: Path, tmp_path: Path, internet: Internet
) -> None:
    """For sessions that run, too: what is open and not allowed any more is cut."""
    presets = tmp_path / "presets"
    presets.mkdir()
    file = presets / "mine.yaml"
    http, other = (f"rules: [{{host: '{HERE}:{port}'}}]\n" for port in (internet.http, 9))
    file.write_text(other)
    settings = load(
        runtime="bubblewrap",
        pool_size=0,
        worker_id=run_owner("egress-presets"),
        state_dir=state_dir,
        destroy_on_exit=True,
        network="allowlist",
        network_allow="mine",
        network_presets=presets,
    )
    curl = f"curl -sS --noproxy '' http://{HERE}:{internet.http}"
    async with open_service(settings) as service:
        sandboxes = service.of(SOLE_TENANT)

        async def reaches() -> bool:
            request = ExecuteRequest(thread_id="t", command=f"{curl}/hello")
            return (await sandboxes.execute(request)).output == "hello\n"

        def told_of(problem: str) -> Callable[[], Awaitable[bool]]:
            async def told() -> bool:
                return problem in (await service.health()).checks.get("network presets", "")

            return told

        assert not await reaches()
        file.write_text(http)
        await until(reaches)
        info = await sandboxes.session(Target(thread_id="t"))
        assert info.limits.network_allow == [f"{HERE}:{internet.http}"]
        long = f"{curl}/large?pieces=9999999 -p -o /dev/null -x http://127.0.0.1:3128"
        running = asyncio.create_task(
            sandboxes.execute(ExecuteRequest(thread_id="t", command=long, timeout=60))
        )
        await until(lambda: asyncio.sleep(0, any("/large" in seen.path for seen in internet.seen)))
        file.write_text("rules: [{hots: a.test}]")
        await until(told_of(f"{file}:1: rules.0.host"))
        assert (await service.health()).status == "degraded"
        assert await reaches(), "the last good one counts"
        file.unlink()
        await until(told_of("no preset 'mine'"))
        assert await reaches()
        assert not running.done()
        file.write_text(other)
        assert (await running).exit_code != 0
        assert not await reaches()
        assert "network presets" not in (await service.health()).checks
