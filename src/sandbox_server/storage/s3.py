"""An S3 service as an object store, through obstore."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sandbox_sdk.protocol.errors import InvalidRequest, NotFound, RuntimeUnavailable
from sandbox_server.storage.objects import ObjectStore, StoredObject

_OPTIONS = {"endpoint", "region", "path_style"}


class S3Objects(ObjectStore):
    """A bucket, or what is below a prefix in it. Keys come from the environment, as every S3 client
    reads them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine."""

    refresh_s = 12 * 3600.0
    """To put an object again means to send it again."""

    def __init__(self, url: str) -> None:
        """url: s3://bucket/prefix?endpoint=http://host:port&region=name. Raises InvalidRequest."""
        try:
            from obstore import exceptions
            from obstore.store import S3Store
        except ImportError:
            raise InvalidRequest(
                "checkpoints in S3 need the extra s3: pip install 'agent-sandbox[s3]'"
            ) from None
        parts = urlsplit(url)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if not parts.netloc or given.keys() - _OPTIONS:
            raise InvalidRequest(
                f"{url!r} is not s3://BUCKET/PREFIX?endpoint=URL&region=NAME; leave out what is not"
                " needed"
            )
        self._errors: Any = exceptions
        self._url = f"s3://{parts.netloc}{parts.path}"
        endpoint = given.get("endpoint")
        config: dict[str, Any] = {"region": given.get("region", "us-east-1")}
        options: dict[str, Any] = {"timeout": "60s", "connect_timeout": "5s"}
        if endpoint:
            config |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
            options["allow_http"] = endpoint.startswith("http://")
        self._store = S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            config=config,  # type: ignore[arg-type]
            client_options=options,  # type: ignore[arg-type]
            retry_config={"max_retries": 5},
        )

    def __repr__(self) -> str:
        return f"<S3Objects {self._url}>"

    async def put(self, name: str, data: bytes) -> None:
        with self._translated():
            await self._store.put_async(name, data)

    async def get(self, name: str) -> bytes:
        try:
            with self._translated():
                found = await self._store.get_async(name)
                return bytes(await found.bytes_async())
        except FileNotFoundError:
            raise NotFound(f"the store has no object {name}") from None

    async def look(self, name: str) -> StoredObject | None:
        try:
            with self._translated():
                found = await self._store.head_async(name)
        except FileNotFoundError:
            return None
        return StoredObject(name, found["size"], _age_s(found["last_modified"]))

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        with self._translated():
            async for batch in self._store.list(prefix or None):
                for each in batch:
                    yield StoredObject(each["path"], each["size"], _age_s(each["last_modified"]))

    async def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._translated():
            await self._store.delete_async(name)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Without the request, which may have keys in it. What is not there is told as it is."""
        try:
            yield
        except FileNotFoundError:
            raise
        except self._errors.BaseError as exc:
            why = str(exc).splitlines()[0][:300]
            raise RuntimeUnavailable(
                f"the store of checkpoints {self._url} cannot be used: {why}; retry in 2 s",
                retry_after_s=2,
            ) from exc


def _age_s(modified: datetime) -> float:
    return max((datetime.now(UTC) - modified).total_seconds(), 0.0)
