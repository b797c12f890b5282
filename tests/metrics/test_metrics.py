"""What servers show at /metrics, and that a real Prometheus takes it."""

import asyncio
import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from sandbox_sdk import AsyncSandboxClient, CommandRejected, SessionLost
from sandbox_sdk.backends.remote import RemoteBackend
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import KEY, Fleet
from tests.fleet.redis_server import RedisServer
from tests.metrics.page import documented, shown, total
from tests.metrics.prometheus_server import PrometheusServer, promtool
from tests.metrics.test_deploy import DASHBOARD
from tests.ports import free_port
from tests.server_process import ServerProcess, running
from tests.waiting import until_true

__all__ = ["redis_server", "state_dir"]

pytestmark = [
    pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="needs bubblewrap"),
    pytest.mark.timeout(300),
]
COMMANDS = "sandbox_commands_total"


async def scraped(url: str, key: str = "") -> str:
    """On a connection of its own, which any process may get."""
    headers = {"x-api-key": key} if key else {}
    # One that comes to a process that is being restarted waits for it.
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        answer = await http.get(f"{url}/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.text


def client_of(server: ServerProcess, thread: str, key: str | None = None) -> AsyncSandboxClient:
    backend = RemoteBackend(server.url, api_key=key, retry_for_s=60)
    return AsyncSandboxClient(thread, backend=backend)


async def test_a_server_shows_what_is_documented_and_nothing_else(
    state_dir: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    port = free_port()
    settings = {"SANDBOX_METRICS_PORT": str(port), "SANDBOX_API_KEYS": "acme:k"}
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.healthy()
        async with client_of(server, "t", "k") as sandbox:
            await sandbox.execute("true")
        own = f"http://127.0.0.1:{port}"
        text = await scraped(own)

        with subtests.test("by name, kind and labels, in both directions"):
            assert shown(text) == documented()
        with subtests.test("no thread, tenant or command"):
            assert '"t"' not in text
            assert "acme" not in text
        with subtests.test("promtool finds nothing wrong"):
            promtool("check", "metrics", stdin=text.encode())
        with subtests.test("the API's port needs the key"):
            async with httpx.AsyncClient(base_url=server.url) as http:
                assert (await http.get("/metrics")).status_code == 401
                for path in ("/nothing", "/nothing/else", "/metrics/"):
                    await http.get(path, headers={"x-api-key": "k"})
            text = await scraped(server.url, "k")
            count = "sandbox_http_request_duration_seconds_count"
            assert total(text, count, route="/metrics", code="401") == 1
            assert total(text, count, route="none") >= 2
            assert "/nothing" not in text
        with subtests.test("Prometheus has every name, and takes every expression of Grafana's"):
            async with PrometheusServer(tmp_path / "prometheus", [f"127.0.0.1:{port}"]) as found:
                await found.until("sum(sandbox_sessions)", 1)
                for name, (kind, _) in documented().items():
                    stored = f"{name}_count" if kind == "histogram" else name
                    await found.until(f"count({stored})", 1)
                for panel in json.loads(DASHBOARD.read_text())["panels"]:
                    for target in panel["targets"]:
                        asked = target["expr"].replace("$__rate_interval", "5s")
                        await found.query(asked.replace("$instance", ".*"))


async def test_what_happens_is_counted(state_dir: Path) -> None:
    async with running("bubblewrap", state_dir) as server:
        await server.healthy()
        async with client_of(server, "t") as sandbox:
            await sandbox.execute("true")
            await sandbox.execute("exit 3")
            await sandbox.execute("sleep 60", timeout=0.2)
            await sandbox.execute("kill -9 $$")
            with pytest.raises(CommandRejected):
                await sandbox.execute("rm -rf /")
            async for _ in sandbox.stream("echo streamed"):
                pass
            await sandbox.start("true")
            await sandbox.upload_bytes(b"x" * 1000, "a")
            assert len(await sandbox.download_bytes("a")) == 1000
            kept = await sandbox.checkpoint()
            await sandbox.rewind(kept.checkpoint_id)

            async def background_ended() -> bool:
                return total(await scraped(server.url), COMMANDS, outcome="ok") == 3

            await until_true(background_ended)
            running_one = asyncio.create_task(sandbox.execute("sleep 60"))
            lost = asyncio.create_task(_destroyed(server, state_dir))
            with pytest.raises(SessionLost):
                await running_one
            await lost
            text = await scraped(server.url)
    for outcome, number in {"ok": 3, "failed": 1, "timeout": 1, "killed": 1, "rejected": 1,
                            "lost": 1, "error": 0, "left": 0}.items():  # fmt: skip
        assert total(text, COMMANDS, outcome=outcome) == number, outcome
    assert total(text, "sandbox_command_duration_seconds_count") == 6
    assert total(text, "sandbox_policy_verdicts_total", verdict="rejected") == 1
    assert total(text, "sandbox_file_bytes_total", direction="upload") == 1000
    assert total(text, "sandbox_file_bytes_total", direction="download") == 1000
    checkpoints = "sandbox_checkpoint_duration_seconds_count"
    assert total(text, checkpoints, operation="take", outcome="ok") == 1
    assert total(text, checkpoints, operation="restore", outcome="ok") == 1
    for how in ("created", "restored"):
        assert total(text, "sandbox_sessions_begun_total", how=how) == 1
    for reason in ("cleaned", "lost"):
        assert total(text, "sandbox_sessions_ended_total", reason=reason) == 1
    assert total(text, "sandbox_pool_claims_total") == 2
    assert total(text, "sandbox_box_start_duration_seconds_count") >= 2
    assert total(text, "sandbox_sessions") == 0


async def _destroyed(server: ServerProcess, state_dir: Path) -> None:
    """End the box of the session once its command runs."""
    async with httpx.AsyncClient(base_url=server.url) as http:

        async def runs() -> bool:
            answer = await http.get("/commands", params={"thread_id": "t"})
            return any(each["running"] for each in answer.json()["commands"])

        await until_true(runs)
        session = (await http.get("/session", params={"thread_id": "t"})).json()
    async with make_runtime("bubblewrap", state_dir) as runtime:
        for box in await runtime.boxes(server.name):
            if box.id == session["sandbox_id"]:
                await box.destroy()


async def test_without_metrics_there_is_no_route(state_dir: Path) -> None:
    async with running("bubblewrap", state_dir, SANDBOX_METRICS="false") as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/metrics")).status_code == 404


async def test_processes_are_told_together_and_never_fall(state_dir: Path) -> None:
    port = free_port()
    settings = {"SANDBOX_PROCESSES": "3", "SANDBOX_METRICS_PORT": str(port)}
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.healthy()
        for number in range(8):
            async with client_of(server, f"t{number}") as sandbox:
                await sandbox.execute("true")
        for url in (*[server.url] * 8, f"http://127.0.0.1:{port}"):
            text = await scraped(url)
            assert shown(text) == documented()
            assert total(text, COMMANDS, outcome="ok") == 8
            assert total(text, "sandbox_sessions") == 8
            assert total(text, "sandbox_process_up") == 3
        one = {str(n): total(text, COMMANDS, process=str(n)) for n in range(3)}

        # A killed process is missing, told as such, and begins again; the others go on.
        os.kill(server.children()[2], signal.SIGKILL)

        async def restarted() -> bool:
            text = await scraped(server.url)
            for name in ("0", "1"):
                assert total(text, COMMANDS, process=name) == one[name]
            assert total(text, COMMANDS, process="2") == 0
            return total(text, "sandbox_sessions_begun_total", how="adopted") > 0

        await until_true(restarted)
        await server.healthy()
        assert total(await scraped(server.url), "sandbox_process_up") == 3


async def test_a_fleet(state_dir: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    fleet = Fleet("bubblewrap", state_dir, redis_server, grace_s=20)
    ports = [free_port(), free_port()]
    roles = ("worker", "coordinator")
    servers = [
        fleet.process(role, SANDBOX_METRICS_PORT=str(port))
        for role, port in zip(roles, ports, strict=True)
    ]
    try:
        await fleet.run(servers[:1], servers[1:])
        async with client_of(servers[1], "t") as sandbox:
            await sandbox.execute("true")
            worker, coordinator = [await scraped(f"http://127.0.0.1:{port}") for port in ports]
            assert shown(worker) == documented()
            assert shown(coordinator) == documented(boxes=False)
            assert shown(await scraped(servers[0].url, KEY)) == documented()
            count = "sandbox_http_request_duration_seconds_count"
            for text in (worker, coordinator):
                assert total(text, count, route="/execute", code="200") == 1
            assert total(worker, COMMANDS, outcome="ok") == 1
            assert total(coordinator, COMMANDS) == 0
            for text in (worker, coordinator):
                assert total(text, "sandbox_redis_errors_total") == 0
                promtool("check", "metrics", stdin=text.encode())

            targets = [f"127.0.0.1:{port}" for port in ports]
            async with PrometheusServer(tmp_path / "prometheus", targets) as found:
                await found.until("count(sandbox_build_info)", 2)
                await redis_server.stop()
                async with httpx.AsyncClient(timeout=60) as http:  # The worker renews its lease.
                    assert (await http.get(f"{servers[1].url}/sessions")).status_code == 503
                await found.until("min(sandbox_redis_errors_total)", 1)
    finally:
        await fleet.close()
