"""Example requests and answers for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.operations import Operation
from sandbox_server.api.openapi import answer


def _sent(model: type[models.Model], **fields: Any) -> dict[str, Any]:
    """An answer as it is sent, with the defaults of its other fields."""
    return model(**fields).model_dump(mode="json")


_AT = "2025-01-01T12:00:00Z"
_SESSION_ID = "5f0c1e9e-5d0b-4b6f-9d3c-6a3f0a7d1c22"
_COMMAND: dict[str, Any] = {
    "session_id": _SESSION_ID, "generation": 1, "session_state": "live", "timed_out": False,
    "truncated": False,
}  # fmt: skip

SESSION = _sent(
    models.Session, session_id=_SESSION_ID, thread_id="conv-42", status="created", generation=1,
    worker="worker-1", runtime="docker", sandbox_id="9f3c2b7a1d5e4f60", metadata={"user": "42"},
    created_at=_AT, expires_at="2025-01-01T12:30:00Z",
    limits={
        "memory_bytes": 512 << 20, "cpus": 0.5, "pids": 256, "disk_bytes": 1 << 30,
        "command_timeout_s": 30.0, "output_limit_bytes": 1 << 20, "upload_limit_bytes": 100 << 20,
        "network": "none",
    },
)  # fmt: skip
SESSION_INFO = _sent(models.SessionInfo, **{
    **SESSION, "status": "existing", "state": "busy", "last_used_at": _AT, "idle_s": 0.0,
    "commands": 3, "running": [{"command_id": "c-3", "age_s": 1.5, "output_bytes": 120}],
    "usage": {"cpu_s": 0.2, "memory_bytes": 15 << 20, "disk_bytes": 4096, "pids": 3},
})  # fmt: skip
EXECUTE_RESULT = _sent(
    models.ExecuteResult, **_COMMAND, exit_code=0, output="4\n", stdout="4\n", stderr="",
    command_id="c-1", duration_ms=2.4, output_bytes=2, cwd="/workspace",
)  # fmt: skip
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


def _bodies(**shown: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The bodies of a request, by what the document calls them: what they do, and their fields."""
    return {
        name.replace("_", " "): {"summary": summary, "value": {"thread_id": "conv-42", **fields}}
        for name, (summary, fields) in shown.items()
    }


_GO_ON = "Go on with a stream, with Last-Event-ID or ?command_id=&offset="
EXECUTE_BODIES = _bodies(
    run=("Run a command", {"command": "echo $((2+2))", "timeout": 30}),
    once=(
        "Run it exactly once, however often the call is repeated",
        {"command": "make", "idempotency_key": "build-7"},
    ),
    background=(
        "Start a command that reads its input from later calls",
        {"command": "python3 -i", "background": True, "stdin_open": True},
    ),
    dry_run=(
        "Ask what the policy says of it; nothing runs", {"command": "rm -rf /", "dry_run": True}
    ),
    follow=(_GO_ON, {}),
)  # fmt: skip

CODE_RESULT = _sent(
    models.CodeResult, **_COMMAND, command_id="c-2", context_id="python", language="python",
    context_state="created", execution_count=1, duration_ms=3.1, output_bytes=6, stdout="hello\n",
    stderr="",
    results=[{"data": {"text/plain": "2"}, "type": "text/plain", "is_main_result": True}],
)  # fmt: skip
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

CODE_BODIES = _bodies(
    run=("Run Python", {"code": "print('hello')\n1 + 1"}),
    context=(
        "Run it in a context of its own", {"code": "x", "context_id": "analysis", "timeout": 120}
    ),
    follow=(_GO_ON, {}),
)  # fmt: skip

CONTEXT = _sent(
    models.Context, context_id="analysis", language="python", kernel="python3", cwd="/workspace",
    default=False, state="idle", execution_count=1, memory_bytes=42 << 20,
)  # fmt: skip
COMMAND_INFO = _sent(
    models.CommandInfo, command_id="c-3", idempotency_key="build-7", command="make all",
    running=True, pid=57, env={}, exit_code=None, age_s=1.5, output_bytes=120,
)  # fmt: skip
TERMINAL_INFO = {**COMMAND_INFO, "pty": {"rows": 40, "cols": 132}}
_ENDED = {"command_id": "c-1", "idempotency_key": None, "running": False, "pid": None, "env": None,
          "exit_code": 0, "age_s": 61.5}  # fmt: skip
