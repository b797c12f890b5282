"""The few calls of the Kubernetes API that boxes need. See docs/adr/0030 for why no client library.

Every call says what it does in the words of a role ("create pods"), so that a missing rule is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import SandboxError, Unreachable
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.runtime.kubernetes.access import Access
from sandbox_server.runtime.kubernetes.failures import ApiError, error_for

_CALL_S = 30.0
_CONNECT_S = 5.0
_REPEAT_S = 15.0
"""How long a call is repeated while no API server answers: longer than a restart of one takes."""
_BUSY = (429, 500, 502, 503, 504)
WATCH_S = 240
"""The API server ends a watch after that long. A connection that died unnoticed is noticed then."""


class Api:
    """An API server, for one namespace. Whoever creates it closes it."""

    def __init__(self, access: Access, *, metrics: Metrics = NO_METRICS) -> None:
        self.access = access
        self._metrics = metrics
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<Api {self.access.url} {self.namespace}>"

    @property
    def namespace(self) -> str:
        return self.access.namespace

    def path(self, resource: str, name: str = "", *, group: str = "") -> str:
        """Of objects in the namespace."""
        base = f"/apis/{group}" if group else "/api/v1"
        return f"{base}/namespaces/{self.namespace}/{resource}{f'/{name}' if name else ''}"

    async def get(self, path: str, what: str, **params: str) -> dict[str, Any]:
        """Raises ApiError if it is missing (404), else SandboxError."""
        return await self._repeat("GET", path, what, params=params)

    async def objects(
        self, kind: str, selector: str, *, group: str = "", **params: str
    ) -> list[dict[str, Any]]:
        """Those of a kind in the namespace. Raises SandboxError."""
        path, what = self.path(kind, group=group), f"list {kind}"
        try:
            found = await self.get(path, what, labelSelector=selector, **params)
        except ApiError as exc:
            raise error_for(exc, what, self.namespace) from exc
        return list(found["items"])

    async def create(self, path: str, body: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Make an object whose name nobody else uses. Raises ApiError if it is there already (409):
        also where an answer was lost, and the object is the one that was made."""
        return await self._repeat("POST", path, what, json=body)

    async def patch(
        self, path: str, operations: Sequence[Mapping[str, Any]], what: str
    ) -> dict[str, Any]:
        """Change an object by a JSON Patch (RFC 6902). Raises ApiError if it is missing (404), or
        if an operation does not apply (422), such as a `test`: also where an answer was lost, and
        the object is changed already."""
        return await self._repeat("PATCH", path, what, json=operations)

    async def delete(self, path: str, what: str, **options: Any) -> None:
        """Idempotent."""
        with contextlib.suppress(ApiError):
            await self._repeat("DELETE", path, what, json=options)

    async def watch(self, path: str, what: str, **params: str) -> AsyncGenerator[dict[str, Any]]:
        """Changes of the objects in a list, until the API server ends it. Raises SandboxError, and
        ApiError if the version asked for is too old (410)."""
        params = {**params, "watch": "1", "timeoutSeconds": str(WATCH_S)}
        timeout = httpx.Timeout(_CALL_S, connect=_CONNECT_S, read=WATCH_S + _CALL_S)
        try:
            async with self._http.stream(
                "GET", path, params=params, timeout=timeout, **await self._extras()
            ) as answer:
                if answer.status_code != 200:
                    raise self._judged(ApiError.of(answer.status_code, await answer.aread()), what)
                async for text in answer.aiter_lines():
                    event = json.loads(text)
                    if event["type"] == "ERROR":
                        about = event["object"]
                        raise self._judged(
                            ApiError.of(int(about.get("code", 500)), json.dumps(about).encode()),
                            what,
                        )
                    yield event
        except (httpx.HTTPError, ValueError, LookupError) as exc:
            raise self.unreachable(exc) from exc

    async def _repeat(self, method: str, path: str, what: str, **content: Any) -> dict[str, Any]:
        """content: `json`, or `params`."""
        backoff = Backoff(0.05, 1.0, _REPEAT_S, since=time.monotonic())
        while True:
            try:
                return await self._call(method, path, what, **content)
            except _Again as exc:
                pause_s = backoff.pause_s(time.monotonic())
                if pause_s is None:
                    self._metrics.engine_failed()
                    raise exc.error from exc
            await asyncio.sleep(pause_s)

    async def _call(self, method: str, path: str, what: str, **content: Any) -> dict[str, Any]:
        try:
            extras = await self._extras(method)
            answer = await self._http.request(method, path, **content, **extras)
            if answer.is_success:
                return dict(answer.json())
        except (httpx.HTTPError, ValueError) as exc:
            raise _Again(self.unreachable(exc)) from exc
        error = ApiError.of(answer.status_code, answer.content)
        if error.status in _BUSY:
            raise _Again(error_for(error, what, self.namespace))
        raise self._judged(error, what)

    def _judged(self, error: ApiError, what: str) -> ApiError | SandboxError:
        """A missing object, one that is there already, or one that is not as a patch expects it, is
        for the caller to judge."""
        if error.status == 401:
            self.access.token.forget()
        if error.status == 422 and what.startswith("patch "):
            return error
        if error.status == 410 or (error.status in (404, 409) and error.reason and _is_one(error)):
            return error
        return error_for(error, what, self.namespace)

    async def _extras(self, method: str = "GET") -> dict[str, Any]:
        name = self.access.server_name
        kind = {"Content-Type": "application/json-patch+json"} if method == "PATCH" else {}
        return {
            "headers": {**await self.headers(), **kind},
            **({"extensions": {"sni_hostname": name}} if name else {}),
        }

    async def headers(self) -> dict[str, str]:
        token = await self.access.token.value()
        return {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def _http(self) -> httpx.AsyncClient:
        """Created on first use because it belongs to the running event loop."""
        if self._client is None:
            self._client = httpx.AsyncClient(
                base_url=self.access.url,
                verify=self.access.tls or True,
                timeout=httpx.Timeout(_CALL_S, connect=_CONNECT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                trust_env=False,
            )
        return self._client

    def unreachable(self, cause: BaseException) -> Unreachable:
        why = " ".join(str(cause).split())[:200] or type(cause).__name__
        return Unreachable(f"no Kubernetes API answers at {self.access.url} ({why})")

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class _Again(Exception):
    """The same call may succeed in a moment."""

    def __init__(self, error: SandboxError) -> None:
        self.error = error


def _is_one(error: ApiError) -> bool:
    """Whether it is about the object, not about its namespace."""
    return "namespaces" not in error.message
