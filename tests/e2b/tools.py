"""Tools that were made for e2b, each as its users call it. The variables of the SDK are in the
environment, and the tool is named by the first argument. Prints `done`."""

import asyncio
import io
import os
import sys
from pathlib import Path
from typing import Any


def langchain_e2b() -> None:
    import e2b
    from langchain_e2b import E2BSandbox  # type: ignore[import-not-found]

    box = e2b.Sandbox.create(timeout=120)
    try:
        backend = E2BSandbox(sandbox=box)
        done = backend.execute("echo hi; exit 3")
        assert (done.output, done.exit_code) == ("hi\n", 3)
        assert backend.write("/home/user/a.txt", "one\ntwo\n").error is None
        assert backend.edit("/home/user/a.txt", "two", "three").occurrences == 1
        assert backend.read("/home/user/a.txt").file_data["content"] == "one\nthree"
        assert [each["path"] for each in backend.ls("/home/user").entries] == ["/home/user/a.txt"]
        assert backend.grep("three", "/home/user").matches[0]["line"] == 2
        backend.upload_files([("/home/user/b", b"\0\1")])
        found, missing = backend.download_files(["/home/user/b", "/missing"])
        assert (found.content, missing.error) == (b"\0\1", "file_not_found")
    finally:
        box.kill()


async def _openai_agents() -> None:
    from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions

    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(sandbox_type="e2b", timeout=120)
    session: Any = await client.create(options=options)
    try:
        async with session:
            done = await session.exec("echo hi; exit 3", shell=True)
            assert (done.stdout, done.exit_code) == (b"hi\n", 3)
            await session.write(Path("a.txt"), io.BytesIO(b"text"))
            assert (await session.read(Path("a.txt"))).read() == b"text"
            assert await session.running()
            assert b"a.txt" in (await session.persist_workspace()).read()
    finally:
        await client.delete(session)


def openai_agents() -> None:
    asyncio.run(_openai_agents())


if __name__ == "__main__":
    {"langchain-e2b": langchain_e2b, "openai-agents": openai_agents}[sys.argv[1]]()
    print("done", flush=True)
    os._exit(0)  # One in twenty is aborted as Python takes down what openai-agents loaded.