COMMAND_LIST = _sent(models.CommandList, commands=[{**COMMAND_INFO, **_ENDED}, COMMAND_INFO])
STDIN_RECEIPT = _sent(models.StdinReceipt, received=12)
SESSION_SUMMARY = _sent(
    models.SessionSummary, session_id=_SESSION_ID, thread_id="conv-42", generation=1,
    worker="worker-1", runtime="docker", metadata={"user": "42"}, created_at=_AT, idle_s=12.5,
    expires_at="2025-01-01T12:30:00Z", state="idle",
)  # fmt: skip
SESSION_LIST = _sent(models.SessionList, sessions=[SESSION_SUMMARY])
UPLOAD_RESULT = _sent(
    models.UploadResult, filename="script.py", path="/workspace/script.py", size=12,
    sha256="5b6f3bdb5e4a9e1b2c53c0f0e6b5f1c9e4f4c2f3e6e0fd8d2a7c7a6d1c9b8a70",
)  # fmt: skip
FILE_ENTRY = _sent(
    models.FileEntry, name="script.py", path="/workspace/script.py", type="file", size=12,
    mode="0644", modified_at=_AT, owner="sandboxuser", group="sandboxuser", target=None,
)  # fmt: skip
LIST_RESULT = _sent(models.ListResult, path="/workspace", entries=[FILE_ENTRY], truncated=False)
CLEANUP_RESULT = _sent(
    models.CleanupResult, idle_timeout_s=1800.0, provider="docker", metadata={"user": "42"},
    limits={"memory": 512 << 20, "cpus": 0.5, "pids": 256, "disk": 1 << 30},
)  # fmt: skip
TOOL = _sent(
    models.ToolInfo, name="count_words", description="Count the words of a file.",
    parameters={
        "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"],
        "additionalProperties": False,
    },
)  # fmt: skip
_EDITOR = {"name": "editor", "description": "Looks after texts.", "environment": "Python3",
           "tools": [TOOL]}  # fmt: skip
