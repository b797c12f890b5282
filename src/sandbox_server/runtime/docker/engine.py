"""The connection to a Docker engine: its endpoint, its API client, the mapping of its errors."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiodocker
import aiohttp
from aiodocker.containers import DockerContainer

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError, SessionLost
from sandbox_server.metrics.recorder import NO_METRICS, Metrics

_CALL_S = 120.0
"""Calls take a second at most, but much longer on an engine under load."""
_CONNECT_S = 5.0
_NOT_HTTP = 900
"""aiodocker's status for connection errors."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where an engine listens: a unix socket, or TCP with or without TLS."""

    url: str
    path: str = ""
    host: str = ""
    port: int = 0
    certificates: Path | None = None

    @classmethod
    def of(cls, url: str | None = None) -> Endpoint:
        """The endpoint at url, else at DOCKER_HOST, else the default socket.

        Raises RuntimeUnavailable for an unsupported scheme such as ssh://.
        """
        url = url or os.environ.get("DOCKER_HOST") or f"unix://{_usual_socket()}"
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return cls(url=url, path=parts.path)
        if parts.scheme not in ("tcp", "http", "https") or not parts.hostname:
            message = f"DOCKER_HOST={url} is not supported: use unix:///path or tcp://host:port"
            raise RuntimeUnavailable(message)
        tls = parts.scheme == "https" or bool(os.environ.get("DOCKER_TLS_VERIFY"))
        folder = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
        port = parts.port or (2376 if tls else 2375)
        return cls(url=url, host=parts.hostname, port=port, certificates=folder if tls else None)

    @property
    def base_url(self) -> str:
        if self.path:
            return "http://localhost"
        return f"{'https' if self.certificates else 'http'}://{self.host}:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        if self.certificates is None:
            return None
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        context.load_cert_chain(self.certificates / "cert.pem", self.certificates / "key.pem")
        return context

    def connector(self) -> aiohttp.BaseConnector:
        """limit=0: aiohttp would allow only 100 connections."""
        if self.path:
            return aiohttp.UnixConnector(self.path, limit=0)
        return aiohttp.TCPConnector(limit=0, ssl=self.tls() or True)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A dedicated connection. Raises OSError, including TimeoutError."""
        async with asyncio.timeout(_CONNECT_S):
            if self.path:
                return await asyncio.open_unix_connection(self.path, limit=1 << 20)
            return await asyncio.open_connection(
                self.host, self.port, ssl=self.tls(), limit=1 << 20
            )


def _usual_socket() -> str:
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR", "/run")
    for path in ("/var/run/docker.sock", f"{runtime_folder}/docker.sock"):
        if os.path.exists(path):
            return path
    return "/var/run/docker.sock"


_NOT_DOCKER = (AssertionError, LookupError, ValueError)
"""What aiodocker raises if the other end is not a Docker engine."""


class Engine:
    """An engine at an endpoint. Whoever creates it closes it."""

    def __init__(
        self, endpoint: Endpoint, *, call_s: float = _CALL_S, metrics: Metrics = NO_METRICS
    ) -> None:
        """call_s: how long a call may take."""
        self._metrics = metrics
        self.endpoint = endpoint
        self._timeout = aiohttp.ClientTimeout(total=call_s, sock_connect=5)
        self._client: aiodocker.Docker | None = None
        self._closed = False
        self._info: dict[str, object] | None = None

    def __repr__(self) -> str:
        return f"<Engine {self.endpoint.url}>"

    @property
    def client(self) -> aiodocker.Docker:
        """The API client, created on first use because it belongs to the running event loop."""
        if self._client is None:
            if self._closed:
                raise RuntimeUnavailable(
                    f"this worker has stopped, and closed its connection to {self.endpoint.url};"
                    " ask one that runs"
                )
            with self.errors():
                connector = self.endpoint.connector()
                url = self.endpoint.base_url
                self._client = aiodocker.Docker(url=url, connector=connector, timeout=self._timeout)
        return self._client

    async def info(self) -> dict[str, object]:
        """`docker info`, cached. Raises RuntimeUnavailable."""
        if self._info is None:
            with self.errors():
                self._info = dict(await self.client.system.info())
        return self._info

    async def image(self, name: str) -> dict[str, Any] | None:
        """`docker image inspect`; None if there is no such image. Raises RuntimeUnavailable."""
        with self.errors():
            try:
                return await self.client.images.inspect(name)
            except aiodocker.DockerError as exc:
                if exc.status == 404:
                    return None
                raise

    async def version(self) -> str:
        """The engine's version, not cached. Raises RuntimeUnavailable."""
        with self.errors():
            return str((await self.client.version()).get("Version", "of unknown version"))

    @contextmanager
    def errors(self, *, gone: str = "") -> Iterator[None]:
        """Translate errors of the engine and of the connection into RuntimeUnavailable.

        gone: a 404 becomes SessionLost with this message.
        """
        try:
            yield
        except SandboxError:
            raise
        except aiodocker.DockerError as exc:
            if exc.status == 404 and gone:
                raise SessionLost(gone) from None
            self._metrics.engine_failed()
            if exc.status == _NOT_HTTP:
                raise self.unreachable(exc.__context__ or exc) from exc
            message = f"the Docker engine answered {exc.status}: {_line(exc.message)}"
            raise RuntimeUnavailable(message) from exc
        except (aiohttp.ClientError, OSError, *_NOT_DOCKER) as exc:
            self._metrics.engine_failed()
            raise self.unreachable(exc) from exc

    @asynccontextmanager
    async def container(
        self, config: Mapping[str, Any], *, prefix: str
    ) -> AsyncIterator[DockerContainer]:
        """A new container, which is removed afterwards: also one that was still being made when its
        caller was cancelled. prefix: of its name."""
        name = prefix + uuid.uuid4().hex[:12]
        creating = asyncio.create_task(self.client.containers.create(config, name=name))
        try:
            with self.errors():
                container = await asyncio.shield(creating)
            yield container
        finally:
            await asyncio.shield(asyncio.create_task(_remove(creating)))

    async def remove_containers(self, filters: Mapping[str, Any], *, older_than_s: float) -> None:
        """Those of a process that was killed in the middle of its work. Raises
        RuntimeUnavailable."""
        with self.errors():
            found = await self.client.containers.list(all=1, filters=json.dumps(filters))
            for container in found:
                if container["Created"] < time.time() - older_than_s:
                    with suppress(aiodocker.DockerError):
                        await container.delete(force=True, v=True)

    async def remove_images(self, label: str, repository: str, *, keep: Collection[str]) -> int:
        """Images with a label, by their tags in a repository, except those in use; returns how many
        bytes that were. Raises RuntimeUnavailable."""
        freed = 0
        with self.errors():
            for image in await self.client.images.list(filters={"label": [label]}):
                for tag in image.get("RepoTags") or ():
                    if tag.startswith(f"{repository}:") and tag not in keep:
                        with suppress(aiodocker.DockerError):
                            await self.client.images.delete(tag)
                            freed += int(image["Size"])
        return freed

    def unreachable(self, cause: BaseException) -> RuntimeUnavailable:
        cause = getattr(cause, "os_error", cause)
        why = _line(getattr(cause, "strerror", None) or cause) or type(cause).__name__
        return RuntimeUnavailable(
            f"no Docker engine answers at {self.endpoint.url} ({why}): start it, point DOCKER_HOST"
            " at a running one, or choose another runtime with SANDBOX_RUNTIME"
        )

    def silent(self, call: str, *, for_s: float) -> RuntimeUnavailable:
        """The error of a call that the engine took and does not answer."""
        self._metrics.engine_failed()
        return RuntimeUnavailable(
            f"the Docker engine at {self.endpoint.url} did not {call} within {for_s:g} s; try"
            " again, and restart the engine if that does not help"
        )

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()
            await client.connector.close()


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]


async def _remove(creating: asyncio.Task[DockerContainer]) -> None:
    with suppress(aiodocker.DockerError, aiohttp.ClientError, OSError):
        await (await creating).delete(force=True, v=True)
