"""Errors say what they are about, and what to do."""

import re
from pathlib import Path

import pytest
import yaml

import sandbox_server.policy
from sandbox_sdk import CommandFailed, ExecuteResult, InvalidRequest, InvalidThreadId
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.integrations.arguments import parsed
from sandbox_sdk.protocol.models import ExecuteRequest, ListRequest, checked
from sandbox_sdk.testing import FakeBackend
from sandbox_server.policy.policy import Policy

SETS = Path(sandbox_server.policy.__file__).with_name("sets")


@pytest.mark.parametrize(
    ("thread_id", "why"),
    [
        ("a b", "contains ' ', which is not allowed, as character 2"),
        ("über", "contains 'ü'"),
        ("a/b", "contains '/'"),
        ("x" * 129, "has 129 characters"),
        ("", "has 0 characters"),
    ],
)
def test_a_thread_id_that_is_not_allowed(thread_id: str, why: str) -> None:
    with pytest.raises(InvalidThreadId, match=re.escape(why)) as caught:
        AsyncSandboxClient(thread_id, backend=FakeBackend())
    assert repr(thread_id) in caught.value.message
    assert "A-Z a-z 0-9 . _ : @ + = -" in caught.value.message


def result(**changes: object) -> ExecuteResult:
    fields = {
        "exit_code": 1, "output": "out\nno\n", "stdout": "out\n", "stderr": "no\n",
        "command_id": "c", "duration_ms": 1004.0, "timed_out": False, "truncated": False,
        "output_bytes": 7, "cwd": "/", "session_id": "s", "generation": 1, "session_state": "live",
    }  # fmt: skip
    return ExecuteResult.model_validate({**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exit_code": 3}, "the command ended with exit code 3: no"),
        ({"exit_code": 3, "stderr": ""}, "the command ended with exit code 3: out\nno"),
        ({"exit_code": 124, "timed_out": True}, "the command timed out after 1 s: no"),
        (
            {"exit_code": 137, "reason": "oom", "signal": "KILL"},
            "the command ran out of memory (512 MiB) and was killed: no",
        ),
        ({"exit_code": 139, "signal": "SIGSEGV"}, "the command was killed by SIGSEGV: no"),
        ({"exit_code": 139}, "the command ended with exit code 139 (128 + SIGSEGV): no"),
        ({"exit_code": 255}, "the command ended with exit code 255: no"),
    ],
)
def test_how_a_command_failed(changes: dict[str, object], message: str) -> None:
    assert str(CommandFailed(result(**changes), memory_bytes=512 << 20)) == message


def test_wrong_fields_are_named_in_the_sdk_too() -> None:
    """As in the body of a 422, so that programs need not read the message."""
    with pytest.raises(InvalidRequest, match="timeout: ") as caught:
        checked(ExecuteRequest, thread_id="t", command="x", timeout=-1, comand="y")
    assert caught.value.details["errors"][0]["field"] == "timeout"
    assert caught.value.details["errors"][1] == {
        "field": "comand",
        "message": "there is no such field; those there are: thread_id, session_id, command,"
        " timeout, cwd, env, stdin, stdin_open, pty, encoding, background, idempotency_key,"
        " dry_run, notify, artifacts",
    }
    with pytest.raises(InvalidRequest, match="limit: ") as caught:
        checked(ListRequest, thread_id="t", limit=0)
    assert [each["field"] for each in caught.value.details["errors"]] == ["limit"]


def test_a_tool_call_with_wrong_fields() -> None:
    with pytest.raises(ValueError, match="write_file: path: this field is required") as caught:
        parsed("write_file", {"file": "a", "content": "b"})
    assert "file: there is no such field; those there are: path, content" in str(caught.value)


def test_alternatives_are_for_whoever_is_in_the_box() -> None:
    """A model has no HTTP and cannot change the policy."""
    rules = [
        rule
        for name in ("default", "strict")
        for rule in yaml.safe_load((SETS / f"{name}.yaml").read_text())["rules"]
        if "deny" in rule
    ]
    said = {rule["id"]: rule["alternative"] for rule in rules}
    wrong = re.compile(r"/cleanup|create_session|SANDBOX_|ask for|upload_file")
    assert [rule for rule, text in said.items() if wrong.search(text)] == []
    assert "restart" in said["shutdown"]
    rejection = Policy.read("strict").judge("frobnicate").rejection
    assert rejection is not None
    assert rejection.alternative