REGISTRY = _sent(
    models.RegistryList, agents=[_EDITOR], tools=[TOOL],
    environments=[{"name": "Python3", "description": "Python 3 and bash."}],
)  # fmt: skip
TOOL_ANSWER = _sent(
    models.ToolAnswer, text="12 notes.txt\n[exit code 0]",
    result={**EXECUTE_RESULT, "output": "12 notes.txt\n", "stdout": "12 notes.txt\n"},
)  # fmt: skip
HEALTH = _sent(
    models.Health, status="healthy", role="standalone", worker_id="worker-1", runtime="docker",
    pool_size=5, active_sessions=1, capacity=20, version="0.1.0", uptime_s=61.5,
    checks={"runtime": "ok"}, providers=["docker"],
    checkpoints="in the state folder, as copies of whole disks",
    volumes="a disk each, in the state folder",
)  # fmt: skip
ARTIFACT = _sent(
    models.Artifact, artifact_id="5b1f0c2a9d3e4f6a@worker-1", thread_id="conv-42",
    session_id=_SESSION_ID, path="/workspace/chart.png", size=20480,
    sha256=UPLOAD_RESULT["sha256"], mime="image/png", created_at="2025-01-01T12:00:05Z",
)  # fmt: skip
STORED_SESSION = _sent(
    models.StoredSession, session_id=_SESSION_ID, sandbox_id=SESSION["sandbox_id"],
    thread_id="conv-42", generation=1, provider="docker", environment="Python3", worker="worker-1",
    state="cleaned", created_at=_AT, ended_at="2025-01-01T12:10:00Z", commands=1,
)  # fmt: skip
STORED_DETAIL = _sent(
    models.StoredSessionDetail, **STORED_SESSION, artifacts=[ARTIFACT],
    log=[{
        "command_id": "c-1", "command": "python3 chart.py", "at": "2025-01-01T12:00:05Z",
        "exit_code": 0, "duration_ms": 812.4, "output": "done\n",
    }],
)  # fmt: skip
HAPPENINGS = _sent(
    models.HappeningList, next="9f2c11d0.41",
    events=[{
        "id": "9f2c11d0.41", "kind": "command.finished", "at": "2026-03-01T12:00:00Z",
        "thread_id": "conv-42", "session_id": "3f0f8e4c5c1b4d0c", "worker": "worker-1",
        "data": {"command_id": "c1d2", "exit_code": 0, "outcome": "ok", "duration_ms": 12.5,
                 "background": True},
    }],
)  # fmt: skip
HAPPENING_EVENTS = """id: 9f2c11d0.42
event: session.ended
data: {"id":"9f2c11d0.42","kind":"session.ended","at":"2026-03-01T12:30:00Z","thread_id":"conv-42",\
"session_id":"3f0f8e4c5c1b4d0c","worker":"worker-1","data":{"reason":"expired","generation":1}}

"""
USAGE = _sent(
    models.UsageReport, by="day", since="2025-01-01", until="2025-01-30", currency="EUR",
    rows=[{
        "day": "2025-01-01", "commands": 12, "cpu_seconds": 3.25, "command_seconds": 41.5,
        "session_seconds": 600.0, "memory_peak_bytes": 70 << 20, "memory_gb_hours": 0.0081,
        "bytes_in": 52400, "bytes_out": 4096, "egress_bytes": 1 << 20, "storage_bytes": 20 << 20,
        "storage_gb_days": 0.02097152, "cost": 0.0021,
    }],
)  # fmt: skip
STARTED_SESSION = _sent(
    models.StartedSession, session_id=_SESSION_ID, sandbox_id=SESSION["sandbox_id"],
    thread_id=_SESSION_ID, provider="docker", environment="Python3", agent=None,
    url=f"http://127.0.0.1:8000/api/sessions/{_SESSION_ID}", status="created", worker="worker-1",
    created_at=_AT, expires_at="2025-01-01T12:30:00Z",
)  # fmt: skip
STOPPED_SESSION = _sent(models.StoppedSession, session_id=_SESSION_ID)
CODE_ANSWER = _sent(
    models.CodeAnswer, stdout="42\n", stderr="", results=[], artifacts=[], error=None,
    session_id=_SESSION_ID,
)  # fmt: skip
CHECKPOINT = _sent(
    models.Checkpoint, checkpoint_id="cp-0199f3c2a1b4-5d1c0a9e7f", thread_id="conv-42",
    session_id=_SESSION_ID, generation=1, name="before the rewrite",
    created_at="2025-01-01T12:00:05Z", cwd="/workspace", files=12, folders=3, size=48213,
    added=9120,
)  # fmt: skip
VOLUME = _sent(
    models.Volume, name="datasets", size=1 << 30, used=40 << 20, worker="worker-1",
    created_at="2025-01-01T12:00:05Z", mounted_by=[{"thread_id": "conv-42", "mode": "rw"}],
)  # fmt: skip
_TOKEN = "preview_Zk3vW0m2QdYJ0l6cQb7nTqk9Hc1xS5uR8eVfAaGgPpI"
PREVIEW = _sent(
    models.Preview, port=8080, session_id=_SESSION_ID, token=_TOKEN, public=False,
    url=f"http://8080-{_SESSION_ID}.localhost:8001/?token={_TOKEN}",
    created_at="2025-01-01T12:00:05Z", expires_at="2025-01-01T12:30:05Z",
)  # fmt: skip
_LISTED_PREVIEW = {**PREVIEW, "url": PREVIEW["url"].partition("?")[0], "token": None}
MKDIR_RESULT = _sent(
    models.MkdirResult, created=True,
    entry={**FILE_ENTRY, "name": "plots", "path": "/workspace/out/plots", "type": "directory",
           "mode": "0755"},
)  # fmt: skip
FILE_WATCH = _sent(
    models.FileWatch, watch_id="9f2c11d0a1b2c3d4", session_id=_SESSION_ID, path="/workspace/src",
    position=0,
)  # fmt: skip
FILE_CHANGES = _sent(
    models.FileChangeList, position=2,
    events=[
        {"position": 1, "kind": "create", "path": "main.py", "type": "file"},
        {"position": 2, "kind": "write", "path": "main.py", "type": "file"},
    ],
)  # fmt: skip
FORK_RESULT = _sent(
    models.ForkResult, checkpoint_id=CHECKPOINT["checkpoint_id"],
    sessions=[{**SESSION, "thread_id": "conv-42-b"}],
)  # fmt: skip
_ENTRY = {
    "number": 17, "what": "command", "command": "git checkout .", "at": "2026-07-27T09:00:00Z",
    "session_id": _SESSION_ID, "command_id": "3f2504e04f8911d39a0c0305e82c3301", "exit_code": 0,
    "duration_ms": 12.5, "undone": False,
    "files": {"made": [], "changed": ["main.py"], "removed": ["notes.md"], "more": 0},
}  # fmt: skip
CHANGES = _sent(
    models.CommandChanges, number=17, command="git checkout .",
    changes=[{"path": "main.py", "change": "changed"}],
    diff="diff --git a/main.py b/main.py\n--- a/main.py\n+++ b/main.py\n@@ -1,1 +1,1 @@\n"
    "-print(2)\n+print(1)\n",
)  # fmt: skip

