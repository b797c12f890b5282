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
    "home": "/home/sandboxuser",
    "workspace": "/workspace",
    "worker": "worker-1",
    "runtime": "docker",
    "sandbox_id": "9f3c2b7a1d5e4f60",
    "environment": None,
    "metadata": {"user": "42"},
    "created_at": "2025-01-01T12:00:00Z",
    "expires_at": "2025-01-01T12:30:00Z",
    "end_at": None,
    "pause_at_end": False,
    "limits": {
        "memory_bytes": 536870912,
        "cpus": 0.5,
        "pids": 256,
        "disk_bytes": 1073741824,
        "command_timeout_s": 30.0,
        "output_limit_bytes": 1048576,
        "upload_limit_bytes": 104857600,
        "network": "none",
        "network_allow": [],
        "not_enforced": {},
    },
    "agent": None,
    "volumes": [],
    "ports": None,
    "egress_rules": None,
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
    "egress": None,
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
    "artifacts": [],
    "artifact_problems": [],
    "session_id": SESSION["session_id"],
    "generation": 1,
    "session_state": "live",
    "resumed": None,
}

EVENTS = """id: c-1:0
event: start
data: {"command_id":"c-1","replayed":false,"session_id":"5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22","generation":1,"session_state":"live","resumed":null}

id: c-1:2
event: stdout
data: {"data":"4\\n","offset":0,"next_offset":2}

id: c-1:2
event: exit
data: {"exit_code":0,"command_id":"c-1","duration_ms":2.4,"timed_out":false,"truncated":false,"output_bytes":2,"cwd":"/workspace","signal":null,"reason":null,"hint":null,"replayed":false,"artifacts":[],"artifact_problems":[],"session_id":"5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22","generation":1,"session_state":"live","resumed":null}

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

CODE_RESULT: dict[str, Any] = {
    "command_id": "c-2",
    "context_id": "python",
    "language": "python",
    "context_state": "created",
    "execution_count": 1,
    "duration_ms": 3.1,
    "timed_out": False,
    "reason": None,
    "truncated": False,
    "output_bytes": 6,
    "late_output": "",
    "artifacts": [],
    "artifact_problems": [],
    "replayed": False,
    "session_id": SESSION["session_id"],
    "generation": 1,
    "session_state": "live",
    "resumed": None,
    "stdout": "hello\n",
    "stderr": "",
    "results": [
        {"data": {"text/plain": "2"}, "type": "text/plain", "is_main_result": True,
         "display_id": None, "is_update": False},
    ],
    "error": None,
}  # fmt: skip

CODE_EVENTS = """id: c-2:0
event: start
data: {"command_id":"c-2","replayed":false,"session_id":"5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22","generation":1,"session_state":"live","resumed":null}

id: c-2:6
event: stdout
data: {"data":"hello\\n","offset":0,"next_offset":6}

id: c-2:62
event: result
data: {"data":{"text/plain":"2"},"type":"text/plain","is_main_result":true,"display_id":null,"is_update":false,"offset":6,"next_offset":62}

id: c-2:62
event: end
data: {"command_id":"c-2","context_id":"python","language":"python","context_state":"created","execution_count":1,"duration_ms":3.1,"timed_out":false,"reason":null,"truncated":false,"output_bytes":6,"late_output":"","artifacts":[],"replayed":false,"session_id":"5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22","generation":1,"session_state":"live","resumed":null}

