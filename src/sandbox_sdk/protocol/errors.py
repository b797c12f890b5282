"""Every way a call can fail, as one tree.

    SandboxError
    ├── InvalidRequest            422  invalid_request
    │   ├── InvalidThreadId       422  invalid_thread_id
    │   ├── InvalidPath           422  invalid_path
    │   ├── KernelMissing         422  no_kernel
    │   └── KernelFailed          422  kernel_failed
    ├── Unauthorized              401  unauthorized
    ├── Forbidden                 403  forbidden
    │   └── CommandRejected       403  command_rejected
    ├── NotFound                  404
    │   ├── SessionNotFound       404  session_not_found
    │   ├── ContextNotFound       404  context_not_found
    │   ├── CheckpointNotFound    404  checkpoint_not_found
    │   ├── VolumeNotFound        404  volume_not_found
    │   └── FileMissing           404  file_not_found
    ├── MethodNotAllowed          405  method_not_allowed
    ├── RequestTimeout            408  request_timeout
    ├── Conflict                  409  conflict
    ├── IdempotencyMismatch       409  idempotency_mismatch
    ├── StdinClosed               409  stdin_closed
    ├── SessionLost               410  session_lost
    ├── ContextLost               410  context_lost
    ├── FileTooLarge              413  file_too_large
    ├── Misdirected               421  misdirected
    ├── EnvironmentFailed         424  environment_failed
    ├── CheckpointDamaged         424  checkpoint_damaged
    ├── DiskFull                  507  disk_full
    ├── Unavailable               503
    │   ├── RateLimited           429  rate_limited
    │   ├── Capacity              503  capacity
    │   ├── EnvironmentBuilding   503  environment_building
    │   └── RuntimeUnavailable    503  runtime_unavailable
    │       └── AuditUnavailable  503  audit_unavailable
    └── Internal                  500  internal

Errors travel by code: an unknown code is still a SandboxError on the other side.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


def size_text(size: float) -> str:
    """A number of bytes in its largest unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


