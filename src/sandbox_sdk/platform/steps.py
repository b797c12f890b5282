"""The steps of a session's life over any Sandboxes: the HTTP routes and Lifecycle use the same."""

from __future__ import annotations

from typing import Any

from sandbox_sdk.protocol.errors import KernelMissing
from sandbox_sdk.protocol.models import (
    CodeAnswer,
    CodeError,
    CreateSessionRequest,
    ExecuteCodeRequest,
    ExecuteRequest,
    RunCodeRequest,
    StartedSession,
    StartSessionRequest,
    StoppedSession,
    StopSessionRequest,
    Target,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

_INTERPRETERS = {"python": "python3 -", "javascript": "node -"}
"""What runs code that comes on stdin, where the environment has no kernel for its language."""
_OTHER_NAMES = {"python3": "python", "node": "javascript", "sh": "bash"}
_SHOWN = 20
"""Lines at the end of stderr that are told as a traceback."""


async def start(sandboxes: Sandboxes, request: StartSessionRequest) -> StartedSession:
    """Make a session. Raises InvalidRequest for an unknown provider, environment or agent."""
    session = await sandboxes.create_session(
        checked(CreateSessionRequest, **request.model_dump(exclude_none=True))
    )
    return StartedSession(
        **session.model_dump(include=set(StartedSession.model_fields) - {"agent"}),
        provider=session.runtime,
        agent=None if session.agent is None else session.agent.name,
        url="",
    )


async def stop(sandboxes: Sandboxes, request: StopSessionRequest) -> StoppedSession:
    """End a session. Raises SessionNotFound."""
    await sandboxes.cleanup(Target(session_id=request.session_id))
    return StoppedSession(session_id=request.session_id)


async def execute_code(sandboxes: Sandboxes, request: ExecuteCodeRequest) -> CodeAnswer:
    """Run code in a session and keep the files it makes. Variables stay where the environment has
    a kernel for the language. Raises SessionNotFound, and KernelMissing for a language that can
    only run on one."""
    asked = request.model_dump(exclude={"language"})
    language = _OTHER_NAMES.get(request.language, request.language)
    try:
        result = await sandboxes.run_code(checked(RunCodeRequest, **asked, language=language))
    except KernelMissing:
        if language not in _INTERPRETERS:
            raise
        return await _interpreted(sandboxes, request, _INTERPRETERS[language])
    return CodeAnswer(**result.model_dump(include=set(CodeAnswer.model_fields)))


async def _interpreted(
    sandboxes: Sandboxes, request: ExecuteCodeRequest, interpreter: str
) -> CodeAnswer:
    result = await sandboxes.execute(
        checked(
            ExecuteRequest,
            session_id=request.session_id,
            command=interpreter,
            stdin=request.code,
            timeout=request.timeout,
            artifacts=True,
        )
    )
    failed = result.exit_code != 0
    return CodeAnswer(
        stdout=result.stdout,
        stderr=result.stderr,
        results=[],
        artifacts=result.artifacts,
        artifact_problems=result.artifact_problems,
        error=_failure(result.stderr, result.exit_code, result.reason) if failed else None,
        session_id=result.session_id,
    )


def _failure(stderr: str, exit_code: int | None, reason: str | None) -> CodeError:
    """What an interpreter told of its end: its last line is the exception."""
    lines = stderr.rstrip().splitlines()
    name, colon, value = (lines[-1] if lines else "").partition(": ")
    if reason is not None or not (colon and name.replace(".", "").isidentifier()):
        name, value = "ExitCode", reason or str(exit_code)
    return CodeError(name=name, value=value, traceback=lines[-_SHOWN:])


def agent_name(config: Any) -> str | None:
    """The agent that a configuration names: a text, or a mapping with `type` or `name`."""
    if config is None or isinstance(config, str):
        return config
    named = config.get("type") or config.get("name")
    return None if named is None else str(named)
