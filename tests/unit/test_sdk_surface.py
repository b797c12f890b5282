"""What users import: all of it, nothing else, and nothing they have not installed."""

import inspect
import pydoc
import re
import subprocess
import sys
from typing import Any

import pytest

import sandbox_sdk
from sandbox_sdk import (
    AsyncProcess,
    AsyncSandboxClient,
    CommandOptions,
    Process,
    SandboxClient,
    SandboxError,
    Unreachable,
)
from sandbox_sdk.batch import AsyncBatchSandboxClient, BatchSandboxClient
from sandbox_sdk.integrations.tools import AsyncSandboxTools, SandboxTools

CLIENTS = [
    "ArtifactFile", "AsyncArtifactFile", "AsyncBatchSandboxClient", "AsyncProcess",
    "AsyncSandboxClient", "BatchSandboxClient", "CodeOptions", "CommandOptions", "MountChange",
    "EgressOptions", "MountChanges", "PortOptions", "Process", "SandboxClient", "VolumeOptions",
]  # fmt: skip
BACKENDS = ["Download", "LocalBackend", "LocalSettings", "RemoteBackend", "Sandboxes"]
CONNECTIONS = ["BlockingChannel", "ByteChannel", "Forward"]
EVENTS = [
    "CodeErrorEvent", "CodeEvent", "CommandEvent", "EndEvent", "ExitEvent", "GapEvent",
    "OutputEvent", "ResultEvent", "StartEvent",
]  # fmt: skip
RESULTS = [
    "AgentEntry", "AgentInfo", "Artifact", "ArtifactProblem", "ChangedPaths", "Checkpoint",
    "CheckpointList", "CleanupResult", "CodeError", "CodeResult", "CommandChanges", "CommandInfo",
    "CommandList", "Context", "EgressRules", "EgressUsage", "EnvironmentEntry", "ExecuteResult",
    "FileChange", "FileChangeList", "FileEntry", "FileWatch",
    "ForkResult", "Happening", "HappeningList", "Health", "HistoryEntry", "Limits", "LinkEnd",
    "ListResult",
    "MkdirResult",
    "OpenPorts", "PathChanged", "Preview", "PreviewList", "RegistryList", "Result",
    "Resumed", "RunningCommand", "Session", "SessionInfo", "SessionList", "SessionSummary",
    "SessionUsage", "StdinReceipt", "ThreadHistory", "ToolAnswer", "ToolInfo", "Undone",
    "UploadResult", "UsageReport", "UsageRow", "Verdict", "Volume", "VolumeList",
]  # fmt: skip
ERRORS = [
    "AuditUnavailable",
    "Capacity", "CheckpointDamaged", "CheckpointNotFound", "CodeFailed", "CommandFailed",
    "CommandRejected", "Conflict", "ContextLost", "ContextNotFound", "DiskFull",
    "EnvironmentBuilding", "EnvironmentFailed", "FileMissing", "FileTooLarge", "Forbidden",
    "IdempotencyMismatch", "Internal", "InvalidPath", "InvalidRequest", "InvalidThreadId",
    "KernelFailed", "KernelMissing", "MethodNotAllowed", "Misdirected", "NotFound",
    "NotListening", "RateLimited", "RequestTimeout", "RuntimeUnavailable", "SandboxError",
    "SessionLost", "SessionNotFound", "StdinClosed", "TransferCorrupted", "Unauthorized",
    "Unavailable", "Unreachable", "VolumeNotFound",
]  # fmt: skip


def test_the_whole_surface() -> None:
    parts = (CLIENTS, BACKENDS, CONNECTIONS, EVENTS, RESULTS, ERRORS)
    assert sandbox_sdk.__all__ == sorted(name for part in parts for name in part)
    for name in sandbox_sdk.__all__:
        assert getattr(sandbox_sdk, name) is not None
    with pytest.raises(AttributeError):
        _ = sandbox_sdk.nothing


def test_every_error_is_exported_and_in_one_tree() -> None:
    def tree(root: type[SandboxError]) -> set[type[SandboxError]]:
        return {root}.union(*(tree(child) for child in root.__subclasses__()))

    ours = {cls for cls in tree(SandboxError) if cls.__module__.startswith("sandbox_sdk.")}
    assert sorted(cls.__name__ for cls in ours) == ERRORS
    # Unreachable is how a client tells itself that no answer came; it is never on the wire.
    codes = [cls.code for cls in ours - {SandboxError, Unreachable}]
    assert len(codes) == len(set(codes)), "one class per code"


