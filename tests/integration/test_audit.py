"""The audit log of whole servers: over HTTP, through a coordinator, killed, on a full disk."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox_server.audit.verifying import verify_log
from tests.contract.conftest import RUNTIMES, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import GRACE_S, Fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess, running

__all__ = ["redis_server", "state_dir"]

needs_boxes = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def operations(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each operation."""
    return {line["operation"]: line for line in lines(path) if line["kind"] == "operation"}


async def use(http: httpx.AsyncClient) -> None:
    """Something of each kind, and a refusal."""
    run = {"thread_id": "t", "command": "echo hello"}
    answer = await http.post("/execute", json=run, headers={"X-Request-ID": "the-run"})
    assert answer.status_code == 200, answer.text
    await http.post("/execute", json={**run, "command": "false"}, headers={"Accept": EVENTS})
    stored = {"file": ("a.txt", b"12345")}
    await http.post("/upload_file", data={"thread_id": "t", "path": "/workspace/a.txt"},
                    files=stored)  # fmt: skip
    await http.get("/download_file", params={"thread_id": "t", "path": "/workspace/a.txt"})
    rejected = await http.post("/execute", json={**run, "command": "reboot"})
    assert rejected.json()["error"]["code"] == "command_rejected"
    missing = await http.post("/cleanup", json={"thread_id": "nobody"})
    assert missing.status_code == 404
    await http.post("/cleanup", json={"thread_id": "t"})


EVENTS = "text/event-stream"


def check(path: Path) -> None:
    found = operations(path)
    assert {"execute", "stream", "upload", "download", "cleanup"} <= found.keys()
    refused = [line for line in lines(path) if line.get("outcome") == "command_rejected"]
    assert [line["operation"] for line in refused] == ["execute"]
    outcomes = [line["outcome"] for line in lines(path) if line.get("operation") == "cleanup"]
    assert outcomes[-2:] == ["session_not_found", "ok"]
    assert (found["upload"]["bytes_in"], found["upload"]["path"]) == (5, "/workspace/a.txt")
    assert found["download"]["bytes_out"] == 5
    assert found["stream"]["exit_code"] == 1
    ran = next(line for line in lines(path) if line.get("exit_code") == 0)
    assert (ran["tenant"], ran["thread_id"], ran["bytes_out"]) == ("acme", "t", 6)
    verdict = next(line for line in lines(path) if line["kind"] == "verdict")
    assert (verdict["command"], verdict["command_sha256"]) == ("echo hello", ran["command_sha256"])
    report = verify_log(path)
    assert (report.problems, report.notes) == ([], [])