"""  # noqa: E501

CODE_BODIES: dict[str, Any] = {
    "run": {
        "summary": "Run Python",
        "value": {"thread_id": "conv-42", "code": "print('hello')\n1 + 1"},
    },
    "context": {
        "summary": "Run it in a context of its own",
        "value": {"thread_id": "conv-42", "code": "x", "context_id": "analysis", "timeout": 120},
    },
    "follow": {
        "summary": "Go on with a stream, with Last-Event-ID or ?command_id=&offset=",
        "value": {"thread_id": "conv-42"},
    },
}

CONTEXT: dict[str, Any] = {
    "context_id": "analysis",
    "language": "python",
    "kernel": "python3",
    "cwd": "/workspace",
    "default": False,
    "state": "idle",
    "running": None,
    "waiting": 0,
    "execution_count": 1,
    "memory_bytes": 44040192,
}

COMMAND_INFO: dict[str, Any] = {
    "command_id": "c-3",
    "idempotency_key": "build-7",
    "command": "make all",
    "running": True,
    "pid": 57,
    "cwd": None,
    "env": {},
    "exit_code": None,
    "age_s": 1.5,
    "output_bytes": 120,
    "is_code": False,
    "pty": None,
}
TERMINAL_INFO: dict[str, Any] = {**COMMAND_INFO, "pty": {"rows": 40, "cols": 132}}

COMMAND_LIST: dict[str, Any] = {
    "commands": [
        {**COMMAND_INFO, "command_id": "c-1", "idempotency_key": None, "running": False,
         "pid": None, "env": None, "exit_code": 0, "age_s": 61.5},
        COMMAND_INFO,
    ],
    "truncated": False,
}  # fmt: skip

STDIN_RECEIPT: dict[str, Any] = {"received": 12}

SESSION_SUMMARY: dict[str, Any] = {
    "session_id": SESSION["session_id"],
    "thread_id": "conv-42",
    "generation": 1,
    "worker": "worker-1",
    "runtime": "docker",
    "environment": None,
    "metadata": {"user": "42"},
    "created_at": "2025-01-01T12:00:00Z",
    "idle_s": 12.5,
    "expires_at": "2025-01-01T12:30:00Z",
    "end_at": None,
    "state": "idle",
}

SESSION_LIST: dict[str, Any] = {"sessions": [SESSION_SUMMARY], "next": None, "unreachable": []}

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
            "owner": "sandboxuser",
            "group": "sandboxuser",
            "target": None,
            "leads_to": None,
            "metadata": None,
        }
    ],
    "truncated": False,
}

CLEANUP_RESULT: dict[str, Any] = {
    "status": "cleaned up",
    "environment": None,
    "idle_timeout_s": 1800.0,
    "provider": "docker",
    "limits": {"memory": 512 << 20, "cpus": 0.5, "pids": 256, "disk": 1 << 30},
    "agent": None,
    "volumes": [],
    "network": None,
    "metadata": {"user": "42"},
    "lifetime_s": None,
    "ports": None,
    "egress_rules": None,
}

TOOL: dict[str, Any] = {
    "name": "count_words",
    "description": "Count the words of a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
}

REGISTRY: dict[str, Any] = {
    "agents": [
        {
            "name": "editor",
            "description": "Looks after texts.",
            "environment": "Python3",
            "tools": [TOOL],
        }
    ],
    "tools": [TOOL],
    "environments": [{"name": "Python3", "description": "Python 3 and bash."}],
}

TOOL_ANSWER: dict[str, Any] = {
    "text": "12 notes.txt\n[exit code 0]",
    "failed": False,
    "result": {**EXECUTE_RESULT, "output": "12 notes.txt\n", "stdout": "12 notes.txt\n"},
    "data": None,
    "file": None,
    "images": [],
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
    "providers": ["docker"],
    "checkpoints": "in the state folder, as copies of whole disks",
    "volumes": "a disk each, in the state folder",
    "workers": [],
}

ARTIFACT: dict[str, Any] = {
    "artifact_id": "5b1f0c2a9d3e4f6a@worker-1",
    "thread_id": "conv-42",
    "session_id": SESSION["session_id"],
    "path": "/workspace/chart.png",
    "size": 20480,
    "sha256": UPLOAD_RESULT["sha256"],
    "mime": "image/png",
    "created_at": "2025-01-01T12:00:05Z",
}

ARTIFACT_LIST: dict[str, Any] = {"artifacts": [ARTIFACT], "truncated": False, "unreachable": []}

STORED_SESSION: dict[str, Any] = {
    "session_id": SESSION["session_id"],
    "sandbox_id": SESSION["sandbox_id"],
    "thread_id": "conv-42",
    "generation": 1,
    "provider": "docker",
    "environment": "Python3",
    "agent": None,
    "worker": "worker-1",
    "state": "cleaned",
    "created_at": "2025-01-01T12:00:00Z",
    "ended_at": "2025-01-01T12:10:00Z",
    "commands": 1,
}

HAPPENINGS: dict[str, Any] = {
    "events": [
        {
            "id": "9f2c11d0.41",
            "kind": "command.finished",
            "at": "2026-03-01T12:00:00Z",
            "thread_id": "conv-42",
            "session_id": "3f0f8e4c5c1b4d0c",
            "worker": "worker-1",
            "data": {
                "command_id": "c1d2",
                "exit_code": 0,
                "outcome": "ok",
                "duration_ms": 12.5,
                "background": True,
            },
        }
    ],
    "next": "9f2c11d0.41",
    "unreachable": [],
}
HAPPENING_EVENTS = """id: 9f2c11d0.42
event: session.ended
data: {"id":"9f2c11d0.42","kind":"session.ended","at":"2026-03-01T12:30:00Z","thread_id":"conv-42",\
"session_id":"3f0f8e4c5c1b4d0c","worker":"worker-1","data":{"reason":"expired","generation":1}}

