"""Routes of e2b's API: who calls, and errors in its words. None is in our OpenAPI document."""

from __future__ import annotations

import binascii
import posixpath
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError, Unauthorized
from sandbox_sdk.protocol.models import USER, Target, checked
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server import log_fields
from sandbox_server.access.keys import Caller, Scope
from sandbox_server.api.e2b.errors import box_error, control_error
from sandbox_server.api.e2b.tokens import AccessTokens, Holder, Purpose, SignedUrls
from sandbox_server.api.route import Asked, Handler, PublicRoute, Served
from sandbox_server.runtime.base import HOME
from sandbox_server.sessions.preview_address import PreviewSite

PREFIX = "/e2b"
_E2B_KEY = "e2b_"
_DEFAULT_USER = "user"


@dataclass(frozen=True, slots=True)
class Door:
    """What the routes share besides what all routes do."""

    served: Served
    tokens: AccessTokens
    signed: SignedUrls
    previews_at: PreviewSite | None = None
    """None for a server without previews."""


@dataclass(frozen=True, slots=True)
class InBox:
    """A call to one sandbox."""

    asked: Asked
    session_id: str

    @property
    def http(self) -> Request:
        return self.asked.http

    @property
    def sandboxes(self) -> Sandboxes:
        return self.asked.sandboxes

    @property
    def target(self) -> Target:
        return Target(session_id=self.session_id)


BoxHandler = Callable[[InBox], Awaitable[Response]]


class _DoorRoute(PublicRoute):
    def __init__(
        self, door: Door, method: str, path: str, handler: Callable[..., Awaitable[Response]]
    ) -> None:
        super().__init__(
            path, handler, described=_described, methods=[method], include_in_schema=False
        )
        self._door = door


class ControlRoute(_DoorRoute):
    """A call with an API key: about sandboxes, not to one."""

    def __init__(
        self, door: Door, method: str, path: str, handler: Handler, *, scope: Scope = "use"
    ) -> None:
        super().__init__(door, method, PREFIX + path, handler)
        self._scope = scope

    def _refusal(self, error: SandboxError, request_id: str) -> Response:
        return control_error(error, request_id)

    async def _answer(self, http: Request) -> Response:
        asked = self._door.served.asked(http, self._caller(http.headers))
        return asked.with_limits(await self._handler(asked))

    def _caller(self, headers: Headers) -> Caller:
        keys = self._door.served.keys
        try:
            return keys.caller(headers, self._scope)
        except Unauthorized:
            decoded = decoded_key(headers)
            if decoded is None:
                raise
            return keys.caller(decoded, self._scope)


class BoxRoute(_DoorRoute):
    """A call to a sandbox, with its access token."""

    def __init__(
        self,
        door: Door,
        method: str,
        path: str,
        handler: BoxHandler,
        *,
        purposes: tuple[Purpose, ...] = ("access",),
        prefix: str = PREFIX,
    ) -> None:
        super().__init__(door, method, prefix + path, handler)
        self._purposes = purposes

    def _refusal(self, error: SandboxError, request_id: str) -> Response:
        return box_error(error, request_id)

    async def _answer(self, http: Request) -> Response:
        session_id = http.headers.get("e2b-sandbox-id", "")[:128]
        box = self._in_box(http, session_id, self._holder(http, session_id))
        return box.asked.with_limits(await self._handler(box))

    def _holder(self, http: Request, session_id: str) -> Holder:
        token = http.headers.get("x-access-token", "")
        if not token and "traffic" in self._purposes:
            token = http.headers.get("e2b-traffic-access-token", "")
        return self._door.tokens.check(token, session_id, *self._purposes)

    def _in_box(self, http: Request, session_id: str, holder: Holder) -> InBox:
        """Raises Unauthorized for the token of a key that is not valid any more."""
        caller = self._door.served.keys.holder(holder.tenant, holder.key_id)
        log_fields.bind(session=session_id)
        return InBox(self._door.served.asked(http, caller), session_id)


def decoded_key(headers: Headers) -> Headers | None:
    """The headers with our key, where it was sent in the form of e2b's: `e2b_` and the hex digits
    of its bytes. Older versions of the SDK take no other. None if it is not such a key."""
    given = headers.get("x-api-key", "")
    if not given.startswith(_E2B_KEY):
        return None
    try:
        key = bytes.fromhex(given.removeprefix(_E2B_KEY))
    except ValueError:
        return None
    return Headers(raw=[(b"x-api-key", key)])


def check_user(http: Request) -> None:
    """Raises Unauthorized for a user that boxes do not have."""
    name = http.query_params.get("username") or _basic_user(http.headers)
    if name in ("", _DEFAULT_USER, USER):
        return
    raise Unauthorized(
        f"a sandbox of this server has no user {name[:100]!r}: everything in it is done by its one"
        f" user, without root; leave the user out, or name {_DEFAULT_USER!r}"
    )


def _basic_user(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("the Authorization header is not a user name in base64") from None


def target_of(asked: Asked) -> Target:
    session_id = str(asked.http.path_params["sandbox_id"])
    log_fields.bind(session=session_id[:128])
    return checked(Target, session_id=session_id[:128])


def full_path(path: str | None) -> str:
    """A path as the SDK writes it: a relative one begins in the user's home. Raises
    InvalidRequest."""
    if path is None or path in ("", "~"):
        return HOME
    if "\0" in path:
        raise InvalidRequest("a path must not have a NUL character")
    return posixpath.join(HOME, path.removeprefix("~/"))


async def _described() -> None:
    """For FastAPI; never called."""