@needs_boxes
async def test_over_http(state_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    keys = {"SANDBOX_API_KEYS": "acme:k1,other:k2", "SANDBOX_AUDIT_LOG": str(path)}
    async with running("bubblewrap", state_dir, **keys) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            http.headers["X-API-Key"] = "k1"
            await use(http)
            assert (await http.get("/health")).json()["checks"]["audit"] == "ok"
        await server.stop(signal.SIGTERM)
    check(path)
    assert any(line.get("request_id") == "the-run" for line in lines(path))
    shown = subprocess.run(
        [sys.executable, "-m", "sandbox_sdk", "audit", "verify", "--json"],
        env={**os.environ, "SANDBOX_AUDIT_LOG": str(path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(shown.stdout)["whole"] is True
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2] + whole[3:]))
    shown = subprocess.run(
        [sys.executable, "-m", "sandbox_sdk", "audit", "verify", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 1
    assert f"{path}:3: line 3 of the log before this one: removed" in shown.stdout


@pytest.fixture
async def fleet(redis_server: RedisServer, state_dir: Path) -> AsyncIterator[Fleet]:
    made = Fleet("bubblewrap", state_dir, redis_server, grace_s=GRACE_S)
    try:
        yield made
    finally:
        await made.close()


@needs_boxes
async def test_through_a_coordinator_the_worker_records(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    worker = fleet.process("worker", SANDBOX_AUDIT_LOG=str(path))
    coordinator = fleet.process("coordinator", SANDBOX_API_KEYS="acme:k1,other:k2")
    await fleet.run([worker], [coordinator])
    async with httpx.AsyncClient(base_url=coordinator.url, timeout=60) as http:
        http.headers["X-API-Key"] = "k1"
        await use_routed(http)
    await worker.stop(signal.SIGTERM)
    found = operations(path)
    assert {"execute", "upload", "cleanup"} <= found.keys()
    assert {line["tenant"] for line in lines(path) if "tenant" in line} == {"acme"}
    assert verify_log(path).problems == []


async def use_routed(http: httpx.AsyncClient) -> None:
    run = {"thread_id": "t", "command": "echo hello"}
    assert (await http.post("/execute", json=run)).status_code == 200
    await http.post("/upload_file", data={"thread_id": "t", "path": "/workspace/a.txt"},
                    files={"file": ("a.txt", b"12345")})  # fmt: skip
    await http.post("/cleanup", json={"thread_id": "t"})


@needs_boxes
async def test_processes_have_a_chain_each(state_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    settings = {"SANDBOX_PROCESSES": "2", "SANDBOX_AUDIT_LOG": str(path)}
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.healthy()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            for number in range(8):
                run = {"thread_id": f"t-{number}", "command": "true"}
                assert (await http.post("/execute", json=run)).status_code == 200
        await server.stop(signal.SIGTERM)
    report = verify_log(path)
    assert (report.problems, report.chains) == ([], 2)
    threads = {
        line["thread_id"]
        for each in (path, tmp_path / "audit.log~1")
        for line in lines(each)
        if line.get("operation") == "execute"
    }
    assert len(threads) == 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def audited(server: ServerProcess, http: httpx.AsyncClient, wanted: str) -> str:
    """What /health says of the audit log, once it begins as wanted."""
    async with asyncio.timeout(30):
        while True:
            checks = (await http.get("/health")).json()["checks"]
            if checks["audit"].startswith(wanted):
                return str(checks["audit"])
            await asyncio.sleep(0.05)


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass


@needs_boxes
@pytest.mark.parametrize("full", ["refuse", "continue"])
async def test_a_full_disk(state_dir: Path, small_disk: Path, full: str) -> None:
    path = small_disk / "audit.log"
    settings = {"SANDBOX_AUDIT_LOG": str(path), "SANDBOX_AUDIT_FULL": full}
    run = {"thread_id": "t", "command": "true"}
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            assert (await http.post("/execute", json=run)).status_code == 200
            filler = small_disk / "filler"
            _fill(filler)
            for _ in range(100):  # Until the last page of the file is full, too.
                answer = await http.post("/execute", json=run)
                if "cannot" in (await http.get("/health")).json()["checks"]["audit"]:
                    break
            assert "No space left on device" in await audited(server, http, "cannot be written")
            answer = await http.post("/execute", json=run)
            if full == "refuse":
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    503,
                    "audit_unavailable",
                )
                assert answer.headers["Retry-After"] == "5"
                assert (await http.get("/health")).status_code == 503
            else:
                assert answer.status_code == 200
                assert (await http.get("/health")).json()["status"] == "degraded"
            filler.unlink()
            await audited(server, http, "ok")
            assert (await http.post("/execute", json=run)).status_code == 200
        await server.stop(signal.SIGTERM)
    (told,) = [line for line in lines(path) if line["kind"] == "interruption"]
    assert (told["refused"] > 0) == (full == "refuse")
    assert verify_log(path).problems == []
    assert sum("audit.failed" in line for line in server.lines()) == 1


@needs_boxes
async def test_a_disk_that_is_full_from_the_start(state_dir: Path, small_disk: Path) -> None:
    path = small_disk / "logs" / "audit.log"
    filler = small_disk / "filler"
    _fill(filler)
    settings = {"SANDBOX_AUDIT_LOG": str(path), "SANDBOX_AUDIT_FULL": "refuse"}
    refusing = ServerProcess("bubblewrap", state_dir, settings)
    await refusing.start()
    assert await refusing.ended() != 0
    run = {"thread_id": "t", "command": "true"}
    settings["SANDBOX_AUDIT_FULL"] = "continue"
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            assert "No space left on device" in await audited(server, http, "cannot be written")
            assert (await http.post("/execute", json=run)).status_code == 200
            assert (await http.get("/health")).json()["status"] == "degraded"
            assert (
                'sandbox_audit_failures_total{process="0"} 1' in (await http.get("/metrics")).text
            )
            filler.unlink()
            await audited(server, http, "ok")
            assert (await http.post("/execute", json=run)).status_code == 200
        await server.stop(signal.SIGTERM)
    assert lines(path)[0]["kind"] == "begin"
    assert {"interruption", "operation"} <= {line["kind"] for line in lines(path)}
    assert verify_log(path).problems == []
    assert sum("audit.failed" in line for line in server.lines()) == 1


WRITER = """
import sys
from pathlib import Path
from sandbox_server.audit.log import AuditLog, AuditSettings
log = AuditLog(Path(sys.argv[1]), AuditSettings(size=20_000, count=1000))
print("writes", flush=True)
while True:
    for number in range(50):
        log.record("test", number=number, text="x" * 500)
    log.flush()
"""


@pytest.mark.rest
def test_twenty_kills_in_mid_write(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for _ in range(20):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        with writer.stdout:
            writer.stdout.readline()
            before = len(list(tmp_path.iterdir()))
            while len(list(tmp_path.iterdir())) < before + 2:
                pass
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        assert verify_log(path).problems == []
    assert verify_log(path).lines > 1000