_DONE: dict[Operation[Any, Any], tuple[str, dict[str, Any]]] = {
    op.LIST_FILES: ("The entries.", LIST_RESULT),
    op.SESSION: ("The session.", SESSION_INFO),
    op.CLEANUP: ("It is gone.", CLEANUP_RESULT),
    op.CONTEXTS: ("The contexts.", {"contexts": [CONTEXT]}),
    op.CREATE_CONTEXT: ("The context.", CONTEXT),
    op.RESTART_CONTEXT: ("It is empty.", {**CONTEXT, "execution_count": 0}),
    op.REMOVE_CONTEXT: ("It is gone.", {**CONTEXT, "state": "lost"}),
    op.INTERRUPT_CONTEXT: ("Interrupted.", {**CONTEXT, "state": "busy"}),
    op.RESULT: ("The command.", EXECUTE_RESULT),
    op.COMMANDS: ("The commands.", COMMAND_LIST),
    op.SIGNAL: ("Sent; how the command stands.", COMMAND_INFO),
    op.STDIN: ("Received.", STDIN_RECEIPT),
    op.RESIZE: ("Resized; how the command stands.", TERMINAL_INFO),
    op.RENAME: ("Where it is now.", FILE_ENTRY),
    op.STAT: ("What is there.", FILE_ENTRY),
    op.MKDIR: ("The folder.", MKDIR_RESULT),
    op.REMOVE: ("It is gone.", {"status": "removed", "path": "out/plots"}),
    op.WATCH: ("The watch.", FILE_WATCH),
    op.WATCH_EVENTS: ("What has changed.", FILE_CHANGES),
    op.UNWATCH: ("It has ended.", {"ended": True}),
    op.SESSIONS: ("The sessions.", SESSION_LIST),
    op.PAUSE: (
        "It stands still.",
        {**SESSION_SUMMARY, "expires_at": "2025-01-02T12:00:00Z", "state": "paused"},
    ),
    op.UNPAUSE: ("It goes on.", SESSION_SUMMARY),
    op.SET_EGRESS: ("By these rules from now on.", SESSION_SUMMARY),
    op.SET_LIFETIME: (
        "When it ends now.",
        {**SESSION_SUMMARY, **dict.fromkeys(("expires_at", "end_at"), "2025-01-01T12:10:00Z")},
    ),
    op.REGISTRY: ("What there is.", REGISTRY),
    op.CALL_TOOL: ("What to tell the model.", TOOL_ANSWER),
    op.ARTIFACTS: ("The artifacts.", _sent(models.ArtifactList, artifacts=[ARTIFACT])),
    op.DELETE_ARTIFACT: ("It is gone.", {"artifact_id": ARTIFACT["artifact_id"]}),
    op.STORED_SESSIONS: ("The sessions.", {"sessions": [STORED_SESSION], "truncated": False}),
    op.STORED_SESSION: ("The session.", STORED_DETAIL),
    op.USAGE: ("What was used.", USAGE),
    op.EVENTS: ("What has happened.", HAPPENINGS),
    op.CHECKPOINT: ("The checkpoint.", CHECKPOINT),
    op.CHECKPOINTS: ("The checkpoints.", _sent(models.CheckpointList, checkpoints=[CHECKPOINT])),
    op.GET_CHECKPOINT: ("The checkpoint.", CHECKPOINT),
    op.DELETE_CHECKPOINT: ("It is gone.", {"checkpoint_id": CHECKPOINT["checkpoint_id"]}),
    op.RESTORE: ("The new session.", {**SESSION, "generation": 2}),
    op.HISTORY: ("The commands.", {"entries": [_ENTRY], "truncated": False}),
    op.CHANGES: ("What it has changed.", CHANGES),
    op.UNDO: (
        "The new session.",
        {**SESSION, "generation": 2, "to": 17, "command": "git checkout ."},
    ),
    op.FORK: ("The new threads.", FORK_RESULT),
    op.VOLUMES: ("The volumes.", _sent(models.VolumeList, volumes=[VOLUME], quota=10 << 30)),
    op.CREATE_VOLUME: ("The volume.", {**VOLUME, "mounted_by": []}),
    op.DELETE_VOLUME: ("It is gone.", {"name": VOLUME["name"]}),
    op.EXPOSE: ("The preview.", PREVIEW),
    op.PREVIEWS: ("The previews.", {"previews": [_LISTED_PREVIEW]}),
    op.UNEXPOSE: ("It has ended.", {"port": PREVIEW["port"]}),
}
ANSWERS: dict[Operation[Any, Any], dict[int | str, dict[str, Any]]] = {
    op.CREATE_SESSION: {
        201: answer("A new session.", SESSION),
        200: {
            "model": models.Session,
            **answer("The thread was live.", {**SESSION, "status": "existing"}),
        },
    },
    op.HEALTH: {
        200: answer("Healthy, or degraded.", HEALTH),
        503: {"model": models.Health, **answer("Unhealthy.", {**HEALTH, "status": "unhealthy"})},
    },
    **{operation: {200: answer(*told)} for operation, told in _DONE.items()},
}
