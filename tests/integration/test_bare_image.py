"""Images that are not made for boxes."""

import io
import os
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace

import aiodocker
import pytest

from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.docker import DockerRuntime
from sandbox_server.runtime.docker.image import REPOSITORY
from tests.run import run_owner

IMAGE = "agent-sandbox-test-bare:latest"
DOCKERFILE = b"""
FROM sandbox-secure:latest
USER root
RUN rm -rf /usr/bin/python3* /usr/local/bin/python3* /usr/lib/python3*
"""

pytestmark = pytest.mark.skipif(
    "docker" not in os.environ.get("SANDBOX_TEST_RUNTIMES", ""), reason="needs a Docker engine"
)


@pytest.fixture
async def bare_image() -> AsyncIterator[str]:
    """An image with bash and without python3."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(DOCKERFILE)
        archive.addfile(member, io.BytesIO(DOCKERFILE))
    context.seek(0)
    async with aiodocker.Docker() as engine:
        await engine.images.build(fileobj=context, encoding="identity", tag=IMAGE)
        try:
            yield IMAGE
        finally:
            derived = await engine.images.list(filters={"label": [f"sandbox.image.base={IMAGE}"]})
            for image in derived:
                for tag in image.get("RepoTags") or ():
                    if tag.startswith(f"{REPOSITORY}:"):
                        await engine.images.delete(tag, force=True)
            await engine.images.delete(IMAGE, force=True)


@pytest.mark.parametrize(
    "engine_runtime",
    [name for name in (None, "runsc") if name is None or "gvisor" in os.environ.get(
        "SANDBOX_TEST_RUNTIMES", "")],
)  # fmt: skip
async def test_an_image_without_python3_gets_one_for_the_warden(
    bare_image: str, engine_runtime: str | None
) -> None:
    spec = replace(BoxSpec(owner=run_owner("bare"), deadman_s=300), image=bare_image)
    async with DockerRuntime(engine_runtime=engine_runtime) as runtime:
        box = await runtime.create(spec)
        try:
            async with box.agent() as agent:
                result = await agent.run("command -v python3; whoami; env | grep -c LD_; cd /tmp")
                assert result.output == "sandboxuser\n0\n"
                assert (await agent.run("pwd")).output == "/tmp\n"
                made = await agent.run("echo hi > /workspace/f; head -c 1 /proc/1/mem")
                assert "denied" in made.output or "Permission" in made.output
                listed = await agent.changes(made.command_id, marked_only=False, limit=9)
                assert [entry.path for entry in listed.entries] == ["/workspace/f"]
                async with agent.get("/workspace") as folder:
                    assert b"hi\n" in b"".join([chunk async for chunk in folder])
        finally:
            await box.destroy()
