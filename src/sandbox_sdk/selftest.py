"""The self-test: runs every basic operation once, with the settings of this environment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.sync import SandboxClient


def main() -> int:
    """Print a line for each step. The exit code: 0 where all went well, 1 otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        sandbox = SandboxClient()
        try:
            good = all(_tried(name, step) for name, step in _steps(sandbox, Path(folder)))
        finally:
            sandbox.close()
    print("everything works" if good else "something does not work: see above")
    return 0 if good else 1


def _steps(sandbox: SandboxClient, folder: Path) -> list[tuple[str, Callable[[], str]]]:
    """The steps by name. Each returns what to print, or raises."""
    sent, received = folder / "sent.txt", folder / "received.txt"
    sent.write_text("hello from outside\n")

    def create() -> str:
        session = sandbox.create_session()
        return f"{session.session_id} on {session.runtime}"

    def upload() -> str:
        done = sandbox.upload_file(sent, "hello.txt")
        return f"{done.path}, {done.size} bytes"

    def list_files() -> str:
        names = [entry.name for entry in sandbox.list_files().entries]
        return _expect(", ".join(names), "hello.txt")

    def download() -> str:
        sandbox.download_file("hello.txt", received)
        return _expect(received.read_text().strip(), sent.read_text().strip())

    def run(command: str, expected: str) -> str:
        return _expect(sandbox.execute(command, check=True).output.strip(), expected)

    return [
        ("create", create),
        ("whoami", lambda: run("whoami", "sandboxuser")),
        ("2+2", lambda: run("echo $((2+2))", "4")),
        ("upload", upload),
        ("list", list_files),
        ("download", download),
        ("cleanup", lambda: sandbox.cleanup().status),
    ]


def _expect(seen: str, expected: str) -> str:
    if seen != expected:
        raise ValueError(f"got {seen!r}, expected {expected!r}")
    return seen


def _tried(name: str, step: Callable[[], str]) -> bool:
    try:
        print(f"ok      {name:9} {step()}", flush=True)
    except (SandboxError, OSError, ValueError) as exc:
        print(f"FAILED  {name:9} {exc}", flush=True)
        return False
    return True