def test_results_can_be_indexed() -> None:
    event = sandbox_sdk.GapEvent(offset=1, next_offset=2)
    assert (event["offset"], event.next_offset) == (1, 2)
    with pytest.raises(KeyError):
        event["nothing"]


TWINS = [
    (AsyncSandboxClient, SandboxClient),
    (AsyncBatchSandboxClient, BatchSandboxClient),
    (AsyncProcess, Process),
]


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_the_twins_are_alike(one: type, other: type) -> None:
    """Method for method, argument for argument."""
    assert public(one).keys() == public(other).keys()
    for name, method in public(one).items():
        twin = public(other)[name]
        if isinstance(method, property):
            assert isinstance(twin, property)
            continue
        mine, theirs = inspect.signature(method), inspect.signature(twin)
        assert mine.parameters == theirs.parameters, name
        assert untwinned(mine.return_annotation) == untwinned(theirs.return_annotation), name


@pytest.mark.parametrize(("one", "other"), [*TWINS, (AsyncSandboxTools, SandboxTools)])
def test_the_twins_have_the_same_docstrings(one: type, other: type) -> None:
    for name, method in public(other).items():
        told = inspect.getdoc(method)
        assert told, f"{other.__name__}.{name} has no docstring"
        assert told == inspect.getdoc(getattr(one, name.removeprefix("a"), None) or method), name
        assert not re.search(r"\b(await|async)", told), f"{other.__name__}.{name}: {told}"


@pytest.mark.parametrize("client", [SandboxClient, AsyncSandboxClient])
def test_help_reads_like_a_page(client: type) -> None:
    """An example, the methods by group with a line each, and every option with its default."""
    page = pydoc.render_doc(client, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    contents = page[: page.index("Methods defined here")]
    assert contents.index(">>>") < contents.index("Sessions:") < contents.index("Commands:")
    for name in public(client):
        assert re.search(rf"^ \|      {name} +[A-Z]", contents, re.M), f"{name} is in no group"
    found = re.search(r"^ \|  (?:async )?execute\(.*\n(?: \|      .*\n)+", page, re.M)
    assert found is not None
    signature, _, explained = found[0].partition("\n")
    for name in CommandOptions.__annotations__:
        assert f"{name}: " in signature
        assert f" |      {name}: " in explained
    assert "timeout: 'float | None' = None" in signature
    assert "seconds" in explained


def test_nothing_else_is_listed() -> None:
    assert dir(sandbox_sdk) == sandbox_sdk.__all__
    source = (
        "from sandbox_sdk import RemoteBackend, integrations, testing;"
        "from sandbox_sdk.integrations import tools; import sandbox_sdk.integrations.arguments;"
        "print(RemoteBackend.__name__, tools.SandboxTools.__name__)"
    )
    assert run(source) == "RemoteBackend SandboxTools\n"


def public(cls: type) -> dict[str, Any]:
    """What one has of its own making; command_id is an attribute here and a property there."""
    names = [name for name in dir(cls) if not name.startswith("_") and name != "command_id"]
    return {name: inspect.getattr_static(cls, name) for name in names}


def untwinned(annotation: str) -> str:
    return annotation.replace("Async", "").replace("BlockingChannel", "ByteChannel")


BLOCKED = """
import sys

class Absent:
    names = {"aiodocker", "aiohttp", "fastapi", "starlette", "structlog", "uvicorn", "redis",
             "pydantic_settings", "typer", "rich"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_remote_use_needs_nothing_of_the_server() -> None:
    source = """
from sandbox_sdk import *
from sandbox_sdk.testing import FakeBackend
client = SandboxClient("t", server_url="http://127.0.0.1:9")
try:
    client.execute("true")
except RuntimeUnavailable as exc:
    print(exc)
client.close()
print([name for name in sys.modules if name.startswith("sandbox_server")])
"""
    out = run(BLOCKED + source)
    assert "http://127.0.0.1:9" in out
    assert out.endswith("[]\n")


def test_local_use_without_the_server_says_what_to_install() -> None:
    source = """
from sandbox_sdk import LocalBackend, RuntimeUnavailable, SandboxClient
try:
    SandboxClient("t", backend=LocalBackend()).execute("true")
except RuntimeUnavailable as exc:
    print(exc)
"""
    assert "pip install agent-sandbox[server]" in run(BLOCKED + source)


def test_an_import_loads_no_http() -> None:
    """Half of the time that an import of RemoteBackend takes."""
    source = (
        "import sys, sandbox_sdk; print('httpx' in sys.modules, 'sandbox_server' in sys.modules)"
    )
    assert run(source) == "False False\n"
