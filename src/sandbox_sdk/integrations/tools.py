"""The sandbox as tools of a model, for any framework or none.

    with SandboxTools() as tools:
        prompt, schemas = tools.begin("conv-42")       # for the system message, and for `tools=`
        # or as the server's registry declares it: tools.begin("conv-42", agent="code_executor")
        reply = tools.dispatch(call.name, call.arguments, thread_id="conv-42", tool_call_id=call.id)
        reply.text                                     # for the message with role "tool"

Every thread has its own sandbox, made at its first call. A call never raises a SandboxError: the
reply says what went wrong, in words a model can act on.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, NotRequired, Protocol, Self, TypedDict, TypeVar, Unpack

import anyio

from sandbox_sdk.background import background
from sandbox_sdk.client import AsyncSandboxClient, default_backend
from sandbox_sdk.documented import twin_of
from sandbox_sdk.errors import InvalidRequest, SandboxError, SessionLost, SessionNotFound
from sandbox_sdk.integrations.arguments import (
    ALL,
    READING,
    USUAL,
    Bash,
    Given,
    Undo,
    as_object,
    parsed,
    schemas,
    schemas_of,
)
from sandbox_sdk.integrations.operations import THREADS_REMEMBERED, Generations, Operations, Reply
from sandbox_sdk.integrations.presenting import Presenting, explain, system_prompt
from sandbox_sdk.protocol.models import AgentInfo, ToolInfo
from sandbox_sdk.protocol.sandboxes import Sandboxes

__all__ = ["AsyncSandboxTools", "Beginning", "Reply", "SandboxTools", "schemas"]

_Result = TypeVar("_Result")


class Beginning(NamedTuple):
    """What a model is given before its first call."""

    system_prompt: str
    """What it should know about its sandbox."""
    schemas: list[dict[str, Any]]
    """Its tools, for `tools=` of an OpenAI-style chat completion."""


class BeforeUse(Protocol):
    """What is to be done before a thread's sandbox is used, in the context of the caller."""

    async def __call__(
        self, tools: AsyncSandboxTools, thread_id: str, *, changes: bool
    ) -> None: ...


