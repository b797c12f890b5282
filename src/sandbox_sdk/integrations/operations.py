"""What each tool does in the sandbox of one thread."""

from __future__ import annotations

import hashlib
import json
import shlex
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Unpack

from sandbox_sdk import transfer
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.errors import (
    FileTooLarge,
    InvalidPath,
    InvalidRequest,
    SandboxError,
    SessionNotFound,
)
from sandbox_sdk.integrations import arguments as args
from sandbox_sdk.integrations.filing import EDIT_COMMAND, edited, listed, numbered, oldest_beyond
from sandbox_sdk.integrations.presenting import (
    OUTPUTS,
    REPLAYED,
    RESTARTED,
    Presenting,
    clean,
    present,
    shorten,
)
from sandbox_sdk.integrations.showing_code import images_of, openai_parts, present_code
from sandbox_sdk.options import CodeOptions, CommandOptions
from sandbox_sdk.protocol.events import ExitEvent, OutputEvent
from sandbox_sdk.protocol.models import (
    CallToolRequest,
    CodeResult,
    ExecuteResult,
    HistoryEntry,
    Model,
    Target,
    ToolImage,
    UndoRequest,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

MAX_READ = 10 << 20
"""Bytes of a file that a tool reads for a model."""
MAX_KEPT = 16 << 20
"""Bytes of saved outputs in a box: /tmp there is memory."""
THREADS_REMEMBERED = 10_000


_Told = TypeVar("_Told", ExecuteResult, CodeResult)


@dataclass(frozen=True)
class Reply:
    """What a tool says to the model; `text` is all it needs to see."""

    text: str
    artifact: Model | None = None
    """What the text was made from, for programs."""
    error: SandboxError | None = None
    """Why the call was not carried out, where the sandbox refused it."""
    failed: bool = False
    """Whether the call was not carried out. A command that ends with exit code 1 was."""
    images: tuple[ToolImage, ...] = ()
    """What code has shown, for models that see."""

    def __str__(self) -> str:
        return self.text

    def parts(self) -> list[dict[str, Any]]:
        """Text and images as content parts of an OpenAI-style message."""
        return openai_parts(self.text, self.images)


class Generations:
    """The last generation of each thread that its model knows of.

    The server reports a new sandbox once. If that was to a file tool, whose reply does not say so,
    the reply of the next command does.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def remember(self, thread_id: str, generation: int) -> None:
        self._known.pop(thread_id, None)
        self._known[thread_id] = generation
        if len(self._known) > THREADS_REMEMBERED:
            del self._known[next(iter(self._known))]

    def notice(self, thread_id: str, generation: int) -> None:
        """Remember a generation that the model is not told of, unless one is known."""
        if thread_id not in self._known:
            self.remember(thread_id, generation)

    def told(self, thread_id: str, result: _Told) -> _Told:
        """The result, marked as "recreated" if the model has not been told of its generation."""
        known = self._known.get(thread_id, result.generation)
        self.remember(thread_id, result.generation)
        if known < result.generation and result.session_state == "live":
            return result.model_copy(update={"session_state": "recreated"})
        return result


class Operations:
    """The tools over one sandbox. Every method may raise any SandboxError."""

    def __init__(
        self,
        sandbox: AsyncSandboxClient,
        sandboxes: Sandboxes,
        *,
        thread_id: str,
        presenting: Presenting,
        generations: Generations,
        allowed: Sequence[str] | None = None,
    ) -> None:
        """allowed: the names of the tools that an agent has; None for any."""
        self.sandbox = sandbox
        self.thread_id = thread_id
        self._sandboxes = sandboxes
        self._presenting = presenting
        self._generations = generations
        self._allowed = allowed

    def require(self, name: str) -> None:
        """Raises ValueError for a tool that the agent does not have."""
        if self._allowed is not None and name not in self._allowed:
            there_are = ", ".join(self._allowed) or "none"
            raise ValueError(f"there is no tool {name!r}, only {there_are}")

    async def call(self, call: args.Arguments, tool_call_id: str | None) -> Reply:
        """Carry out a call; one that was carried out before under its tool_call_id is not again."""
        match call:
            case args.Bash():
                return await self.bash(call, tool_call_id)
            case args.RunCode():
                return await self.run_code(call, tool_call_id)
            case args.EditFile():
                return await self._edit(call, tool_call_id)
            case args.ReadFile(path=path, offset=offset, limit=limit):
                data = await self.content(path)
                options = self._presenting
                return Reply(numbered(data, path=path, offset=offset, limit=limit, options=options))
            case args.ListFiles():
                listing = await self.sandbox.list_files(call.path, recursive=call.recursive)
                return Reply(listed(listing, options=self._presenting), artifact=listing)
            case args.WriteFile():
                return await self._store(call.path, call.content.encode())
            case args.UploadFile():
                return await self._store(call.path, b64decode(call.data_base64))
            case args.DownloadFile():
                return Reply(b64encode(await self.content(call.path)).decode())
            case args.Undo():
                return await self._undo(call, tool_call_id)
        raise TypeError(f"no such tool: {call!r}")

    async def rewind(self, checkpoint_id: str, *, told: bool) -> None:
        """Take the thread back to a checkpoint.

        told: whether the model learns with its next command that its sandbox is another one. One
        that is taken back to the same moment need not.
        """
        session = await self.sandbox.rewind(checkpoint_id)
        if not told:
            self._generations.remember(self.thread_id, session.generation)

    async def quietly(self, command: str, **options: Unpack[CommandOptions]) -> ExecuteResult:
        """Run a command that the model does not see."""
        result = await self.sandbox.execute(command, **options)
        self._generations.notice(self.thread_id, result.generation)
        return result

    async def bash(self, call: args.Bash, tool_call_id: str | None) -> Reply:
        if call.restart:
            restarted = await self._restart(tool_call_id)
            if call.command is None:
                return restarted
        assert call.command is not None
        result = await self.sandbox.execute(call.command, **_options(call, tool_call_id))
        return _after_restart(call, await self._reply(result))

    async def run(self, command: str, **options: Unpack[CommandOptions]) -> Reply:
        """Run a command whose output the model sees."""
        return await self._reply(await self.sandbox.execute(command, **options))

    async def declared(
        self, name: str, arguments: Mapping[str, Any], tool_call_id: str | None
    ) -> Reply:
        """Call a tool that the operator has declared, and that the server carries out."""
        request = checked(
            CallToolRequest,
            thread_id=self.thread_id,
            tool=name,
            arguments=dict(arguments),
            idempotency_key=_key(tool_call_id, name + json.dumps(arguments, sort_keys=True)),
        )
        try:
            answer = await self._sandboxes.call_tool(request)
        except InvalidRequest as error:  # What the model has got wrong, as for our own tools.
            raise ValueError(error.message) from None
        if answer.result is not None:
            self._generations.remember(self.thread_id, answer.result.generation)
        return Reply(
            answer.text, artifact=answer, failed=answer.failed, images=tuple(answer.images)
        )

    async def run_code(self, call: args.RunCode, tool_call_id: str | None) -> Reply:
        key = _key(tool_call_id, f"{call.language}\0{call.code}")
        return await self.code(call.code, call.language, timeout=call.timeout, idempotency_key=key)

    async def code(self, code: str, language: str | None, **options: Unpack[CodeOptions]) -> Reply:
        """Run code whose output and images the model sees."""
        result = await self.sandbox.run_code(code, language, **options)
        result = self._generations.told(self.thread_id, result)
        text = present_code(result, options=self._presenting)
        return Reply(text, artifact=result, images=images_of(result))

    async def stream(
        self, call: args.Bash, tool_call_id: str | None
    ) -> AsyncGenerator[str | Reply]:
        """The output of a command as it comes, and then the reply."""
        if call.restart:
            restarted = await self._restart(tool_call_id)
            if call.command is None:
                yield restarted
                return
        assert call.command is not None
        events = self.sandbox.stream(call.command, **_options(call, tool_call_id))
        async with aclosing(events) as following:
            async for event in following:
                if isinstance(event, OutputEvent):
                    yield event.data
                elif isinstance(event, ExitEvent):
                    process = await self.sandbox.process(event.command_id)
                    result = await process.result()
                    # Only the events say what became of this call: a new box, a replay.
                    told = event.model_dump(include={"session_state", "replayed", "hint"})
                    reply = await self._reply(result.model_copy(update=told))
                    yield _after_restart(call, reply)

    async def _restart(self, tool_call_id: str | None) -> Reply:
        """Restart the sandbox, unless this very call has done so before."""
        key = _key(tool_call_id, "restart")
        if key is None or not await self._remembers(key):
            session = await self.sandbox.restart()
            self._generations.remember(self.thread_id, session.generation)
        if key is None:
            return Reply(RESTARTED)
        # Remembers the call in the new sandbox.
        result = await self.sandbox.execute(":", idempotency_key=key)
        return Reply(_told(RESTARTED, result), artifact=result)

    async def _remembers(self, key: str) -> bool:
        try:
            known = await self.sandbox.commands()
        except SessionNotFound:
            return False
        return any(command.idempotency_key == key for command in known.commands)

    async def _reply(self, result: ExecuteResult) -> Reply:
        result = self._generations.told(self.thread_id, result)
        text = clean(result.output, self._presenting)
        saved_as = None
        if shorten(text, self._presenting.max_chars):
            saved_as = await self._save(text, f"{OUTPUTS}/{result.command_id}.txt")
        said = present(result, options=self._presenting, saved_as=saved_as)
        return Reply(said, artifact=result)

    async def _save(self, text: str, path: str) -> str | None:
        """Save an output in the box, and delete the oldest beyond MAX_KEPT. None if that fails."""
        try:
            saved = await self.sandbox.write_text(path, text)
            listing = await self.sandbox.list_files(OUTPUTS)
            if old := oldest_beyond(listing, MAX_KEPT):
                await self.quietly(f"exec rm -f -- {shlex.join(old)}")
        except SandboxError:
            return None
        return saved.path

    async def content(self, path: str, *, max_bytes: int = MAX_READ) -> bytes:
        """The bytes of a file. Raises InvalidPath for a folder, FileTooLarge."""
        target = Target(thread_id=self.thread_id)
        async with self._sandboxes.download_file(target, path) as download:
            if download.info.type == "directory":
                raise InvalidPath(f"{path} is a folder, not a file; list it instead")
            if (size := download.info.size or 0) > max_bytes:
                raise FileTooLarge(
                    f"{path} has {size:,} bytes, at most {max_bytes:,} can be read; use grep, head"
                    " or sed"
                )
            return await transfer.read(download)

    async def _undo(self, call: args.Undo, tool_call_id: str | None) -> Reply:
        done = [each for each in await self.sandbox.history(limit=250) if _counts(each)]
        if call.steps > len(done):
            raise ValueError(f"only {len(done)} steps can be taken back")
        request = checked(
            UndoRequest,
            thread_id=self.thread_id,
            to=done[call.steps - 1].number,
            idempotency_key=_key(tool_call_id, f"undo {call.steps}"),
        )
        session = await self._sandboxes.undo(request)
        self._generations.remember(self.thread_id, session.generation)
        return Reply(f"Files and shell are as they were before: {session.command}", session)

    async def _store(self, path: str, data: bytes) -> Reply:
        result = await self.sandbox.upload_bytes(data, path)
        return Reply(f"Wrote {result.size:,} bytes to {result.path}", artifact=result)

    async def _edit(self, call: args.EditFile, tool_call_id: str | None) -> Reply:
        stdin = call.model_dump_json()
        options = CommandOptions(stdin=stdin)
        if key := _key(tool_call_id, stdin):
            options["idempotency_key"] = key
        result = await self.quietly(EDIT_COMMAND, **options)
        text, done = edited(result, replace_all=call.replace_all)
        return Reply(_told(text, result), artifact=result, failed=not done)


def _counts(entry: HistoryEntry) -> bool:
    return not entry.undone and entry.what != "undo"


def _after_restart(call: args.Bash, reply: Reply) -> Reply:
    return replace(reply, text=f"{RESTARTED}\n{reply.text}") if call.restart else reply


def _told(text: str, result: ExecuteResult) -> str:
    """The text, with a note if it tells what an earlier call did."""
    return f"{REPLAYED}\n{text}" if result.replayed else text


def _options(call: args.Bash, tool_call_id: str | None) -> CommandOptions:
    options = CommandOptions()
    if call.timeout is not None:
        options["timeout"] = call.timeout
    if key := _key(tool_call_id, call.command or ""):
        options["idempotency_key"] = key
    return options


def _key(tool_call_id: str | None, what: str) -> str | None:
    """The idempotency key of a call. It includes what is to be done: a person may change the
    arguments of a call that waits for approval, which keeps its id."""
    if not tool_call_id:
        return None
    digest = hashlib.sha256(f"{tool_call_id}\0{what}".encode()).hexdigest()[:32]
    return f"{tool_call_id[:100]}:{digest}"
