"""Example requests and answers for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.models import Health, Session
from sandbox_sdk.protocol.operations import Operation
from sandbox_server.api.openapi import answer

SESSION: dict[str, Any] = {
    "session_id": "5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22",
    "thread_id": "conv-42",
    "status": "created",
    "generation": 1,
    "user": "sandboxuser",
    "workspace": "/workspace",
    "worker": "worker-1",
    "runtime": "docker",
    "environment": None,
    "created_at": "2025-01-01T12:00:00Z",
    "expires_at": "2025-01-01T12:30:00Z",
    "limits": {
        "memory_bytes": 536870912,
        "cpus": 0.5,
        "pids": 256,
        "disk_bytes": 1073741824,
        "command_timeout_s": 30.0,
        "output_limit_bytes": 1048576,
        "upload_limit_bytes": 104857600,
        "network": "none",
        "not_enforced": {},
    },
    "not_applied": [],
}

SESSION_INFO: dict[str, Any] = {
    **SESSION,
    "status": "existing",
    "state": "busy",
    "last_used_at": "2025-01-01T12:00:00Z",
    "idle_s": 0.0,
    "commands": 3,
    "running": [{"command_id": "c-3", "age_s": 1.5, "output_bytes": 120}],
    "usage": {"cpu_s": 0.2, "memory_bytes": 15728640, "disk_bytes": 4096, "pids": 3},
}

EXECUTE_RESULT: dict[str, Any] = {
    "exit_code": 0,
    "output": "4\n",
    "stdout": "4\n",
    "stderr": "",
    "command_id": "c-1",
    "duration_ms": 2.4,
    "timed_out": False,
    "truncated": False,
    "output_bytes": 2,
    "cwd": "/workspace",
    "signal": None,
    "reason": None,
    "hint": None,
    "replayed": False,
    "session_id": SESSION["session_id"],
    "generation": 1,
    "session_state": "live",
}

EVENTS = """id: c-1:0
event: start
data: {"command_id":"c-1","replayed":false,"session_id":"5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22","generation":1,"session_state":"live"}

id: c-1:2
event: stdout
data: {"data":"4\\n","offset":0,"next_offset":2}

id: c-1:2
event: exit
data: {"exit_code":0,"command_id":"c-1","duration_ms":2.4,"timed_out":false,"truncated":false,"output_bytes":2,"cwd":"/workspace","signal":null,"reason":null,"hint":null,"replayed":false,"session_id":"5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22","generation":1,"session_state":"live"}

"""  # noqa: E501

EXECUTE_BODIES: dict[str, Any] = {
    "run": {
        "summary": "Run a command",
        "value": {"thread_id": "conv-42", "command": "echo $((2+2))", "timeout": 30},
    },
    "once": {
        "summary": "Run it exactly once, however often the call is repeated",
        "value": {"thread_id": "conv-42", "command": "make", "idempotency_key": "build-7"},
    },
    "background": {
        "summary": "Start a command that reads its input from later calls",
        "value": {
            "thread_id": "conv-42",
            "command": "python3 -i",
            "background": True,
            "stdin_open": True,
        },
    },
    "dry run": {
        "summary": "Ask what the policy says of it; nothing runs",
        "value": {"thread_id": "conv-42", "command": "rm -rf /", "dry_run": True},
    },
    "follow": {
        "summary": "Go on with a stream, with Last-Event-ID or ?command_id=&offset=",
        "value": {"thread_id": "conv-42"},
    },
}

COMMAND_INFO: dict[str, Any] = {
    "command_id": "c-3",
    "idempotency_key": "build-7",
    "running": True,
    "exit_code": None,
    "age_s": 1.5,
    "output_bytes": 120,
}

COMMAND_LIST: dict[str, Any] = {
    "commands": [
        {**COMMAND_INFO, "command_id": "c-1", "idempotency_key": None, "running": False,
         "exit_code": 0, "age_s": 61.5},
        COMMAND_INFO,
    ],
    "truncated": False,
}  # fmt: skip

STDIN_RECEIPT: dict[str, Any] = {"received": 12}

SESSION_LIST: dict[str, Any] = {
    "sessions": [
        {
            "session_id": SESSION["session_id"],
            "thread_id": "conv-42",
            "generation": 1,
            "worker": "worker-1",
            "runtime": "docker",
            "environment": None,
            "created_at": "2025-01-01T12:00:00Z",
            "idle_s": 12.5,
            "expires_at": "2025-01-01T12:30:00Z",
            "state": "idle",
        }
    ],
    "unreachable": [],
}

UPLOAD_RESULT: dict[str, Any] = {
    "status": "uploaded",
    "filename": "script.py",
    "path": "/workspace/script.py",
    "size": 12,
    "sha256": "5b6f3bdb5e4a9e1b2c53c0f0e6b5f1c9e4f4c2f3e6e0fd8d2a7c7a6d1c9b8a70",
}

LIST_RESULT: dict[str, Any] = {
    "path": "/workspace",
    "entries": [
        {
            "name": "script.py",
            "path": "/workspace/script.py",
            "type": "file",
            "size": 12,
            "mode": "0644",
            "modified_at": "2025-01-01T12:00:00Z",
        }
    ],
    "truncated": False,
}

CLEANUP_RESULT: dict[str, Any] = {
    "status": "cleaned up",
    "environment": None,
    "idle_timeout_s": 1800.0,
}

HEALTH: dict[str, Any] = {
    "status": "healthy",
    "role": "standalone",
    "worker_id": "worker-1",
    "runtime": "docker",
    "pool_size": 5,
    "active_sessions": 1,
    "capacity": 20,
    "version": "0.1.0",
    "uptime_s": 61.5,
    "checks": {"runtime": "ok"},
}

ANSWERS: dict[Operation[Any, Any], dict[int | str, dict[str, Any]]] = {
    op.CREATE_SESSION: {
        201: answer("A new session.", SESSION),
        200: {
            "model": Session,
            **answer("The thread was live.", {**SESSION, "status": "existing"}),
        },
    },
    op.LIST_FILES: {200: answer("The entries.", LIST_RESULT)},
    op.SESSION: {200: answer("The session.", SESSION_INFO)},
    op.CLEANUP: {200: answer("It is gone.", CLEANUP_RESULT)},
    op.HEALTH: {
        200: answer("Healthy, or degraded.", HEALTH),
        503: {"model": Health, **answer("Unhealthy.", {**HEALTH, "status": "unhealthy"})},
    },
    op.RESULT: {200: answer("The command.", EXECUTE_RESULT)},
    op.COMMANDS: {200: answer("The commands.", COMMAND_LIST)},
    op.SIGNAL: {200: answer("Sent; how the command stands.", COMMAND_INFO)},
    op.STDIN: {200: answer("Received.", STDIN_RECEIPT)},
    op.RENAME: {200: answer("Where it is now.", LIST_RESULT["entries"][0])},
    op.SESSIONS: {200: answer("The sessions.", SESSION_LIST)},
}
