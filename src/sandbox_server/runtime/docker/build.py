"""Builds the image of a box from the Dockerfile that ships with this package."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import AsyncGenerator, Mapping
from importlib.resources import files
from pathlib import Path

import aiodocker

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.docker.engine import Endpoint, Engine

DOCKERFILE_LABEL = "agent-sandbox.dockerfile.sha256"
"""Digest of the Dockerfile an image was built from; `sandbox doctor` finds old images by it."""


def dockerfile() -> str:
    """The Dockerfile, from the installed package or from a source checkout."""
    package = files("sandbox_server")
    shipped = package.joinpath("images", "Dockerfile.secure")
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    return Path(str(package), "..", "..", "images", "Dockerfile.secure").resolve().read_text()


async def build_image(tag: str, *, base: str | None = None) -> AsyncGenerator[str]:
    """Build the image and yield the engine's build output line by line.

    Raises RuntimeUnavailable if no engine answers, or with its reason if a step fails.
    """
    content = dockerfile().encode()
    engine = Engine(Endpoint.of())
    try:
        with engine.errors():
            async for text in _steps(engine, content, tag, base):
                yield text
    finally:
        await engine.close()


async def _steps(engine: Engine, content: bytes, tag: str, base: str | None) -> AsyncGenerator[str]:
    steps = engine.client.images.build(
        fileobj=io.BytesIO(packed({"Dockerfile": content})),
        encoding="identity",
        tag=tag,
        buildargs={"BASE": base} if base else None,
        labels={DOCKERFILE_LABEL: hashlib.sha256(content).hexdigest()},
        stream=True,
    )
    try:
        async for step in steps:
            if text := str(step.get("stream") or step.get("status") or "").strip():
                yield text
    except aiodocker.DockerStreamError as exc:
        raise RuntimeUnavailable(f"image {tag} was not built: {exc.message}") from exc


async def built_from(engine: Engine, image: str) -> str | None:
    """The sha256 of an image's Dockerfile, empty if unknown. None if there is no such image."""
    about = await engine.image(image)
    if about is None:
        return None
    return str(((about.get("Config") or {}).get("Labels") or {}).get(DOCKERFILE_LABEL, ""))


def packed(files: Mapping[str, bytes]) -> bytes:
    """A tar of world-readable files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