class SandboxError(Exception):
    """Base of everything this project raises on purpose."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        """What is left out is that of the class above."""
        super().__init_subclass__()
        cls.code, cls.status = code or cls.code, status or cls.status

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @classmethod
    def from_wire(
        cls, code: str, message: str, details: dict[str, Any] | None = None
    ) -> SandboxError:
        """The error of an answer with this code."""
        error = _BY_CODE.get(code, SandboxError)(message)
        error.details = dict(details or {})
        return error


class InvalidRequest(SandboxError, code="invalid_request", status=422):
    pass


class InvalidThreadId(InvalidRequest, code="invalid_thread_id"):
    pass


class InvalidPath(InvalidRequest, code="invalid_path"):
    pass


class KernelMissing(InvalidRequest, code="no_kernel"):
    """The sandbox has no Jupyter kernel for a language."""


class KernelFailed(InvalidRequest, code="kernel_failed"):
    """The kernel of a language does not start."""


class Unauthorized(SandboxError, code="unauthorized", status=401):
    pass


class Forbidden(SandboxError, code="forbidden", status=403):
    pass


class CommandRejected(Forbidden, code="command_rejected"):
    pass


class NotFound(SandboxError, code="not_found", status=404):
    pass


class SessionNotFound(NotFound, code="session_not_found"):
    @classmethod
    def of(cls, *, thread_id: str | None, session_id: str | None) -> Self:
        """The same for a session of another tenant as for none at all."""
        if thread_id is not None:
            return cls(
                f"thread {thread_id!r} has no session; the first execute, upload_file or list_files"
                " with this thread_id makes one, and so does create_session"
            )
        return cls(
            f"no session {session_id!r}: it has ended, or never was; use its thread_id, or"
            " create_session"
        )


class ContextNotFound(NotFound, code="context_not_found"):
    """The session has no such context, or has it no more."""


class CheckpointNotFound(NotFound, code="checkpoint_not_found"):
    """There is no such checkpoint, or no more."""


class VolumeNotFound(NotFound, code="volume_not_found"):
    """There is no such volume, or no more."""


class FileMissing(NotFound, code="file_not_found"):
    @classmethod
    def at(cls, path: str) -> Self:
        return cls(f"{path} does not exist; list its folder to see what is there")


class MethodNotAllowed(SandboxError, code="method_not_allowed", status=405):
    pass


class RequestTimeout(SandboxError, code="request_timeout", status=408):
    """The request took too long to arrive."""


class Conflict(SandboxError, code="conflict", status=409):
    """Something else is going on that keeps the call from being carried out."""


class IdempotencyMismatch(SandboxError, code="idempotency_mismatch", status=409):
    pass


class StdinClosed(SandboxError, code="stdin_closed", status=409):
    """The command takes no input: it was not started so, its input has ended, or it has."""


class NotListening(SandboxError, code="not_listening", status=502):
    """Nobody listens at a port or a socket of the box, or not yet."""


class SessionLost(SandboxError, code="session_lost", status=410):
    """The box is gone, and everything in it."""

    @classmethod
    def of(cls, session_id: str, *, generation: int) -> Self:
        return cls(
            f"session {session_id} is lost: its box and its files are gone; a call with its"
            " thread_id starts a new one, from its last checkpoint if it persists",
            generation=generation,
        )


class ContextLost(SandboxError, code="context_lost", status=410):
    """The kernel of a context is gone, and its variables. Files are still there."""


class FileTooLarge(SandboxError, code="file_too_large", status=413):
    @classmethod
    def upload(cls, path: str, *, limit_bytes: int) -> Self:
        return cls(
            f"{path} is larger than an upload may be: SANDBOX_MAX_UPLOAD of the server is"
            f" {size_text(limit_bytes)}; split the file, or make it inside the sandbox",
            limit_bytes=limit_bytes,
        )


class Misdirected(SandboxError, code="misdirected", status=421):
    """Another worker has this thread. A coordinator goes there; its callers never see this."""


class EnvironmentFailed(SandboxError, code="environment_failed", status=424):
    """The build of an environment, or the setup of its boxes, has failed. `details` has the end of
    the `log`, and `retry_after_s` until when the server does not try again."""


class CheckpointDamaged(SandboxError, code="checkpoint_damaged", status=424):
    """What is stored of a checkpoint is not what was taken. Nothing was replaced by it."""


class DiskFull(SandboxError, code="disk_full", status=507):
    pass


class Unavailable(SandboxError, code="unavailable", status=503):
    """Nothing is lost; the same call may succeed later."""


class RateLimited(Unavailable, code="rate_limited", status=429):
    pass


class Capacity(Unavailable, code="capacity"):
    pass


class EnvironmentBuilding(Unavailable, code="environment_building"):
    """The environment is not built yet; the build goes on."""


class RuntimeUnavailable(Unavailable, code="runtime_unavailable"):
    pass


class AuditUnavailable(RuntimeUnavailable, code="audit_unavailable"):
    """The server cannot record the call in its audit log, and does not carry it out otherwise."""


class Unreachable(RuntimeUnavailable):
    """No answer came. `may_have_arrived`: whether the server may have carried out the call."""

    silent = False
    """Whether the server took the call, but did not answer in time."""

    def __init__(self, message: str, /, *, may_have_arrived: bool = True, **details: Any) -> None:
        super().__init__(message, **details)
        self.may_have_arrived = may_have_arrived


class Internal(SandboxError, code="internal"):
    pass


def _tree(root: type[SandboxError]) -> list[type[SandboxError]]:
    return [root, *(found for child in root.__subclasses__() for found in _tree(child))]


# Of several classes with one code the most general: the others never travel.
_BY_CODE = {cls.code: cls for cls in reversed(_tree(SandboxError))}