class AsyncSandboxTools:
    """The tools of any number of threads. Use it in one event loop."""

    schemas = staticmethod(schemas)

    def __init__(
        self,
        *,
        server_url: str | None = None,
        api_key: str | None = None,
        backend: Sandboxes | None = None,
        presenting: Presenting | None = None,
        history: bool = False,
    ) -> None:
        """history: sandboxes are made with one, and models get the tool undo."""
        self.usual = (*USUAL, Undo.name) if history else USUAL
        self._history = history
        self._presenting = presenting or Presenting()
        self._backend = backend or default_backend(server_url, api_key)
        self._stack = contextlib.AsyncExitStack()
        self._opening = anyio.Lock()
        self._opened = False
        self._generations = Generations()
        self._agents: dict[str, str] = {}
        """By thread: the agent that its sandbox is made for, however often it is made."""
        self._before_use: BeforeUse | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._backend!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. The sandboxes stay, as those of threads do."""
        self._opened = False
        await self._stack.aclose()

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                if isinstance(self._backend, contextlib.AbstractAsyncContextManager):
                    await self._stack.enter_async_context(self._backend)
                self._opened = True

    @contextlib.asynccontextmanager
    async def sandbox(self, thread_id: str) -> AsyncIterator[AsyncSandboxClient]:
        """A client for one thread, on the connection that all share."""
        await self._open()
        async with AsyncSandboxClient(
            thread_id, backend=self._backend, history=self._history
        ) as client:
            yield client

    def before_use(self, prepare: BeforeUse) -> None:
        """Have this called before every use of a sandbox. What it raises, the use raises."""
        self._before_use = prepare

    @contextlib.asynccontextmanager
    async def operations(
        self, thread_id: str, *, agent: str | None = None, changes: bool = True
    ) -> AsyncIterator[Operations]:
        """The tools of one thread, for integrations that present results in their own way.

        changes: whether the sandbox may be another one afterwards.
        """
        async with self.unprepared(thread_id, agent=agent) as operations:
            if self._before_use is not None:
                await self._before_use(self, thread_id, changes=changes)
            yield operations

    @contextlib.asynccontextmanager
    async def unprepared(
        self, thread_id: str, *, agent: str | None = None
    ) -> AsyncIterator[Operations]:
        """The same, without what before_use() was given."""
        async with self.sandbox(thread_id) as sandbox:
            made = await self._made_for(sandbox, thread_id, agent)
            yield Operations(
                sandbox,
                self._backend,
                thread_id=thread_id,
                presenting=self._presenting,
                generations=self._generations,
                allowed=None if made is None else [tool.name for tool in made.tools],
            )

    async def _made_for(
        self, sandbox: AsyncSandboxClient, thread_id: str, agent: str | None
    ) -> AgentInfo | None:
        """The agent of a thread. Its sandbox is made for it if there is none, so that one that has
        expired is followed by one that has the same environment and policy."""
        agent = agent or self._agents.get(thread_id)
        if agent is None:
            return None
        session = await sandbox.create_session(agent=agent)
        self._agents.pop(thread_id, None)
        self._agents[thread_id] = agent
        if len(self._agents) > THREADS_REMEMBERED:
            del self._agents[next(iter(self._agents))]
        return session.agent

    async def use(
        self,
        thread_id: str,
        work: Callable[[Operations], Awaitable[_Result]],
        *,
        changes: bool = True,
    ) -> _Result:
        """Do work in the sandbox of a thread. Raises what it raises.

        changes: whether the sandbox may be another one afterwards.
        """
        async with self.operations(thread_id, changes=changes) as operations:
            return await work(operations)

    async def dispatch(
        self,
        name: str,
        arguments: Given,
        *,
        thread_id: str,
        tool_call_id: str | None = None,
        agent: str | None = None,
    ) -> Reply:
        """Carry out a model's call: of a tool of ours, or of one that the operator has declared.

        Frameworks replay calls: one with the same tool_call_id and arguments runs only once.
        agent: makes the sandbox for this agent, where begin() has not.
        """
        try:
            call = parsed(name, arguments) if name in ALL else None
            given = {} if call else as_object(name, arguments)
            changes = name not in READING
            async with self.operations(thread_id, agent=agent, changes=changes) as operations:
                operations.require(name)
                if call is not None:
                    return await operations.call(call, tool_call_id)
                return await operations.declared(name, given, tool_call_id)
        except (SandboxError, ValueError) as error:
            return _failure(error)

    async def stream(
        self,
        arguments: Given,
        *,
        thread_id: str,
        tool_call_id: str | None = None,
        agent: str | None = None,
    ) -> AsyncGenerator[str | Reply]:
        """The bash tool with its output as it comes. The last item is the reply."""
        try:
            call = parsed(Bash.name, arguments)
            assert isinstance(call, Bash)
            async with self.operations(thread_id, agent=agent) as operations:
                operations.require(Bash.name)
                async with contextlib.aclosing(operations.stream(call, tool_call_id)) as pieces:
                    async for piece in pieces:
                        yield piece
        except (SandboxError, ValueError) as error:
            yield _failure(error)

    async def begin(
        self, thread_id: str, names: Sequence[str] | None = None, *, agent: str | None = None
    ) -> Beginning:
        """What a model needs before its first call: the system prompt and these tools. Makes the
        sandbox, to know its limits.

        names: of tools; by default bash and those for files, and undo where there is a history.

        agent: a name out of the server's registry, whose prompt and tools are given instead, and
        whose sandbox is made. The thread has this agent from now on.
        """
        async with self.sandbox(thread_id) as sandbox:
            made = await self._made_for(sandbox, thread_id, agent)
        if made is None:
            return Beginning(await self.system_prompt(thread_id), schemas(names or self.usual))
        return Beginning(made.prompt, schemas_of(made.tools))

    async def system_prompt(self, thread_id: str, *, agent: str | None = None) -> str:
        """What to tell a model about its sandbox. Makes the sandbox, to know its limits."""
        async with self.sandbox(thread_id) as sandbox:
            if made := await self._made_for(sandbox, thread_id, agent):
                return made.prompt
            session = await sandbox.create_session()
        return system_prompt(session.limits, max_chars=self._presenting.max_chars)

    async def agent_tools(self, agent: str) -> list[ToolInfo]:
        """The tools of an agent of the server's registry. Makes no sandbox. Raises InvalidRequest
        for an unknown one."""
        await self._open()
        agents = {each.name: each.tools for each in (await self._backend.registry()).agents}
        if agent not in agents:
            raise InvalidRequest(f"no agent {agent!r}; there are: {', '.join(agents) or 'none'}")
        return agents[agent]

    async def cleanup(self, thread_id: str) -> None:
        """End the sandbox of a thread, if there is one."""
        async with self.sandbox(thread_id) as sandbox:
            with contextlib.suppress(SessionNotFound, SessionLost):
                await sandbox.cleanup()


@twin_of(AsyncSandboxTools)
class SandboxTools:
    """The same for synchronous callers, and for tasks of any event loop: the names with an `a`.

    Any number of threads and loops may share one. One that is never closed is closed when nobody
    holds it any more, or at the end of the process.
    """

    schemas = staticmethod(schemas)

    def __init__(
        self,
        *,
        server_url: str | None = None,
        api_key: str | None = None,
        backend: Sandboxes | None = None,
        presenting: Presenting | None = None,
        history: bool = False,
    ) -> None:
        self._background = background()
        self._tools = AsyncSandboxTools(
            server_url=server_url,
            api_key=api_key,
            backend=backend,
            presenting=presenting,
            history=history,
        )
        self.usual = self._tools.usual
        self._background.close_when_unheld(self, self._tools)

    def __repr__(self) -> str:
        return repr(self._tools).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._background.forget(self._tools)
        self._background.run(self._tools.close)

    def dispatch(self, name: str, arguments: Given, **ids: Unpack[CallIds]) -> Reply:
        return self._run(lambda: self._tools.dispatch(name, arguments, **ids))

    async def adispatch(self, name: str, arguments: Given, **ids: Unpack[CallIds]) -> Reply:
        return await self._cross(lambda: self._tools.dispatch(name, arguments, **ids))

    def stream(self, arguments: Given, **ids: Unpack[CallIds]) -> Generator[str | Reply]:
        self._close_at_exit()
        return self._background.iterate(lambda: self._tools.stream(arguments, **ids))

    def astream(self, arguments: Given, **ids: Unpack[CallIds]) -> AsyncGenerator[str | Reply]:
        self._close_at_exit()
        return self._background.cross_each(lambda: self._tools.stream(arguments, **ids))

    def before_use(self, prepare: BeforeUse) -> None:
        self._tools.before_use(prepare)

    def use(
        self,
        thread_id: str,
        work: Callable[[Operations], Awaitable[_Result]],
        *,
        changes: bool = True,
    ) -> _Result:
        return self._run(lambda: self._tools.use(thread_id, work, changes=changes))

    async def ause(
        self,
        thread_id: str,
        work: Callable[[Operations], Awaitable[_Result]],
        *,
        changes: bool = True,
    ) -> _Result:
        return await self._cross(lambda: self._tools.use(thread_id, work, changes=changes))

    def begin(
        self, thread_id: str, names: Sequence[str] | None = None, *, agent: str | None = None
    ) -> Beginning:
        return self._run(lambda: self._tools.begin(thread_id, names, agent=agent))

    async def abegin(
        self, thread_id: str, names: Sequence[str] | None = None, *, agent: str | None = None
    ) -> Beginning:
        return await self._cross(lambda: self._tools.begin(thread_id, names, agent=agent))

    def system_prompt(self, thread_id: str, *, agent: str | None = None) -> str:
        return self._run(lambda: self._tools.system_prompt(thread_id, agent=agent))

    async def asystem_prompt(self, thread_id: str, *, agent: str | None = None) -> str:
        return await self._cross(lambda: self._tools.system_prompt(thread_id, agent=agent))

    def agent_tools(self, agent: str) -> list[ToolInfo]:
        return self._run(lambda: self._tools.agent_tools(agent))

    async def aagent_tools(self, agent: str) -> list[ToolInfo]:
        return await self._cross(lambda: self._tools.agent_tools(agent))

    def cleanup(self, thread_id: str) -> None:
        self._run(lambda: self._tools.cleanup(thread_id))

    async def acleanup(self, thread_id: str) -> None:
        await self._cross(lambda: self._tools.cleanup(thread_id))

    def _run(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        self._close_at_exit()
        return self._background.run(work)

    async def _cross(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        self._close_at_exit()
        return await self._background.cross(work)

    def _close_at_exit(self) -> None:
        self._background.at_exit(self._tools, self._tools.close)


class CallIds(TypedDict):
    """Whose call it is."""

    thread_id: str
    tool_call_id: NotRequired[str | None]
    agent: NotRequired[str | None]


def _failure(error: SandboxError | ValueError) -> Reply:
    if isinstance(error, SandboxError):
        return Reply(explain(error), error=error, failed=True)
    return Reply(f"Error: {error}. Correct the call and try again.", failed=True)
