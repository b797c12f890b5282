"""`sandbox shell`: a terminal of a sandbox; without one here, a conversation line by line."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from sandbox_sdk.background import background
from sandbox_sdk.cli.caller import INTERRUPTED, SANDBOX_FAILED, Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.follow import run_command, shown_as
from sandbox_sdk.cli.options import NewSandbox, duration_option
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError
from sandbox_sdk.protocol.events import ExitEvent

_UNFINISHED = (
    "unexpected end of file",  # a block, a pipe, an `&&` that goes on
    "unexpected EOF while looking for",  # a quote, a bracket
    "delimited by end-of-file",  # a here-document
)


def shell(
    *,
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Whose sandbox; without it, one that ends with this."),
    ] = None,
    timeout: Annotated[float, duration_option("When a command is ended: 5m, or seconds.")] = 3600.0,
    attach: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Use a terminal of the thread that runs: its id, or `last`."
        ),
    ] = None,
    new: NewSandbox,
    caller: Caller,
) -> None:
    """Type commands into a sandbox.

    In a terminal it is a terminal: editors, pagers and job control work. It goes on from the last
    command of the thread, and leaves its directory and variables to the next one. `exit` or Ctrl-D
    ends it; with a thread, Ctrl-] detaches, and it runs on.
    Without a terminal here, and with --json (a line for every event), the input is read line by
    line. Provider, limits and network are those of a new sandbox.
    """
    sandbox = caller.client(thread, new)
    if is_terminal() and not caller.json:
        caller.run(_use_terminal(sandbox, thread, attach))
    if attach is not None:
        raise InvalidRequest("--attach needs a terminal here; see `sandbox logs` without one")
    background().run(sandbox.__aenter__)
    try:
        code = Shell(caller, sandbox, name=thread or "sandbox", timeout=timeout).converse()
    finally:
        background().run(sandbox.close)
    raise typer.Exit(code)


async def _use_terminal(sandbox: AsyncSandboxClient, thread: str | None, attach: str | None) -> int:
    from sandbox_sdk.cli import tty

    async with sandbox:
        process = await (
            tty.new_terminal(sandbox) if attach is None else tty.running_terminal(sandbox, attach)
        )
        code = await tty.use(process)
        if code is not None:
            return code
        if thread is not None:
            tty.told_detached(thread, process.command_id)
        return 0


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


class Shell:
    """Reads lines in the main thread, which readline needs; commands run in the background loop."""

    def __init__(
        self, caller: Caller, sandbox: AsyncSandboxClient, *, name: str, timeout: float
    ) -> None:
        self._caller = caller
        self._sandbox = sandbox
        self._name = name
        self._timeout = timeout
        self._interactive = sys.stdin.isatty()
        self._cwd = ""
        self._code = 0

    def converse(self) -> int:
        """Run lines until the input ends, or `exit`. Returns the exit code."""
        self._run(":")  # Makes the sandbox if there is none, and tells the working directory.
        while (text := self._read()) is not None:
            words = text.split()
            if words[:1] == ["exit"] and len(words) < 3:
                return int(words[1]) & 255 if words[1:] and words[1].isdigit() else self._code
            if words:
                self._attempt(text)
        return self._code

    def _attempt(self, text: str) -> None:
        """Run a line. Where the sandbox fails, say so and go on with the next line."""
        try:
            self._run(text)
        except SandboxError as exc:
            self._caller.complain(exc.message)
            self._code = SANDBOX_FAILED
        except KeyboardInterrupt:
            self._caller.complain("gave up waiting; the command may still run (see `sandbox ps`)")
            self._code = INTERRUPTED

    def _read(self) -> str | None:
        """A whole command, of as many lines as it takes. None at the end of the input."""
        text = ""
        while True:
            prompt = "> " if text else f"{self._name}:{escaped(self._cwd)}$ "
            try:
                line = input(prompt if self._interactive else "")
            except EOFError:
                if self._interactive:
                    print()
                return text or None
            except KeyboardInterrupt:
                print()
                text = ""
                continue
            text = f"{text}\n{line}" if text else line
            if is_complete(text):
                return text

    def _run(self, command: str) -> None:
        with _interrupts() as interrupts:
            exit_ = background().run(lambda: self._in_loop(command, interrupts))
        self._cwd, self._code = exit_.cwd, exit_.exit_code
        if interrupts.count and self._interactive:
            print()

    async def _in_loop(self, command: str, interrupts: Interrupts) -> ExitEvent:
        interrupted = asyncio.Event()
        interrupts.set(interrupted)
        return await run_command(
            self._sandbox,
            command,
            show=shown_as(json=self._caller.json),
            interrupted=interrupted,
            timeout=self._timeout,
        )


class Interrupts:
    """Counts Ctrl-C. The first sets an event; the next raise KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0
        self._tell: Callable[[], object] = lambda: None

    def set(self, event: asyncio.Event) -> None:
        """Let Ctrl-C set an event of the running loop, also if it was pressed before."""
        loop = asyncio.get_running_loop()
        self._tell = lambda: loop.call_soon_threadsafe(event.set)
        if self.count:
            event.set()

    def handle(self, *_: object) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        self._tell()


@contextlib.contextmanager
def _interrupts() -> Iterator[Interrupts]:
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def is_complete(text: str) -> bool:
    """Whether bash would run this as it is, or complain, instead of waiting for more.

    Asks the bash of this machine, which only reads and runs nothing. Where there is none, every
    line counts as complete.
    """
    if (len(text) - len(text.rstrip("\\"))) % 2:
        return False
    bash = shutil.which("bash")
    if bash is None:
        return True
    checked = subprocess.run(
        [bash, "--norc", "--noprofile", "-n"],
        input=text + "\n",
        env={"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    return not any(sign in checked.stderr for sign in _UNFINISHED)
