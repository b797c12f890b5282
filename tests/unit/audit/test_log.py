"""The audit log on a disk that is full, and for several writers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.audit.log import AuditLog, AuditSettings
from sandbox_server.audit.verifying import verify_log
from sandbox_server.metrics.prometheus import PrometheusMetrics
from sandbox_server.policy.policy import Policy
from sandbox_server.service.gate import Gate
from tests.unit.policy.test_gate import admit


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("commands", "has"),
    [
        ("text", {"command", "command_bytes", "command_sha256"}),
        ("hash", {"command_bytes", "command_sha256"}),
        ("off", set()),
    ],
)
async def test_what_lines_have_of_commands(tmp_path: Path, commands: str, has: set[str]) -> None:
    with AuditLog(tmp_path / "a.log", AuditSettings(commands=commands)) as audit:  # type: ignore[arg-type]
        await admit(Gate(Policy.read("default"), audit=audit), "echo secret")
    line = lines(tmp_path / "a.log")[-1]
    assert {name for name in line if name.startswith("command")} == has
    assert ("secret" in json.dumps(line)) == (commands == "text")


def test_every_writer_has_a_chain_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with AuditLog(path) as first, AuditLog(path) as second:
        first.record("test")
        second.record("test")
        assert "a.log~1" in repr(second)
    with AuditLog(path) as first:
        first.record("test")
    report = verify_log(path)
    assert (report.problems, report.chains, report.lines) == ([], 2, 5)
    (tmp_path / "a.log~1").write_bytes(b"")
    assert [problem.file for problem in verify_log(path).problems] == [f"{path}~1"]


FULL = """
import json, sys, resource, signal
from pathlib import Path
from sandbox_sdk.protocol.errors import AuditUnavailable
from sandbox_server.audit import log as audit_log
from sandbox_server.audit.log import AuditLog, AuditSettings
audit_log.AGAIN_S, audit_log.MOST_HELD = 0.01, 5
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, full = Path(sys.argv[1]), sys.argv[2]
log = AuditLog(path, AuditSettings(full=full))
said = {}
with log:
    for number in range(20):
        log.record("test", number=number)
        log.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, resource.RLIM_INFINITY))
    for number in range(20, 30):
        log.record("test", number=number)
        log.flush()
    said["check"] = log.check
    try:
        log.require()
        said["refused"] = None
    except AuditUnavailable as exc:
        said["refused"] = exc.code, exc.status, exc.message
    said["size"] = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log.flush()
    said["after"] = log.check
    log.require()
    said["lost"], said["failures"] = log.lost, log.failures
print("\\n" + json.dumps(said))
"""


@pytest.mark.parametrize("full", ["refuse", "continue"])
def test_a_disk_that_is_full_and_then_is_not(tmp_path: Path, full: str) -> None:
    path = tmp_path / "a.log"
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(path), full],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["check"] == "cannot be written: File too large; 5 wait, 5 lost"
    assert (said["after"], said["lost"], said["failures"]) == ("ok", 5, 1)
    if full == "refuse":
        code, status, message = said["refused"]
        assert (code, status) == ("audit_unavailable", 503)
        assert "File too large" in message
    else:
        assert said["refused"] is None
    assert ran.stdout.count("audit.failed") == 1
    found = lines(path)
    numbers = [line["number"] for line in found if line["kind"] == "test"]
    assert numbers == list(range(25))
    (told,) = [line for line in found if line["kind"] == "interruption"]
    assert (told["lost"], told["refused"]) == (5, int(full == "refuse"))
    assert verify_log(path).problems == []


def test_a_log_that_cannot_be_opened_yet(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.write_text("in the way")
    path = folder / "a.log"
    with pytest.raises(RuntimeUnavailable, match=r"the audit log .*a\.log cannot be written"):
        AuditLog(path, AuditSettings(full="refuse"))
    metrics = PrometheusMetrics(role="standalone", version="1")
    with AuditLog(path, AuditSettings(full="continue"), metrics) as audit:
        audit.require()
        audit.record("test", number=1)
        audit.flush()
        assert audit.check.startswith("cannot be written: File exists; 1 wait, 0 lost")
        assert (audit.failures, audit.head.seq, f"{path} 0 lines" in repr(audit)) == (1, 0, True)
        folder.unlink()
        audit.flush()
        assert audit.check == "ok"
    assert [line["kind"] for line in lines(path)] == ["begin", "test", "interruption"]
    assert verify_log(path).problems == []
    assert metrics.registry.get_sample_value("sandbox_audit_failures_total") == 1


def test_a_file_that_cannot_be_shortened_has_its_torn_line_told(tmp_path: Path) -> None:
    """As on a file that can only be appended to (chattr +a)."""
    path = tmp_path / "a.log"
    no_truncate = "import os\ndef no(*_): raise PermissionError\nos.ftruncate = no\nsaid = {}"
    code = FULL.replace("said = {}", no_truncate)
    subprocess.run(
        [sys.executable, "-c", code, str(path), "continue"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    report = verify_log(path)
    assert report.problems == []
    assert "unfinished" in report.notes[0].what
