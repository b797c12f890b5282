"""Code as e2b's code interpreter runs it: contexts, and runs whose output comes as JSON lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from sandbox_sdk.protocol import events, models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import ContextNotFound, SandboxError
from sandbox_server.api.e2b.messages import Message, json_answer, parsed
from sandbox_server.api.e2b.routes import BoxRoute, Door, InBox, full_path
from sandbox_server.api.sse import HEADERS, Feed, HoldingResponse

_LANGUAGES = {"js": "javascript", "ts": "typescript"}
_FORMS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown",
    "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
    "text/latex": "latex", "application/json": "json", "application/javascript": "javascript",
}  # fmt: skip


class ExecuteBody(Message):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class ContextBody(Message):
    language: str | None = None
    cwd: str | None = None


def interpreter_routes(door: Door) -> list[BoxRoute]:
    """Contexts come without the access token: the SDK has another one for the port of these."""
    found = [
        ("POST", "/execute", execute),
        ("GET", "/contexts", list_contexts),
        ("POST", "/contexts", create_context),
        ("DELETE", "/contexts/{context_id}", remove_context),
        ("POST", "/contexts/{context_id}/restart", restart_context),
    ]
    return [BoxRoute(door, *each, purposes=("access", "traffic")) for each in found]


async def execute(box: InBox) -> Response:
    body = parsed(ExecuteBody, await box.asked.body())
    run = _Run(box, await _run_request(box, body))
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(Feed(box.sandboxes.events(run.request)))
        stack.push_async_callback(run.leave)
        first = run.began(await feed.next())
        return HoldingResponse(
            run.lines(feed, first),
            held=stack.pop_all(),
            headers=HEADERS,
            media_type="application/json",
        )
    raise AssertionError("unreachable")


class _Run:
    """One run of code, while its caller listens."""

    def __init__(self, box: InBox, request: models.RunCodeRequest) -> None:
        self.request = request
        self._box = box
        self._command_id = ""
        self._ended = False

    def began(self, first: Any) -> Any:
        if isinstance(first, events.StartEvent):
            self._command_id = first.command_id
        return first

    async def lines(self, feed: Feed, event: Any) -> AsyncIterator[bytes]:
        try:
            while event is not None:
                self._ended = isinstance(event, events.EndEvent)
                for line in _told(event):
                    yield json.dumps(line, separators=(",", ":")).encode() + b"\n"
                event = await feed.next()
        except SandboxError as error:
            self._ended = True
            failed = {"type": "error", "name": error.code, "value": error.message, "traceback": ""}
            yield json.dumps(failed).encode() + b"\n"

    async def leave(self) -> None:
        """A run whose caller has left is interrupted: nobody would see what it does."""
        if self._ended or not self._command_id:
            return
        sandboxes = self._box.sandboxes
        with suppress(SandboxError):
            if self.request.context_id is not None:
                target = _context(self._box, self.request.context_id)
                await sandboxes.call(op.INTERRUPT_CONTEXT, target)
            else:
                await sandboxes.signal(self._box.target, self._command_id, signal="INT")


async def _run_request(box: InBox, body: ExecuteBody) -> models.RunCodeRequest:
    language, context_id = _language(body.language) or "python", body.context_id
    in_shell = context_id is None and language == models.BASH
    return models.checked(
        models.RunCodeRequest,
        session_id=box.session_id,
        code=body.code,
        language=models.BASH if in_shell else None,
        context_id=None if in_shell else await _there(box, context_id, language),
        env=body.env_vars or {},
        timeout=models.MAX_TIMEOUT_S,
        artifacts=False,
    )


async def _there(box: InBox, context_id: str | None, language: str) -> str:
    """The id of a context that is there; None is that of the language, which begins in the home,
    where files are written to. Raises ContextNotFound."""
    name = context_id or f"e2b-{language}"
    known = {each.context_id for each in (await box.sandboxes.contexts(box.target)).contexts}
    if name not in known and context_id is not None:
        raise ContextNotFound(f"no context {name[:64]!r} in this sandbox")
    if name not in known:
        await _make_context(box, language, None, name)
    return name


async def _make_context(
    box: InBox, language: str, cwd: str | None, context_id: str | None = None
) -> models.Context:
    request = models.checked(
        models.CreateContextRequest,
        session_id=box.session_id,
        language=language,
        cwd=full_path(cwd),
        context_id=context_id,
    )
    return await box.sandboxes.call(op.CREATE_CONTEXT, request)


def _told(event: events.AnyEvent) -> Iterator[dict[str, Any]]:
    match event:
        case events.OutputEvent():
            now = datetime.now(UTC).isoformat()
            yield {"type": event.event, "text": event.data, "timestamp": now}
        case events.ResultEvent():
            yield {"type": "result", "is_main_result": event.is_main_result, **_forms(event)}
        case events.CodeErrorEvent():
            traceback = "\n".join(event.traceback)
            yield {
                "type": "error",
                "name": event.name,
                "value": event.value,
                "traceback": traceback,
            }
        case events.EndEvent():
            yield {"type": "number_of_executions", "execution_count": event.execution_count or 0}
            yield {"type": "end_of_execution"}


def _forms(result: events.ResultEvent) -> dict[str, Any]:
    """What it shows by the SDK's names; what that has no name for is `extra`."""
    known = {_FORMS[mime]: data for mime, data in result.data.items() if mime in _FORMS}
    extra = {mime: data for mime, data in result.data.items() if mime not in _FORMS}
    return {**known, "extra": extra} if extra else known


async def list_contexts(box: InBox) -> Response:
    found = await box.sandboxes.contexts(box.target)
    return json_answer([_told_context(each) for each in found.contexts])


async def create_context(box: InBox) -> Response:
    body = parsed(ContextBody, await box.asked.body())
    made = await _make_context(box, _language(body.language) or "python", body.cwd)
    return json_answer(_told_context(made))


async def remove_context(box: InBox) -> Response:
    await box.sandboxes.call(op.REMOVE_CONTEXT, _named(box))
    return Response(status_code=204)


async def restart_context(box: InBox) -> Response:
    await box.sandboxes.call(op.RESTART_CONTEXT, _named(box))
    return Response(status_code=204)


def _named(box: InBox) -> models.ContextTarget:
    return _context(box, str(box.http.path_params["context_id"]))


def _context(box: InBox, context_id: str | None) -> models.ContextTarget:
    if not context_id:
        raise ContextNotFound("name a context")
    return models.checked(models.ContextTarget, session_id=box.session_id, context_id=context_id)


def _language(name: str | None) -> str | None:
    return None if name is None else _LANGUAGES.get(name.lower(), name.lower())


def _told_context(context: models.Context) -> dict[str, str]:
    return {"id": context.context_id, "language": context.language, "cwd": context.cwd}
