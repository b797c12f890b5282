"""Lifecycle: start a session, run code in it, stop it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

from sandbox_sdk.backends.local import LocalBackend
from sandbox_sdk.background import background
from sandbox_sdk.client import default_backend
from sandbox_sdk.connection import Connection
from sandbox_sdk.platform import steps
from sandbox_sdk.protocol.models import (
    ExecuteCodeRequest,
    Model,
    StartSessionRequest,
    StopSessionRequest,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

_Step = Callable[[Sandboxes], Awaitable[Model]]


class Lifecycle:
    """Sessions of a server, or without one of this process.

    storage_path, or else runtime_path: the folder for what must survive a restart, of sandboxes
    that this process makes. e2b_api_key: accepted; the provider `e2b` reads SANDBOX_E2B_API_KEY.
    url and api_key: of a server; by default those in SANDBOX_URL and SANDBOX_API_KEY.

    Every method may raise any SandboxError. Use it as a context manager, or close it; otherwise it
    is closed at the end of the process. Sessions stay until they are stopped or expire.
    """

    def __init__(
        self,
        storage_path: str | os.PathLike[str] | None = None,
        runtime_path: str | os.PathLike[str] | None = None,
        e2b_api_key: str | None = None,  # noqa: ARG002
        *,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        backend = _backend(storage_path or runtime_path, url, api_key)
        self._connection = Connection(backend, thread_id=None, session_id=None)
        self._background = background()
        self.sandbox_mgr = CodeRunner(self.run)
        """Runs code in the sessions."""

    def __repr__(self) -> str:
        return f"<Lifecycle {self._connection}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; sessions stay. May be called twice."""
        self._background.forget(self._connection)
        self._background.run(self._connection.close)

    def start(
        self,
        agent_config: Mapping[str, Any] | str | None = None,
        environment: str | None = None,
        provider: str | None = None,
    ) -> dict[str, Any]:
        """Make a session. The answer has its session_id, sandbox_id, provider, environment, url,
        status and times."""
        request = checked(
            StartSessionRequest,
            agent=steps.agent_name(agent_config),
            environment=environment,
            provider=provider,
        )
        return self.run(lambda sandboxes: steps.start(sandboxes, request))

    def stop(self, session_id: str, sandbox_id: str | None = None) -> dict[str, Any]:
        """End a session. sandbox_id is accepted, and not needed. Raises SessionNotFound."""
        request = checked(StopSessionRequest, session_id=session_id, sandbox_id=sandbox_id)
        return self.run(lambda sandboxes: steps.stop(sandboxes, request))

    def session(self, session_id: str) -> dict[str, Any]:
        """What is stored of a session, also after its end: its log of commands, its artifacts.
        Raises SessionNotFound."""
        return self.run(lambda sandboxes: sandboxes.stored_session(session_id))

    def run(self, step: _Step) -> dict[str, Any]:
        """Take a step over the sandboxes; its answer as a dict."""

        async def taken() -> Model:
            return await step(await self._connection.opened())

        self._background.at_exit(self._connection, self._connection.close)
        return self._background.run(taken).model_dump(mode="json")


class CodeRunner:
    """Runs code in the sessions of a Lifecycle."""

    def __init__(self, run: Callable[[_Step], dict[str, Any]]) -> None:
        self._run = run

    def execute_code(
        self, session_id: str, code: str, language: str = "python", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Run code. The answer has stdout, stderr, results, artifacts and error. Raises
        SessionNotFound."""
        request = checked(
            ExecuteCodeRequest, session_id=session_id, code=code, language=language, timeout=timeout
        )
        return self._run(lambda sandboxes: steps.execute_code(sandboxes, request))


def _backend(
    folder: str | os.PathLike[str] | None, url: str | None, api_key: str | None
) -> Sandboxes:
    if folder is None or url or os.environ.get("SANDBOX_URL"):
        return default_backend(url, api_key)
    return LocalBackend(state_dir=Path(folder).absolute())
