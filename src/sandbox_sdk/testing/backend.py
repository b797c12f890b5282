"""FakeBackend: sandboxes in memory, whose commands end as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import posixpath
import re
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Mapping,
    Sequence,
)
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, cast

import anyio

from sandbox_sdk.integrations.arguments import USUAL, parsed
from sandbox_sdk.integrations.tools import AsyncSandboxTools
from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import FileTooLarge, InvalidPath, InvalidRequest, NotListening
from sandbox_sdk.protocol.events import (
    AnyEvent,
    CodeCollector,
    CodeEvent,
    ExitEvent,
    StartEvent,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes
from sandbox_sdk.testing import code
from sandbox_sdk.testing.agents import FakeRegistry, FakeTool, ToolAnswering
from sandbox_sdk.testing.answers import Answering, FakeAnswer, FakeCall, Script, answer_to
from sandbox_sdk.testing.checkpoints import FakeCheckpoints
from sandbox_sdk.testing.commands import FakeCommand
from sandbox_sdk.testing.files import FakeFiles, resolve
from sandbox_sdk.testing.sessions import (
    RUNTIME,
    WORKER,
    End,
    FakeSession,
    FakeSessions,
    check_egress,
)
from sandbox_sdk.testing.stored import FakeArtifacts, stored_detail, stored_sessions
from sandbox_sdk.transfer import ByteChunks

_LOOK_S = 0.005


class FakeBackend(Sandboxes):
    """A double for tests of programs that use sandboxes. Nothing is run, nothing leaves memory.

    Sessions, generations, files, idempotency keys, timeouts and errors are like those of a server;
    what commands do is up to the test:

        >>> fake = FakeBackend()
        >>> fake.on("pytest", output="3 passed", writes={"report.txt": "fine"})
        >>> with SandboxClient("conv-1", backend=fake) as sandbox:
        ...     sandbox.execute("pytest -q").output, sandbox.read_text("report.txt")
        ('3 passed', 'fine')
        >>> fake.ran
        ['pytest -q']

    A command without an answer ends with exit code 127, like one that bash does not find.
    """

    def __init__(
        self,
        *,
        capacity: int = 100,
        idle_timeout_s: float = 1800.0,
        upload_limit: int = 100 << 20,
        providers: Sequence[str] = (RUNTIME,),
        most: models.LimitOptions | None = None,
    ) -> None:
        """providers: what sessions can ask for; the first is the default. most: the limits up to
        which they can ask, by default what a session has anyway."""
        self.ran: list[str] = []
        """Every command so far, oldest first."""
        self._capacity = capacity
        self._limits = models.Limits(
            memory_bytes=512 << 20, cpus=0.5, pids=256, disk_bytes=1 << 30, command_timeout_s=30,
            output_limit_bytes=1 << 20, upload_limit_bytes=upload_limit, network="none",
        )  # fmt: skip
        self._providers = list(providers)
        allowed = models.checked(models.SessionLimits, **(most or {})).given()
        most_values = {"command_timeout_s": models.MAX_TIMEOUT_S, **allowed}
        self._registry = FakeRegistry()
        self._sessions = FakeSessions(
            self._registry,
            capacity=capacity,
            idle_timeout_s=idle_timeout_s,
            limits=self._limits,
            most=models.merged(self._limits.values(), most_values),
            providers=self._providers,
        )
        self._script: Script = []
        self._artifacts = FakeArtifacts()
        self._checkpoints = FakeCheckpoints(self._sessions)
        self._handlers: Mapping[Operation[Any, Any], Callable[[Any], Any]] = {
            op.CREATE_SESSION: self._create_session,
            op.SESSION: self._session,
            op.SESSIONS: self._list_sessions,
            op.SET_LIFETIME: self._set_lifetime,
            op.SET_EGRESS: self._set_egress,
            op.PAUSE: self._pause,
            op.UNPAUSE: self._unpause,
            op.CLEANUP: self._cleanup,
            op.HEALTH: self._health,
            op.EXECUTE: self._execute,
            op.CHECK: self._check,
            op.RUN_CODE: self._run_code,
            op.CONTEXTS: self._contexts,
            op.CREATE_CONTEXT: self._create_context,
            op.RESTART_CONTEXT: self._restart_context,
            op.REMOVE_CONTEXT: self._remove_context,
            op.INTERRUPT_CONTEXT: self._interrupt_context,
            op.RESULT: self._result,
            op.COMMANDS: self._commands,
            op.SIGNAL: self._signal,
            op.STDIN: self._stdin,
            op.RESIZE: self._resize,
            op.LIST_FILES: self._list_files,
            op.RENAME: self._rename,
            op.STAT: self._stat,
            op.MKDIR: self._mkdir,
            op.REMOVE: self._remove,
            op.WATCH: self._watch,
            op.WATCH_EVENTS: self._watch_events,
            op.UNWATCH: self._unwatch,
            op.REGISTRY: self._registry_list,
            op.CALL_TOOL: self._call_tool,
            op.ARTIFACTS: self._artifacts.find,
            op.DELETE_ARTIFACT: self._delete_artifact,
            op.USAGE: _no_usage,
            op.EVENTS: _no_events,
            op.STORED_SESSIONS: self._stored_sessions,
            op.STORED_SESSION: self._stored_session,
            op.CHECKPOINT: self._checkpoints.take,
            op.CHECKPOINTS: self._checkpoints.find,
            op.GET_CHECKPOINT: self._checkpoints.get,
            op.DELETE_CHECKPOINT: self._checkpoints.delete,
            op.RESTORE: self._restore,
            op.HISTORY: _no_history,
            op.CHANGES: _no_history,
            op.UNDO: _no_history,
            op.FORK: self._fork,
            op.VOLUMES: self._no_volumes,
            op.CREATE_VOLUME: self._no_volumes,
            op.DELETE_VOLUME: self._no_volumes,
            op.EXPOSE: self._no_previews,
            op.PREVIEWS: self._no_previews,
            op.UNEXPOSE: self._no_previews,
        }

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        answer = self._handlers[operation](request)
        if inspect.isawaitable(answer):
            answer = await answer
        return cast(Ans, answer)

    def __repr__(self) -> str:
        return f"<FakeBackend {len(self._sessions.live())} live, {len(self.ran)} commands ran>"

    # For the test

    def on(
        self,
        command: str | re.Pattern[str],
        answering: Answering | None = None,
        *,
        output: str = "",
        stderr: str = "",
        exit_code: int = 0,
        hint: str | None = None,
        takes_s: float = 0.0,
        writes: Mapping[str, str | bytes] | None = None,
        results: Sequence[Mapping[str, Any]] = (),
        error: models.CodeError | None = None,
    ) -> None:
        """Set the answer to commands that begin with these words, or in which the pattern is found;
        the latest that fits counts. A function is called for every such command.

        Code is answered in the same way, with `results` and `error` besides."""
        answer = FakeAnswer(
            output=output,
            stderr=stderr,
            exit_code=exit_code,
            hint=hint,
            takes_s=takes_s,
            writes=writes or {},
            results=results,
            error=error,
        )
        self._script.insert(0, (command, answering or (lambda _: answer)))

    def on_tool(
        self,
        name: str,
        answering: ToolAnswering,
        *,
        description: str = "A tool.",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a tool. The function gets its arguments and gives its text, or all of its
        answer."""
        schema = dict(parameters or {"type": "object"})
        info = models.ToolInfo(name=name, description=description, parameters=schema)
        self._registry.tools[name] = FakeTool(info, answering)

    def on_agent(self, name: str, *, prompt: str = "", tools: Sequence[str] = USUAL) -> None:
        """Declare an agent with tools of ours and declared ones."""
        self._registry.add_agent(name, prompt=prompt, tools=tools)

    def files(self, thread_id: str) -> FakeFiles:
        """The files of a thread, to look at and to change. Raises SessionNotFound."""
        return self._sessions.find(models.Target(thread_id=thread_id)).files

    def lose(self, thread_id: str) -> None:
        """Lose the box of a thread, as if its machine had died. Raises SessionNotFound."""
        self._sessions.find(models.Target(thread_id=thread_id)).ended = End.LOST

    # Sessions

    async def _create_session(self, request: models.CreateSessionRequest) -> models.Session:
        if request.history:
            _no_history(request)
        if request.network not in (None, "none"):
            raise InvalidRequest(
                f"network: {request.network} is more than a session may have, none: ask for less,"
                " or raise SANDBOX_MAX_NETWORK of the server"
            )
        own_id = str(uuid.uuid4())
        if request.volumes:
            self._no_volumes(request)
        if request.agent is not None:
            self._registry.agent(request.agent)
        check_egress(request.egress_rules)
        wanted = request
        if request.checkpoint_id is not None:
            before = self._checkpoints.wanted(request.checkpoint_id)
            given = {
                name: getattr(request, name) for name in request.model_dump(exclude_defaults=True)
            }
            wanted = before.model_copy(update={"persist": False, **given})
        session, state = self._sessions.open(
            models.Target(thread_id=request.thread_id or own_id), wanted
        )
        if request.thread_id is None:
            session.session_id = own_id
        if request.checkpoint_id is not None and state != "live":
            self._checkpoints.fill(session, request.checkpoint_id)
        if state != "live":
            return self._told(session, "created")
        ignored = {"not_applied": session.not_applied(request)}
        return self._told(session, "existing").model_copy(update=ignored)

    def _session(self, target: models.Target) -> models.SessionInfo:
        session = self._sessions.find(target)
        running = [
            models.RunningCommand(command_id=c.command_id, age_s=c.info().age_s, output_bytes=0)
            for c in session.running
        ]
        summary = session.summary()
        more = {
            "state": summary.state,
            "idle_s": 0 if running else summary.idle_s,
            "last_used_at": session.created_at,
            "commands": len(session.commands),
            "running": running,
            "usage": models.SessionUsage(cpu_s=0.0, memory_bytes=None, disk_bytes=None, pids=1),
        }
        return models.SessionInfo.model_validate({**dict(self._told(session, "existing")), **more})

    def _list_sessions(self, request: models.SessionsRequest) -> models.SessionList:
        return request.page(session.summary() for session in self._sessions.live())

    def _pause(self, target: models.Target) -> models.SessionSummary:
        session = self._sessions.find(target)
        session.paused = True
        return session.summary()

    def _unpause(self, target: models.Target) -> models.SessionSummary:
        session = self._sessions.find(target)
        session.paused = False
        return session.summary()

    def _set_lifetime(self, request: models.LifetimeRequest) -> models.SessionSummary:
        session = self._sessions.find(request)
        session.last(request.lifetime_s, only_longer=request.only_longer)
        return session.summary()

    def _set_egress(self, request: models.EgressRequest) -> models.SessionSummary:
        session = self._sessions.find(request)
        rules = request.rules()
        check_egress(rules)
        session.wanted = session.wanted.model_copy(update={"egress_rules": rules})
        return session.summary()

    def _cleanup(self, target: models.Target) -> models.CleanupResult:
        session = self._sessions.find(target)
        session.ended = End.CLEANED
        return models.CleanupResult(
            environment=session.wanted.environment,
            idle_timeout_s=session.idle_timeout_s,
            provider=session.provider,
            limits=session.limits.values(),
            agent=session.wanted.agent,
            metadata=session.wanted.metadata,
            egress_rules=session.wanted.egress_rules,
            ports=session.wanted.ports,
            lifetime_s=session.wanted.lifetime_s,
        )

    def _health(self, _request: models.EmptyRequest) -> models.Health:
        return models.Health(
            status="healthy", role="fake", worker_id=WORKER, runtime=self._providers[0],
            pool_size=0, active_sessions=len(self._sessions.live()), capacity=self._capacity,
            version="0", uptime_s=0.0, checks={"runtime": "ok"}, providers=self._providers,
        )  # fmt: skip

    def _registry_list(self, _request: models.EmptyRequest) -> models.RegistryList:
        return self._registry.listed()

    async def _call_tool(self, request: models.CallToolRequest) -> models.ToolAnswer:
        tool = self._registry.tool(request.tool, self._sessions.agent(request))
        session, _ = self._sessions.open(request)
        if tool is not None:
            answer = tool.answering(request.arguments)
            return models.ToolAnswer(text=answer) if isinstance(answer, str) else answer
        try:
            call = parsed(request.tool, request.arguments)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from None
        async with AsyncSandboxTools(backend=self).operations(session.thread_id) as operations:
            reply = await operations.call(call, request.idempotency_key)
        result = reply.artifact if isinstance(reply.artifact, models.ExecuteResult) else None
        return models.ToolAnswer(
            text=reply.text, failed=reply.failed, result=result, images=list(reply.images)
        )

    def _used(self, target: models.Target) -> FakeSession:
        """Made where there is none."""
        session, _ = self._sessions.open(target)
        session.use()
        return session

    def _told(self, session: FakeSession, status: str) -> models.Session:
        return models.Session.model_validate({**session.fields(), "status": status})

    def _no_previews(self, _request: models.Request) -> NoReturn:
        raise InvalidRequest("FakeBackend has no previews: nothing listens in its sandboxes")

    def _no_volumes(self, _request: models.Request) -> NoReturn:
        raise InvalidRequest("FakeBackend has no volumes: put files into `files(thread_id)`")

    # Commands

    async def _execute(self, request: models.ExecuteRequest) -> models.ExecuteResult:
        session, state = self._sessions.open(request)
        command, replayed = self._started(session, request)
        if not request.background:
            await _ended(session, command)
        return _result(session, state, command, replayed=replayed)

    def _check(self, _request: models.CheckRequest) -> models.Verdict:
        """Everything is allowed here."""
        return models.Verdict(allowed=True, policy="fake", mode="allow-all", doubts=[], commands=[])

    async def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        if isinstance(request, models.RunCodeRequest):
            for event in await self._code_events(request):
                yield event
            return
        state: models.SessionState = "live"
        offset, replayed = 0, False
        if isinstance(request, models.ExecuteRequest):
            session, state = self._sessions.open(request)
            command, replayed = self._started(session, request)
        else:
            session = self._sessions.find(request)
            command, offset = session.find(request.command_id), request.offset
        about = {"replayed": replayed, **_life(session, state)}
        yield StartEvent(command_id=command.command_id, pid=command.pid, **about)
        for event in command.events(offset, request.encoding):
            yield event
        await _ended(session, command)
        yield ExitEvent(**command.facts(), **about)

    # Code

    async def _code_events(self, request: models.RunCodeRequest) -> list[CodeEvent]:
        session, state = self._sessions.open(request)
        context, context_state = code.context_of(session, request)
        command, replayed = self._started(session, request.as_command())
        about = {"replayed": replayed, **_life(session, state)}
        await _ended(session, command)
        count = context.execution_count + (not replayed)
        context = context.model_copy(update={"execution_count": count})
        session.contexts[context.context_id] = context
        start = StartEvent(command_id=command.command_id, **about)
        return [start, *code.events_of(command, context, context_state, about)]

    async def _run_code(self, request: models.RunCodeRequest) -> models.CodeResult:
        collector = CodeCollector()
        found = [collector.add(event) for event in await self._code_events(request)]
        assert found[-1] is not None
        return found[-1]

    def _contexts(self, target: models.Target) -> models.ContextList:
        return models.ContextList(contexts=list(self._sessions.find(target).contexts.values()))

    def _create_context(self, request: models.CreateContextRequest) -> models.Context:
        session, _ = self._sessions.open(request)
        name = request.context_id or uuid.uuid4().hex[:12]
        folder = posixpath.join(models.WORKSPACE, request.cwd or "")
        made = code.new_context(name, request.language, folder, default=False)
        return session.contexts.setdefault(name, made)

    def _restart_context(self, request: models.ContextTarget) -> models.Context:
        session = self._sessions.find(request)
        found = code.find_context(session, request.context_id)
        session.contexts[found.context_id] = found.model_copy(update={"execution_count": 0})
        return session.contexts[found.context_id]

    def _remove_context(self, request: models.ContextTarget) -> models.Context:
        session = self._sessions.find(request)
        found = code.find_context(session, request.context_id)
        del session.contexts[found.context_id]
        return found.model_copy(update={"state": "lost"})

    def _interrupt_context(self, request: models.ContextTarget) -> models.Context:
        return code.find_context(self._sessions.find(request), request.context_id)

    def _result(self, request: models.CommandTarget) -> models.ExecuteResult:
        session = self._sessions.find(request)
        return _result(session, "live", session.find(request.command_id))

    def _commands(self, target: models.Target) -> models.CommandList:
        session = self._sessions.find(target)
        return models.CommandList(commands=[command.info() for command in session.commands])

    def _signal(self, request: models.SignalRequest) -> models.CommandInfo:
        command = self._sessions.find(request).find(request.command_id)
        command.end(request.signal)
        return command.info()

    def _resize(self, request: models.ResizeRequest) -> models.CommandInfo:
        command = self._sessions.find(request).find(request.command_id)
        command.resize(rows=request.rows, cols=request.cols)
        return command.info()

    def _stdin(self, request: models.StdinRequest) -> models.StdinReceipt:
        command = self._sessions.find(request).find(request.command_id)
        return command.take(request.data_bytes(), eof=request.eof, offset=request.offset)

    def _started(
        self, session: FakeSession, request: models.ExecuteRequest
    ) -> tuple[FakeCommand, bool]:
        """The command, and whether an earlier call started it."""
        session.use()
        if (before := session.joined(request)) is not None:
            return before, True
        self.ran.append(request.command)
        call = FakeCall(
            command=request.command,
            thread_id=session.thread_id,
            cwd=request.cwd or session.cwd,
            env={**session.wanted.env, **request.env},
            stdin=request.stdin or "",
            files=session.files,
        )
        answer, pty = answer_to(call, self._script), request.pty
        for path, content in answer.writes.items():
            session.files[path] = content
        command = FakeCommand(
            request,
            answer,
            call.cwd,
            stdin=call.stdin.encode(),
            stdin_open=request.stdin_open or request.pty is not None,
            size=None if pty is None else models.PtySize(rows=pty.rows, cols=pty.cols),
            command_timeout_s=session.limits.command_timeout_s,
        )
        if request.artifacts:
            written = {resolve(path): session.files[path] for path in answer.writes}
            command.artifacts = self._artifacts.keep(session, written)
        session.commands.append(command)
        return command, False

    # Files

    async def upload(
        self, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        session = self._used(request)
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            if len(data) > self._limits.upload_limit_bytes:
                limit = self._limits.upload_limit_bytes
                raise FileTooLarge.upload(request.path, limit_bytes=limit)
        session.files.store(request.path, bytes(data), dict(request.metadata))
        real = resolve(request.path)
        return models.UploadResult(
            filename=posixpath.basename(real),
            path=real,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )

    @contextlib.asynccontextmanager
    async def download(
        self, request: models.DownloadRequest | models.ArtifactTarget
    ) -> AsyncIterator[Download]:
        if isinstance(request, models.ArtifactTarget):
            yield self._artifacts.download(request.artifact_id)
            return
        session = self._sessions.find(request)
        session.use()
        entry, data = session.files.entry(request.path), session.files.read(request.path)
        folder = entry.type == "directory"
        info = models.DownloadInfo(
            filename=entry.name,
            path=entry.path,
            type="directory" if folder else "file",
            size=None if folder else len(data),
            sha256=None if folder else hashlib.sha256(data).hexdigest(),
            modified_at=entry.modified_at,
        )
        yield Download(info, aiter(ByteChunks(data)))

    @contextlib.asynccontextmanager
    async def connect(self, request: models.ConnectRequest) -> AsyncIterator[ByteChannel]:
        """What is scripted listens at no port."""
        self._sessions.find(request)
        raise NotListening(f"nothing listens at {request.port or request.path} in a fake sandbox")
        yield

    def _rename(self, request: models.RenameRequest) -> models.FileEntry:
        session = self._sessions.find(request)
        session.use()
        return session.files.rename(request.path, request.to, replace=request.replace)

    def _list_files(self, request: models.ListRequest) -> models.ListResult:
        session = self._used(request)
        depth = request.depth or (256 if request.recursive else 1)
        found = session.files.list(request.path, depth=depth)
        truncated = len(found) > request.limit
        return models.ListResult(
            path=request.path, entries=found[: request.limit], truncated=truncated
        )

    def _stat(self, request: models.StatRequest) -> models.FileEntry:
        session = self._used(request)
        return session.files.entry(request.path)

    def _mkdir(self, request: models.MkdirRequest) -> models.MkdirResult:
        session = self._used(request)
        created = session.files.make_folder(request.path)
        return models.MkdirResult(created=created, entry=session.files.entry(request.path))

    def _remove(self, request: models.RemoveRequest) -> models.RemoveResult:
        session = self._sessions.find(request)
        session.use()
        session.files.remove(request.path, recursive=request.recursive)
        return models.RemoveResult(path=request.path)

    def _watch(self, request: models.WatchFilesRequest) -> models.FileWatch:
        session = self._used(request)
        entry = session.files.entry(request.path)
        if entry.type != "directory":
            raise InvalidPath(f"{entry.path} is not a folder; watch the folder it is in")
        watch_id = session.files.watches.start(entry.path, recursive=request.recursive)
        return models.FileWatch(
            watch_id=watch_id, session_id=session.session_id, path=entry.path, position=0
        )

    async def _watch_events(self, request: models.FileChangesRequest) -> models.FileChangeList:
        watches = self._sessions.find(request).files.watches
        return await watches.read(request.watch_id, after=request.after, wait_s=request.wait)

    def _unwatch(self, request: models.FileWatchTarget) -> models.FileWatchEnded:
        ended = self._sessions.find(request).files.watches.end(request.watch_id)
        return models.FileWatchEnded(ended=ended)

    # What stays after a session

    def _delete_artifact(self, request: models.ArtifactTarget) -> models.ArtifactDeleted:
        self._artifacts.delete(request.artifact_id)
        return models.ArtifactDeleted(artifact_id=request.artifact_id)

    def _stored_sessions(self, request: models.StoredSessionsRequest) -> models.StoredSessionList:
        return stored_sessions(self._sessions.all(), request)

    def _stored_session(self, request: models.StoredSessionTarget) -> models.StoredSessionDetail:
        wanted = models.ArtifactsRequest(session_id=request.session_id)
        kept = self._artifacts.find(wanted).artifacts
        return stored_detail(self._sessions.all(), request.session_id, kept)

    # Checkpoints

    def _restore(self, request: models.RestoreRequest) -> models.Session:
        session, again = self._checkpoints.restore(request)
        return self._told(session, "existing" if again else "created")

    def _fork(self, request: models.ForkRequest) -> models.ForkResult:
        checkpoint_id, made = self._checkpoints.fork(request)
        told = [self._told(session, "created") for session in made]
        return models.ForkResult(checkpoint_id=checkpoint_id, sessions=told)


async def _ended(session: FakeSession, command: FakeCommand) -> None:
    """Wait for the end. Raises SessionNotFound or SessionLost if the session ends first."""
    while command.running:
        session.check()
        await anyio.sleep(_LOOK_S)
    session.check()
    session.use()


def _life(session: FakeSession, state: models.SessionState) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "generation": session.generation,
        "session_state": state,
        "resumed": session.resumed if state == "resumed" else None,
    }


def _result(
    session: FakeSession,
    state: models.SessionState,
    command: FakeCommand,
    *,
    replayed: bool = False,
) -> models.ExecuteResult:
    return models.ExecuteResult(
        output=command.answer.output + command.answer.stderr,
        stdout=command.answer.output,
        stderr=command.answer.stderr,
        replayed=replayed,
        **command.facts(),
        **_life(session, state),
    )


async def _no_events(request: models.HappeningsRequest) -> models.HappeningList:
    await asyncio.sleep(request.wait)
    return models.HappeningList(events=[], next=request.after or "")


def _no_usage(request: models.UsageRequest) -> models.UsageReport:
    """A fake uses nothing."""
    today = datetime.now(UTC).date()
    until = request.until or today
    return models.UsageReport(
        by=request.by, since=request.since or until - timedelta(days=29), until=until, rows=[]
    )


def _no_history(_request: models.Request) -> NoReturn:
    raise InvalidRequest("history is not to be had here: the files of a FakeBackend have no disk")
