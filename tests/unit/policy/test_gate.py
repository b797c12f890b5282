"""The gate: what it lets through, what it says, what it counts and writes down."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import CommandRejected, RuntimeUnavailable
from sandbox_sdk.protocol.models import ExecuteRequest, RunCodeRequest
from sandbox_server.audit.log import MAX_TEXT, AuditLog
from sandbox_server.policy.policy import Policy
from sandbox_server.service.gate import FIXED_PATH, Gate


def run(command: str, **options: Any) -> ExecuteRequest:
    return ExecuteRequest(thread_id="t", command=command, **options)


async def admit(gate: Gate, command: str, environment: str | None = None) -> ExecuteRequest:
    return await gate.admit(run(command), environment=environment, tenant="acme")


async def test_a_rejection_explains_itself() -> None:
    with pytest.raises(CommandRejected) as caught:
        await admit(Gate.default(), "ls; sudo sh -c 'rm -rf /'")
    assert caught.value.details == {
        "rule": "remove-root",
        "policy": "default",
        "command": "sudo sh -c 'rm -rf /'",
        "start": 4,
        "end": 25,
        "via": ["sudo", "sh"],
        "reason": "it removes a top-level directory of the file system or the whole home directory",
        "alternative": "name the directories to remove, below /workspace or /tmp",
    }
    assert "remove-root" in caught.value.message
    assert "instead: name the directories" in caught.value.message


async def test_verdicts_are_counted() -> None:
    gate = Gate.default()
    await admit(gate, "ls")
    await admit(gate, "pwd")
    for command in ("reboot", "halt", "rm -rf /"):
        with pytest.raises(CommandRejected):
            await admit(gate, command)
    await gate.check(run("reboot"), environment=None, tenant="acme")
    assert (gate.allowed, gate.rejected) == (2, {"shutdown": 2, "remove-root": 1})
    assert repr(gate) == "<Gate default 2 allowed, 3 rejected>"


async def test_an_environment_may_have_its_own_policy() -> None:
    gate = Gate.read("open", {"locked": "strict"})
    await admit(gate, "python3 x.py")
    await admit(gate, "python3 x.py", "other")
    with pytest.raises(CommandRejected):
        await admit(gate, "python3 x.py", "locked")


async def test_under_a_whitelist_the_path_is_fixed() -> None:
    assert (await admit(Gate(Policy.read("strict")), "ls")).env == {"PATH": FIXED_PATH}
    assert (await admit(Gate.default(), "ls")).env == {}


async def test_a_verdict_tells_what_was_found() -> None:
    gate = Gate.default()
    verdict = await gate.check(run('ls $x | sh -c "wc -l"'), environment=None, tenant="acme")
    assert verdict.allowed
    assert [(command.argv, command.via) for command in verdict.commands] == [
        (["ls", None], []),
        (["sh", "-c", "wc -l"], []),
        (["wc", "-l"], ["sh"]),
    ]
    verdict = await gate.check(run("a; reboot now"), environment=None, tenant="acme")
    assert (verdict.allowed, verdict.rule, verdict.mode) == (False, "shutdown", "blacklist")
    assert verdict.command is not None
    assert (verdict.command.argv, verdict.command.start) == (["reboot", "now"], 3)
    verdict = await gate.check(run("curl x | sh"), environment=None, tenant="acme")
    assert verdict.doubts == ["unknown-script"]


async def test_what_a_command_will_be_sent_is_not_known() -> None:
    gate = Gate(Policy.read("strict"))
    await admit(gate, "bash")
    with pytest.raises(CommandRejected):
        await gate.admit(run("bash", stdin_open=True), environment=None, tenant="acme")


async def test_a_long_command_is_judged_too() -> None:
    with pytest.raises(CommandRejected):
        await admit(Gate.default(), f"cat > f <<'E'\n{'x' * 50_000}\nE\nreboot")


async def test_audit(tmp_path: Path) -> None:
    path = tmp_path / "log" / "audit.jsonl"
    with AuditLog(path) as audit:
        gate = Gate(Policy.read("default"), audit=audit)
        await admit(gate, 'echo "é"\n{"at": 1}')
        with pytest.raises(CommandRejected):
            await admit(gate, "reboot")
        audit.flush()
        path.rename(tmp_path / "old.jsonl")
        await gate.check(run("x" * 20_000, dry_run=True), environment="e", tenant="acme")
    _, first, second, third = (
        json.loads(line)
        for name in ("old.jsonl", "log/audit.jsonl")
        for line in (tmp_path / name).read_text().splitlines()
    )
    assert (first["command"], first["allowed"], first["rule"]) == (
        'echo "é"\n{"at": 1}',
        True,
        None,
    )
    assert (second["rule"], second["tenant"], second["thread_id"]) == ("shutdown", "acme", "t")
    assert (len(third["command"]), third["command_bytes"]) == (MAX_TEXT, 20_000)
    assert (third["dry_run"], third["environment"]) == (True, "e")
    assert path.stat().st_mode & 0o077 == 0


def test_an_audit_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="audit log"):
        AuditLog(tmp_path)


def test_a_broken_rule_file_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("mode: blacklist\nrules:\n  - id: x\n    deny: {commands: y}\n    reason: z\n")
    result = subprocess.run(
        [sys.executable, "-m", "sandbox_server", "--port", "0"],
        env={"SANDBOX_POLICY": str(file), "SANDBOX_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 125
    assert result.stderr.startswith(
        f"sandbox: {file}:4: unknown field 'commands': expected command,"
    )
    assert result.stderr.count("\n") == 1


async def test_code_is_judged_as_the_command_that_runs_it(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    code = "import os\nprint('it is ' + 'x' * 3)"
    with AuditLog(log) as audit:
        gate = Gate.read("default", {"locked": "strict"}, audit=audit)
        request = RunCodeRequest(thread_id="t", code=code)
        await gate.admit_code(request, language="python", environment=None, tenant="acme")
        for language in ("python", "javascript", "r", "julia"):
            with pytest.raises(CommandRejected) as caught:
                await gate.admit_code(
                    request, language=language, environment="locked", tenant="acme"
                )
            assert caught.value.details["rule"] in ("interpreter", "not-listed")
        long = RunCodeRequest(thread_id="t", code="'" * 500_000)
        await gate.admit_code(long, language="python", environment=None, tenant="acme")
    first = json.loads(log.read_text().splitlines()[1])
    assert (first["command"], first["language"], first["allowed"]) == (code, "python", True)
    assert (gate.allowed, gate.rejected.total()) == (2, 4)
