"""The command methods of the agent.

Output is kept by this process: what a command wrote while no server listened is lost, which its
followers are told. That a call runs once is a matter of the sandbox: its launcher makes a file for
every id and every idempotency key, before anything is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import re
import uuid
from collections.abc import AsyncGenerator
from typing import Any, Unpack

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import (
    OUTPUT_LIMIT,
    CommandResult,
    CommandSummary,
    Event,
    RunOptions,
)
from sandbox_server.runtime.e2b import scripts
from sandbox_server.runtime.e2b.command import KILLED, Call, E2bCommand, Input
from sandbox_server.runtime.e2b.connection import OWN, CommandRecord
from sandbox_server.runtime.e2b.running import EARLIER, Refused, RunningCommands
from sandbox_server.tasks import TaskSet
from sandbox_warden.output import STDERR
from sandbox_warden.shell import encode_call

_MOST_ARGUMENT = 96 * 1024
"""Linux takes 128 KiB; a call that is longer is uploaded."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BACKSTOP_S = 30.0
_KEPT = 200
"""Commands that are remembered after their end."""


class CommandCalls(RunningCommands):
    """Of BoxAgent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._by_key: dict[str, E2bCommand] = {}
        self._tasks: TaskSet[None] = TaskSet()

    async def close(self) -> None:
        await self._tasks.stop()

    async def run(self, command: str, **options: Unpack[RunOptions]) -> CommandResult:
        begun = await self._begun(command, options)
        await begun.over.wait()
        return begun.standing(self.cwd)

    async def start(self, command: str, **options: Unpack[RunOptions]) -> str:
        return (await self._begun(command, options)).id

    async def stream(self, command: str, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        begun = await self._begun(command, options)
        async with contextlib.aclosing(begun.follow(0)) as events:
            async for event in events:
                yield event

    async def attach(self, command_id: str, *, offset: int = 0) -> AsyncGenerator[Event]:
        found = await self._find(command_id)
        async with contextlib.aclosing(found.follow(offset)) as events:
            async for event in events:
                yield event

    async def result(self, command_id: str, *, output_limit: int = OUTPUT_LIMIT) -> CommandResult:  # noqa: ARG002
        found = await self._find(command_id)
        if not found.over.is_set():
            await self.check_alive()  # That the stream of its output has ended may not show yet.
        return found.standing(self.cwd)

    async def ended(self, command_id: str) -> CommandResult | None:
        found = await self._find(command_id)
        await found.over.wait()
        return found.standing(self.cwd)

    async def signal(self, command_id: str, number: int) -> CommandSummary:
        found = await self._find(command_id)
        if not found.over.is_set():
            await self._send_signal(found, number)
        return found.summary()

    async def send_stdin(
        self, command_id: str, data: bytes, *, end: bool = False, offset: int | None = None
    ) -> int:
        found = await self._find(command_id)
        return await Input(await self.opened(), found).send(data, offset=offset, end=end)

    # How a command begins

    async def _begun(self, text: str, options: RunOptions) -> E2bCommand:
        """A command that has begun, by this call or by an earlier one with its key. Raises
        InvalidPath, FileMissing, IdempotencyMismatch, and what BoxAgent does."""
        call = _call_of(text, options)
        known = self._by_key.get(call.key) if call.key is not None else None
        if known is None:
            known = self._add(E2bCommand(call, uuid.uuid4().hex))
            self._tasks.start(lambda: self._carry_out(known))
            if call.timeout_s is not None:
                self._tasks.start(lambda: self._expire(known))
        elif known.call.digest != call.digest:
            raise _mismatch(call)
        await known.began.wait()
        if known.failure is not None and not known.pid:
            self._forget(known)
            if isinstance(known.failure, _Joined):
                return await self._joined(call, known.failure)
            raise known.failure
        return known

    def _add(self, command: E2bCommand) -> E2bCommand:
        self._commands[command.id] = command
        if command.call.key is not None:
            self._by_key[command.call.key] = command
        ended = [each for each in self._commands.values() if each.over.is_set()]
        for each in ended[: max(len(self._commands) - _KEPT, 0)]:
            self._forget(each)
        return command

    def _forget(self, command: E2bCommand) -> None:
        self._commands.pop(command.id, None)
        if self._by_key.get(command.call.key or "") is command:
            del self._by_key[command.call.key or ""]

    async def _carry_out(self, command: E2bCommand) -> None:
        """From the start to the end; whatever happens, the command is over then."""
        try:
            processes, call = await self.opened(), command.call
            uploaded = await self._upload(call)
            args = ["-c", scripts.LAUNCH, "sandbox", *_arguments(command, uploaded=uploaded)]
            events = processes.start(args, stdin=call.has_input, within_s=_backstop_s(call))
            if call.stdin is not None:
                self._tasks.start(lambda: self._feed(command))
            refused = await self._take_all(command, events)
            if refused is not None:
                command.fail(_error_of(refused, call))
        except errors.SandboxError as exc:
            command.fail(exc)
        except BaseException:
            command.fail(errors.RuntimeUnavailable("the server closed its connection to the box"))
            raise

    async def _upload(self, call: Call) -> bool:
        """Whether the call is too long for arguments, and was uploaded."""
        data = _encoded(call)
        if max(map(len, data.split(b"\0"))) <= _MOST_ARGUMENT:
            return False
        sandbox = await self.sandbox()
        path = f"{self._home}/.sandbox/run/{call.command_id}.call"
        async with self._account.failures.translated(f"box {self.box_id}", path=path):
            await sandbox.files.write(path, data)
        return True

    async def _feed(self, command: E2bCommand) -> None:
        with contextlib.suppress(errors.SandboxError):
            await Input(await self.opened(), command).begin()

    # Commands of an earlier process

    async def _find(self, command_id: str) -> E2bCommand:
        """Raises NotFound."""
        if command_id not in self._commands:
            record = (await self.report()).commands.get(command_id)
            if record is None:
                raise errors.NotFound(
                    f"no command {command_id[:64]} in this session; list its commands to see those"
                    " there are"
                )
            return self.adopt(record)
        return self._commands[command_id]

    def adopt(self, record: CommandRecord) -> E2bCommand:
        """Go on with a command that an earlier process started. Its output so far is lost."""
        if record.command_id in self._commands:
            return self._commands[record.command_id]
        call = Call(
            text="", command_id=record.command_id, digest=record.digest, output_limit=OUTPUT_LIMIT
        )
        command = self._add(E2bCommand(call, record.mark))
        command.add(STDERR, EARLIER)
        command.begin(record.pid, record.pid)
        if record.running:
            self._tasks.start(lambda: self._follow(command))
        else:
            code = KILLED if record.exit_code is None else record.exit_code
            command.end(exit_code=code, cwd=self.cwd, saved=record.exit_code is not None)
        return command

    async def _follow(self, command: E2bCommand) -> None:
        try:
            processes = await self.opened()
            await self._take_all(command, processes.follow(command.pid))
        except errors.SandboxError as exc:
            command.fail(exc)

    async def _joined(self, call: Call, told: _Joined) -> E2bCommand:
        """The command of an earlier process with the same key. Raises IdempotencyMismatch."""
        command_id, _, digest = told.message.partition(" ")
        if digest != call.digest:
            raise _mismatch(call)
        return await self._find(command_id)


class _Joined(errors.SandboxError):
    """The key was used before. The message has the id and the digest of that call."""


def _error_of(refused: Refused, call: Call) -> errors.SandboxError:
    where = f"cannot start in folder {call.cwd}"
    match refused.why:
        case "joined":
            return _Joined(" ".join(refused.details))
        case "missing":
            return errors.FileMissing(f"{where}: No such file or directory")
        case "not_a_folder":
            return errors.InvalidPath(f"{where}: Not a directory")
        case "denied":
            return errors.InvalidPath(f"{where}: Permission denied")
        case "again":
            return errors.Conflict(f"command {call.command_id} has been started before")
    return errors.RuntimeUnavailable(f"the launcher of the box says {refused.why[:100]!r}")


def _mismatch(call: Call) -> errors.IdempotencyMismatch:
    return errors.IdempotencyMismatch(
        f"idempotency_key {(call.key or '')[:64]} was used for another command; use a new key"
    )


def _call_of(command: str, options: RunOptions) -> Call:
    """Raises InvalidRequest."""
    env, stdin = dict(options.get("env") or {}), options.get("stdin")
    cwd, stdin_open = options.get("cwd"), options.get("stdin_open", False)
    _check(command, *env.values(), cwd or "")
    for name in env:
        if not _NAME.fullmatch(name):
            raise errors.InvalidRequest(f"env: {name[:64]!r} is not the name of a variable")
    what = [
        command, cwd, sorted(env.items()), hashlib.sha256(stdin or b"").hexdigest(), stdin_open,
    ]  # fmt: skip
    return Call(
        text=command,
        command_id=options.get("command_id") or uuid.uuid4().hex,
        digest=hashlib.sha256(json.dumps(what).encode()).hexdigest(),
        key=options.get("key"),
        timeout_s=options.get("timeout_s", 30.0),
        cwd=None if cwd is None else posixpath.normpath(posixpath.join(WORKSPACE, cwd)),
        env=env,
        stdin=stdin,
        stdin_open=stdin_open,
        output_limit=options.get("output_limit", OUTPUT_LIMIT),
        own=options.get("own", False),
    )


def _check(*texts: str) -> None:
    for text in texts:
        if "\0" in text:
            raise errors.InvalidRequest(
                "a command, its folder and its variables have no NUL character"
            )
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise errors.InvalidRequest(f"the command is not valid text: {exc}") from None


def _encoded(call: Call) -> bytes:
    """As the shell of the warden reads it: parts with a NUL after each."""
    return encode_call(call.text, command_id=call.command_id, cwd=call.cwd, env=call.env, last=True)


def _arguments(command: E2bCommand, *, uploaded: bool) -> list[str]:
    """Of the launcher. uploaded: the call itself is in its file."""
    call = command.call
    key = OWN if call.own else "-"
    if call.key is not None:
        key = hashlib.sha256(call.key.encode()).hexdigest()
    given = [call.command_id, command.mark, call.digest, key, "pipe" if call.has_input else "null"]
    if uploaded:
        return [*given, call.cwd or ""]
    folder, lines, text, _ = _encoded(call).decode().split("\0", 3)
    return [*given, folder, lines, text]


def _backstop_s(call: Call) -> float | None:
    """When E2B ends a command by itself: later than we do, if we are there."""
    return None if call.timeout_s is None else call.timeout_s + _BACKSTOP_S