"""
USAGE: dict[str, Any] = {
    "by": "day",
    "since": "2025-01-01",
    "until": "2025-01-30",
    "rows": [
        {
            "day": "2025-01-01",
            "thread_id": None,
            "session_id": None,
            "commands": 12,
            "cpu_seconds": 3.25,
            "command_seconds": 41.5,
            "session_seconds": 600.0,
            "paused_seconds": 0.0,
            "memory_peak_bytes": 73400320,
            "memory_gb_hours": 0.0081,
            "bytes_in": 52400,
            "bytes_out": 4096,
            "egress_bytes": 1048576,
            "storage_bytes": 20971520,
            "storage_gb_days": 0.02097152,
            "cost": 0.0021,
        }
    ],
    "truncated": False,
    "currency": "EUR",
    "unreachable": [],
}

STORED_DETAIL: dict[str, Any] = {
    **STORED_SESSION,
    "log": [
        {
            "command_id": "c-1",
            "command": "python3 chart.py",
            "at": "2025-01-01T12:00:05Z",
            "exit_code": 0,
            "duration_ms": 812.4,
            "output": "done\n",
        }
    ],
    "log_truncated": False,
    "artifacts": [ARTIFACT],
}

STARTED_SESSION: dict[str, Any] = {
    "session_id": SESSION["session_id"],
    "sandbox_id": SESSION["sandbox_id"],
    "thread_id": SESSION["session_id"],
    "provider": "docker",
    "environment": "Python3",
    "agent": None,
    "url": f"http://127.0.0.1:8000/api/sessions/{SESSION['session_id']}",
    "status": "created",
    "worker": "worker-1",
    "created_at": "2025-01-01T12:00:00Z",
    "expires_at": "2025-01-01T12:30:00Z",
}

STOPPED_SESSION: dict[str, Any] = {"session_id": SESSION["session_id"], "status": "destroyed"}

CODE_ANSWER: dict[str, Any] = {
    "stdout": "42\n",
    "stderr": "",
    "results": [],
    "artifacts": [],
    "artifact_problems": [],
    "error": None,
    "session_id": SESSION["session_id"],
}

CHECKPOINT: dict[str, Any] = {
    "checkpoint_id": "cp-0199f3c2a1b4-5d1c0a9e7f",
    "thread_id": "conv-42",
    "session_id": SESSION["session_id"],
    "generation": 1,
    "name": "before the rewrite",
    "metadata": {},
    "automatic": False,
    "created_at": "2025-01-01T12:00:05Z",
    "parent": None,
    "environment": None,
    "cwd": "/workspace",
    "files": 12,
    "folders": 3,
    "size": 48213,
    "added": 9120,
    "running": [],
    "left_out": [],
    "left_out_more": 0,
    "paused_ms": 0.0,
}

CHECKPOINT_LIST: dict[str, Any] = {
    "checkpoints": [CHECKPOINT], "truncated": False, "unreachable": []
}  # fmt: skip

VOLUME: dict[str, Any] = {
    "name": "datasets",
    "size": 1 << 30,
    "used": 41943040,
    "created_at": "2025-01-01T12:00:05Z",
    "worker": "worker-1",
    "mounted_by": [{"thread_id": "conv-42", "mode": "rw"}],
}

VOLUME_LIST: dict[str, Any] = {"volumes": [VOLUME], "quota": 10 << 30, "unreachable": []}

TOKEN = "preview_Zk3vW0m2QdYJ0l6cQb7nTqk9Hc1xS5uR8eVfAaGgPpI"
PREVIEW: dict[str, Any] = {
    "port": 8080,
    "session_id": SESSION["session_id"],
    "url": f"http://8080-{SESSION['session_id']}.localhost:8001/?token={TOKEN}",
    "token": TOKEN,
    "public": False,
    "created_at": "2025-01-01T12:00:05Z",
    "expires_at": "2025-01-01T12:30:05Z",
}
PREVIEW_LIST: dict[str, Any] = {
    "previews": [{**PREVIEW, "url": PREVIEW["url"].partition("?")[0], "token": None}]
}

MKDIR_RESULT: dict[str, Any] = {
    "created": True,
    "entry": {
        **LIST_RESULT["entries"][0],
        "name": "plots",
        "path": "/workspace/out/plots",
        "type": "directory",
        "mode": "0755",
    },
}
FILE_WATCH: dict[str, Any] = {
    "watch_id": "9f2c11d0a1b2c3d4",
    "session_id": SESSION["session_id"],
    "path": "/workspace/src",
    "position": 0,
}
FILE_CHANGES: dict[str, Any] = {
    "events": [
        {"position": 1, "kind": "create", "path": "main.py", "type": "file"},
        {"position": 2, "kind": "write", "path": "main.py", "type": "file"},
    ],
    "position": 2,
}

FORK_RESULT: dict[str, Any] = {
    "checkpoint_id": CHECKPOINT["checkpoint_id"],
    "sessions": [{**SESSION, "thread_id": "conv-42-b"}],
}

ENTRY: dict[str, Any] = {
    "number": 17,
    "what": "command",
    "command": "git checkout .",
    "at": "2026-07-27T09:00:00Z",
    "session_id": SESSION["session_id"],
    "command_id": "3f2504e04f8911d39a0c0305e82c3301",
    "exit_code": 0,
    "duration_ms": 12.5,
    "undone": False,
    "files": {"made": [], "changed": ["main.py"], "removed": ["notes.md"], "more": 0},
}
CHANGES: dict[str, Any] = {
    "number": 17,
    "command": "git checkout .",
    "changes": [{"path": "main.py", "change": "changed"}],
    "more": 0,
    "diff": "diff --git a/main.py b/main.py\n--- a/main.py\n+++ b/main.py\n@@ -1,1 +1,1 @@\n"
    "-print(2)\n+print(1)\n",
    "diff_truncated": False,
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
    op.CONTEXTS: {200: answer("The contexts.", {"contexts": [CONTEXT]})},
    op.CREATE_CONTEXT: {200: answer("The context.", CONTEXT)},
    op.RESTART_CONTEXT: {200: answer("It is empty.", {**CONTEXT, "execution_count": 0})},
    op.REMOVE_CONTEXT: {200: answer("It is gone.", {**CONTEXT, "state": "lost"})},
    op.INTERRUPT_CONTEXT: {200: answer("Interrupted.", {**CONTEXT, "state": "busy"})},
    op.RESULT: {200: answer("The command.", EXECUTE_RESULT)},
    op.COMMANDS: {200: answer("The commands.", COMMAND_LIST)},
    op.SIGNAL: {200: answer("Sent; how the command stands.", COMMAND_INFO)},
    op.STDIN: {200: answer("Received.", STDIN_RECEIPT)},
    op.RESIZE: {200: answer("Resized; how the command stands.", TERMINAL_INFO)},
    op.RENAME: {200: answer("Where it is now.", LIST_RESULT["entries"][0])},
    op.STAT: {200: answer("What is there.", LIST_RESULT["entries"][0])},
    op.MKDIR: {200: answer("The folder.", MKDIR_RESULT)},
    op.REMOVE: {200: answer("It is gone.", {"status": "removed", "path": "out/plots"})},
    op.WATCH: {200: answer("The watch.", FILE_WATCH)},
    op.WATCH_EVENTS: {200: answer("What has changed.", FILE_CHANGES)},
    op.UNWATCH: {200: answer("It has ended.", {"ended": True})},
    op.SESSIONS: {200: answer("The sessions.", SESSION_LIST)},
    op.PAUSE: {
        200: answer(
            "It stands still.",
            {**SESSION_SUMMARY, "expires_at": "2025-01-02T12:00:00Z", "state": "paused"},
        )
    },
    op.UNPAUSE: {200: answer("It goes on.", SESSION_SUMMARY)},
    op.SET_EGRESS: {200: answer("By these rules from now on.", SESSION_SUMMARY)},
    op.SET_LIFETIME: {
        200: answer(
            "When it ends now.",
            {
                **SESSION_SUMMARY,
                "expires_at": "2025-01-01T12:10:00Z",
                "end_at": "2025-01-01T12:10:00Z",
            },
        )
    },
    op.REGISTRY: {200: answer("What there is.", REGISTRY)},
    op.CALL_TOOL: {200: answer("What to tell the model.", TOOL_ANSWER)},
    op.ARTIFACTS: {200: answer("The artifacts.", ARTIFACT_LIST)},
    op.DELETE_ARTIFACT: {200: answer("It is gone.", {"artifact_id": ARTIFACT["artifact_id"]})},
    op.STORED_SESSIONS: {
        200: answer("The sessions.", {"sessions": [STORED_SESSION], "truncated": False})
    },
    op.STORED_SESSION: {200: answer("The session.", STORED_DETAIL)},
    op.USAGE: {200: answer("What was used.", USAGE)},
    op.EVENTS: {200: answer("What has happened.", HAPPENINGS)},
    op.CHECKPOINT: {200: answer("The checkpoint.", CHECKPOINT)},
    op.CHECKPOINTS: {200: answer("The checkpoints.", CHECKPOINT_LIST)},
    op.GET_CHECKPOINT: {200: answer("The checkpoint.", CHECKPOINT)},
    op.DELETE_CHECKPOINT: {
        200: answer("It is gone.", {"checkpoint_id": CHECKPOINT["checkpoint_id"]})
    },
    op.RESTORE: {200: answer("The new session.", {**SESSION, "generation": 2})},
    op.HISTORY: {200: answer("The commands.", {"entries": [ENTRY], "truncated": False})},
    op.CHANGES: {200: answer("What it has changed.", CHANGES)},
    op.UNDO: {
        200: answer(
            "The new session.",
            {**SESSION, "generation": 2, "to": 17, "command": "git checkout ."},
        )
    },
    op.FORK: {200: answer("The new threads.", FORK_RESULT)},
    op.VOLUMES: {200: answer("The volumes.", VOLUME_LIST)},
    op.CREATE_VOLUME: {200: answer("The volume.", {**VOLUME, "mounted_by": []})},
    op.DELETE_VOLUME: {200: answer("It is gone.", {"name": VOLUME["name"]})},
    op.EXPOSE: {200: answer("The preview.", PREVIEW)},
    op.PREVIEWS: {200: answer("The previews.", PREVIEW_LIST)},
    op.UNEXPOSE: {200: answer("It has ended.", {"port": PREVIEW["port"]})},
}
