"""SandboxClient: AsyncSandboxClient for synchronous callers. It only forwards."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sandbox_sdk.artifacts import ArtifactFile
from sandbox_sdk.background import background
from sandbox_sdk.blocking import Blocking, blocking, iterating, like
from sandbox_sdk.client import METHODS, AsyncSandboxClient
from sandbox_sdk.documented import twin_of, with_contents
from sandbox_sdk.ports import BlockingChannel, Forward
from sandbox_sdk.process import AsyncProcess, Process
from sandbox_sdk.protocol.models import Checkpoint

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def _taking_arguments_of(
    method: Callable[Concatenate[Any, _Params], _Result],
) -> Callable[[Callable[..., _Result]], Callable[Concatenate[Any, _Params], _Result]]:
    """For a method that passes on what it gets: type checkers and help() see the arguments."""
    return partial(like, method)


def _starting(
    method: Callable[Concatenate[Any, _Params], Awaitable[AsyncProcess]],
) -> Callable[Concatenate[Any, _Params], Process]:
    """The method of SandboxClient that gives the process of this one, to synchronous callers."""
    start = blocking(method)

    def started(self: SandboxClient, /, *args: _Params.args, **kwargs: _Params.kwargs) -> Process:
        return Process(start(self, *args, **kwargs), self._background, client=self)

    return like(method, started)


@with_contents(METHODS)
@twin_of(AsyncSandboxClient)
class SandboxClient(Blocking):
    """The sandbox of one thread. It is made at its first use.

        >>> with SandboxClient() as sandbox:
        ...     result = sandbox.execute("cd /tmp; export NAME=world")
        ...     sandbox.execute("echo hello $NAME from $PWD").output
        'hello world from /tmp\\n'

    With `server_url`, or SANDBOX_URL in the environment, it is on that server; otherwise this
    process makes it (see LocalBackend). `api_key` is SANDBOX_API_KEY unless given. `backend`
    overrides all of these. A first argument with `://` in it is the server_url.

    A client with a `thread_id` (or a `session_id`) shares that sandbox with every other client that
    has the same, now and later; closing the client leaves the sandbox alone. A client without one
    has a sandbox of its own, which ends when the client is closed.

    `environment`, `provider`, `limits`, `network`, `history` and `volumes` are those of
    create_session(), for the sandbox that the first use makes. One that was there before keeps its
    own, and a warning names what differs. A new one after a loss or an expiry has the same.

    `mounts` are folders of this machine with their places in /workspace. The sandbox that the first
    use makes gets a copy of each; diff() tells what became of them there, and apply() brings it
    back. A sandbox that has its copies goes on with them, and a warning tells what is newer here.
    A place that ends with `:ro` or `:rw` has the folder itself, where this process makes the
    sandbox.

    Every method may raise any SandboxError. AsyncSandboxClient has the same methods for an event
    loop.

    Any number of threads may share one. It also works inside a running event loop, such as a
    notebook's, and blocks it like any synchronous call. One that is never closed is closed when it
    is garbage collected, or at the end of the process.
    """

    _kind = AsyncSandboxClient

    @_taking_arguments_of(AsyncSandboxClient.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        client = self._kind(*args, **kwargs)
        super().__init__(client, background())
        self._background.close_when_unheld(self, client)

    @property
    def thread_id(self) -> str | None:
        return self._client.thread_id

    @property
    def _client(self) -> AsyncSandboxClient:
        client: AsyncSandboxClient = self._awaited
        return client

    def __enter__(self) -> Self:
        self._run(self._client.__aenter__)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._background.forget(self._client)
        self._background.run(lambda: self._client.__aexit__(*exc_info))

    def close(self) -> None:
        self._background.forget(self._client)
        self._background.run(self._client.close)

    create_session = blocking(AsyncSandboxClient.create_session)
    session = blocking(AsyncSandboxClient.session)
    sessions = blocking(AsyncSandboxClient.sessions)
    pause = blocking(AsyncSandboxClient.pause)
    unpause = blocking(AsyncSandboxClient.unpause)
    set_lifetime = blocking(AsyncSandboxClient.set_lifetime)
    set_egress = blocking(AsyncSandboxClient.set_egress)
    cleanup = blocking(AsyncSandboxClient.cleanup)
    restart = blocking(AsyncSandboxClient.restart)
    checkpoint = blocking(AsyncSandboxClient.checkpoint)
    checkpoints = blocking(AsyncSandboxClient.checkpoints)
    delete_checkpoint = blocking(AsyncSandboxClient.delete_checkpoint)
    rewind = blocking(AsyncSandboxClient.rewind)

    def fork(
        self, into: int | Sequence[str] = 1, *, checkpoint: str | Checkpoint | None = None
    ) -> list[Self]:
        made = self._run(lambda: self._client.fork(into, checkpoint=checkpoint))
        backend = self._client._connection.backend
        return [type(self)(each.thread_id, backend=backend) for each in made]

    history = blocking(AsyncSandboxClient.history)
    changes = blocking(AsyncSandboxClient.changes)
    undo = blocking(AsyncSandboxClient.undo)
    usage = blocking(AsyncSandboxClient.usage)
    watch = iterating(AsyncSandboxClient.watch)
    volumes = blocking(AsyncSandboxClient.volumes)
    create_volume = blocking(AsyncSandboxClient.create_volume)
    delete_volume = blocking(AsyncSandboxClient.delete_volume)
    diff = blocking(AsyncSandboxClient.diff)
    apply = blocking(AsyncSandboxClient.apply)
    health = blocking(AsyncSandboxClient.health)
    registry = blocking(AsyncSandboxClient.registry)
    call_tool = blocking(AsyncSandboxClient.call_tool)
    execute = blocking(AsyncSandboxClient.execute)
    check = blocking(AsyncSandboxClient.check)
    stream = iterating(AsyncSandboxClient.stream)
    start = _starting(AsyncSandboxClient.start)
    terminal = _starting(AsyncSandboxClient.terminal)
    process = _starting(AsyncSandboxClient.process)
    commands = blocking(AsyncSandboxClient.commands)
    run_code = blocking(AsyncSandboxClient.run_code)
    stream_code = iterating(AsyncSandboxClient.stream_code)
    contexts = blocking(AsyncSandboxClient.contexts)
    create_context = blocking(AsyncSandboxClient.create_context)
    restart_context = blocking(AsyncSandboxClient.restart_context)
    remove_context = blocking(AsyncSandboxClient.remove_context)
    interrupt_context = blocking(AsyncSandboxClient.interrupt_context)
    upload_file = blocking(AsyncSandboxClient.upload_file)
    upload_bytes = blocking(AsyncSandboxClient.upload_bytes)
    download_file = blocking(AsyncSandboxClient.download_file)
    download_bytes = blocking(AsyncSandboxClient.download_bytes)
    list_files = blocking(AsyncSandboxClient.list_files)
    rename = blocking(AsyncSandboxClient.rename)
    stat = blocking(AsyncSandboxClient.stat)
    mkdir = blocking(AsyncSandboxClient.mkdir)
    remove = blocking(AsyncSandboxClient.remove)
    watch_files = iterating(AsyncSandboxClient.watch_files)

    def artifacts(self, *, limit: int = 100) -> list[ArtifactFile]:
        found = self._run(lambda: self._client.artifacts(limit=limit))
        return [ArtifactFile(each, self._background, client=self) for each in found]

    read_text = blocking(AsyncSandboxClient.read_text)
    write_text = blocking(AsyncSandboxClient.write_text)
    exists = blocking(AsyncSandboxClient.exists)

    @contextlib.contextmanager
    def connect(self, port: int | str) -> Iterator[BlockingChannel]:
        with self._open(self._client.connect(port)) as channel:
            yield BlockingChannel(channel, self._background)

    @contextlib.contextmanager
    def forward(
        self, port: int | str, *, local_port: int = 0, host: str = "127.0.0.1"
    ) -> Iterator[Forward]:
        with self._open(self._client.forward(port, local_port=local_port, host=host)) as forward:
            yield forward

    expose = blocking(AsyncSandboxClient.expose)
    previews = blocking(AsyncSandboxClient.previews)
    unexpose = blocking(AsyncSandboxClient.unexpose)

    @contextlib.contextmanager
    def _open(self, opening: contextlib.AbstractAsyncContextManager[_Result]) -> Iterator[_Result]:
        """Something that is open as long as the block lasts, in the background loop."""
        opened = self._run(opening.__aenter__)
        try:
            yield opened
        finally:
            self._run(lambda: opening.__aexit__(None, None, None))

    def _run(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        self._close_at_exit()
        return super()._run(work)

    def _iterate(self, make: Callable[[], AsyncGenerator[_Result]]) -> Generator[_Result]:
        self._close_at_exit()
        return super()._iterate(make)

    def _close_at_exit(self) -> None:
        self._background.at_exit(self._client, self._client.close)
