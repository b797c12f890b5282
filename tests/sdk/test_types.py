"""Callers who check their types strictly find nothing to complain about, and their mistakes."""

import subprocess
import sys

import pytest

CALLER = """
import asyncio
from pathlib import Path

from sandbox_sdk import (
    AsyncSandboxClient,
    BatchSandboxClient,
    CommandFailed,
    ExecuteResult,
    ExitEvent,
    LocalBackend,
    OutputEvent,
    RemoteBackend,
    SandboxClient,
)
from sandbox_sdk.testing import FakeAnswer, FakeBackend, FakeCall


def sync(thread_id: str) -> int | None:
    with SandboxClient(thread_id, backend=LocalBackend(memory_limit="256m")) as sandbox:
        result: ExecuteResult = sandbox.execute("make", timeout=60, env={"A": "b"}, check=True)
        where: Path = sandbox.download_file("out.csv", "out.csv")
        names: list[str] = [entry.name for entry in sandbox.list_files(recursive=True).entries]
        for event in sandbox.stream("make test"):
            if isinstance(event, OutputEvent):
                print(event.data, where, names)
            elif isinstance(event, ExitEvent):
                print(event.exit_code + 1)
        process = sandbox.start("cat", stdin_open=True)
        process.send_stdin("hello")
        print(process.wait(timeout=5).exit_code, result.output, result["output"])
        try:
            sandbox.execute("false", check=True)
        except CommandFailed as exc:
            return exc.result.exit_code
    with BatchSandboxClient(server_url="http://127.0.0.1:8000", api_key="key") as batch:
        return batch.execute_batch(["a", "b"], stop_on_error=True)[0].exit_code


async def main() -> str:
    async with AsyncSandboxClient(backend=RemoteBackend("http://127.0.0.1:8000")) as sandbox:
        async for event in sandbox.stream("make"):
            print(event.event)
        return (await sandbox.execute("whoami")).output


def answer(call: FakeCall) -> FakeAnswer:
    return FakeAnswer(output=call.command)


fake = FakeBackend()
fake.on("make", answer)
asyncio.run(main())
"""

MISTAKES = """
from sandbox_sdk import SandboxClient

sandbox = SandboxClient(thread="conv")
sandbox.execute("make", timeuot=60)
sandbox.execute("make").output + 1
sandbox.start("cat").signal("BOOM")
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of both, in one run: it is slow to begin."""
    folder = tmp_path_factory.mktemp("callers")
    (folder / "caller.py").write_text(CALLER)
    (folder / "mistakes.py").write_text(MISTAKES)
    words = ["-m", "mypy", "--strict", "--cache-dir", "cache", "caller.py", "mistakes.py"]
    checked = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    return [line for line in checked.stdout.splitlines() if ": error:" in line]


def test_a_strict_caller(complaints: list[str]) -> None:
    assert [line for line in complaints if line.startswith("caller.py")] == []


def test_mistakes_are_found(complaints: list[str]) -> None:
    found = [line.split(":")[1] for line in complaints if line.startswith("mistakes.py")]
    assert found == ["4", "5", "6", "7"]
