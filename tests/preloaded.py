"""Servers and commands for tests, forked by a process that has imported everything already.

An import of the server takes more than a second of CPU time, of the command line more than half of
that, and a run of the tests starts hundreds of them. What is forked is `python -m sandbox_server`
or `sandbox` in all else: its own environment, folder, input, output and exit code. Tests that are
about the program as users start it do so themselves.
"""

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import IO, Any

_MODULES = (
    "aiodocker",
    "mcp",
    "opentelemetry.sdk.trace",
    "pydantic.v1",
    "redis.asyncio",
    "sandbox_sdk.cli.app",
    "sandbox_server.api.metrics",
    "sandbox_server.cli.serve",
    "sandbox_server.fleet.opening",
    "sandbox_server.logs",
    "sandbox_server.main",
    "sandbox_server.metrics.exposition",
    "sandbox_server.metrics.prometheus",
    "sandbox_server.processes.serving",
    "sandbox_server.registry.references",
    "sandbox_server.runtime.bubblewrap",
    "sandbox_server.runtime.cpu_limit",
    "sandbox_server.runtime.docker",
    "sandbox_server.runtime.hidden",
    "sandbox_server.settings.file",
    "uvicorn.lifespan.on",
    "uvloop",
)
"""What a server imports by the time it answers."""
_OF_THE_INTERPRETER = ("PYTHON", "LD_")
"""Variables that begin so have had their effect when a server is forked."""
_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 20
_FDS = 4


class PreloadedProcess:
    """A forked program, as far as tests use an asyncio.subprocess.Process."""

    def __init__(self, told: socket.socket) -> None:
        """told: says the pid, and the exit code when it has ended."""
        self._told = told
        pid, (self._pidfd,), _, _ = socket.recv_fds(told, 32, 1)
        self.pid = int(pid)
        self._returncode: int | None = None
        told.setblocking(False)

    @property
    def returncode(self) -> int | None:
        if self._returncode is None:
            with contextlib.suppress(BlockingIOError):
                self._end(self._told.recv(32))
        return self._returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Raises ProcessLookupError if it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self) -> int:
        if self._returncode is None:
            self._end(await asyncio.get_running_loop().sock_recv(self._told, 32))
        assert self._returncode is not None
        return self._returncode

    def join(self, timeout_s: float) -> int:
        """As wait, outside of an event loop. Raises TimeoutError."""
        if self._returncode is None and not select.select([self._told], [], [], timeout_s)[0]:
            raise TimeoutError
        assert self.returncode is not None
        return self.returncode

    def _end(self, code: bytes) -> None:
        if self._returncode is not None:
            return  # Somebody else waited as well.
        # Without a word, who forks has been killed, and it with that.
        self._returncode = int(code or -signal.SIGKILL)
        self._told.close()
        os.close(self._pidfd)


class _Forking:
    """The process that forks."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Not with -m: this folder is not the server's business.
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        self._requests = ours
        self.variables = _of_the_interpreter(dict(os.environ))

    def fork(
        self, command: list[str], env: dict[str, str], cwd: str, files: list[IO[bytes]]
    ) -> PreloadedProcess:
        """command: of `sandbox`. files: its stdin, stdout and stderr."""
        request = {"command": command, "env": env, "cwd": cwd}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fds = [*(file.fileno() for file in files), theirs.fileno()]
            socket.send_fds(self._requests, [json.dumps(request).encode()], fds)
        return PreloadedProcess(ours)

    def stop(self) -> None:
        self._requests.close()
        self._process.wait()


_forking: _Forking | None = None


def start_server(
    args: list[str], env: dict[str, str], *, stdout: IO[bytes], stderr: IO[bytes]
) -> PreloadedProcess:
    """As `python -m sandbox_server ARGS` with this environment would. Only from the main thread."""
    assert is_possible(env), "needs an interpreter of its own"
    with open(os.devnull, "rb") as nothing:
        return _started().fork(["serve", *args], env, os.getcwd(), [nothing, stdout, stderr])


def run_command(
    command: list[str], env: dict[str, str], cwd: Path, *, stdin: str, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """As `sandbox COMMAND` with this environment would. Only from the main thread."""
    assert is_possible(env), "needs an interpreter of its own"
    with contextlib.ExitStack() as stack:
        pairs = [_pipe(stack) for _ in range(3)]
        (given, giving), *results = pairs
        theirs = [given, *(writing for _, writing in results)]
        process = _started().fork(command, env, str(cwd), theirs)
        for file in theirs:
            file.close()
        reading = stack.enter_context(ThreadPoolExecutor(len(pairs)))
        reading.submit(_give, giving, stdin.encode())
        found = [reading.submit(ours.read) for ours, _ in results]
        try:
            code = process.join(timeout_s)
        except TimeoutError:
            process.send_signal(signal.SIGKILL)
            raise
        out, err = (each.result(timeout_s).decode() for each in found)
    return subprocess.CompletedProcess(["sandbox", *command], code, out, err)


def _pipe(stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    ends = os.pipe()
    reading, writing = os.fdopen(ends[0], "rb"), os.fdopen(ends[1], "wb")
    return stack.enter_context(reading), stack.enter_context(writing)


def _give(giving: IO[bytes], text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), giving:
        giving.write(text)


def is_possible(env: dict[str, str]) -> bool:
    """Whether a program with this environment need not have an interpreter of its own."""
    return _of_the_interpreter(env) == _started().variables


def _started() -> _Forking:
    global _forking
    _forking = _forking or _Forking()
    return _forking


def stop() -> None:
    """At the end of the tests."""
    global _forking
    if _forking is not None:
        _forking.stop()
        _forking = None


def _of_the_interpreter(env: dict[str, str]) -> dict[str, str]:
    return {name: env[name] for name in env if name.startswith(_OF_THE_INTERPRETER)}


# From here on, the process that forks.


def _fork_until_closed(requests: socket.socket) -> list[str]:
    """Returns in every forked program, with its command. Ends with the process it is for."""
    children: dict[int, tuple[int, socket.socket]] = {}
    watched = select.poll()
    watched.register(requests, select.POLLIN)
    while True:
        for fd, _ in watched.poll():
            if fd != requests.fileno():
                watched.unregister(fd)
                _tell_end(fd, *children.pop(fd))
                continue
            message, (*files, told_fd), _, _ = _received(requests)
            told = socket.socket(fileno=told_fd)
            parent = os.getpid()
            if not (pid := os.fork()):
                for pidfd, (_, of_another) in children.items():
                    os.close(pidfd)
                    of_another.close()
                requests.close()
                told.close()
                return _become(json.loads(message), files, parent)
            for file in files:
                os.close(file)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = (pid, told)
            watched.register(pidfd, select.POLLIN)
            socket.send_fds(told, [b"%d" % pid], [pidfd])


def _received(requests: socket.socket) -> tuple[bytes, list[int], int, object]:
    received = socket.recv_fds(requests, _MOST_BYTES, _FDS)
    if not received[0]:
        sys.exit()  # Servers that still run are killed by that.
    return received


def _tell_end(pidfd: int, pid: int, told: socket.socket) -> None:
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    with told, contextlib.suppress(BrokenPipeError):  # Nobody waits for it any more.
        told.send(b"%d" % os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any], files: list[int], parent: int) -> list[str]:
    """What exec would do."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, fd in enumerate(files):
        os.dup2(fd, place)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    command: list[str] = request["command"]
    sys.argv = ["sandbox", *command]
    return command


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and for servers.
    requests = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    gc.disable()
    for name in _MODULES:
        import_module(name)
    import_module("sandbox_server.policy.rulefile").read_rules("default")  # Kept from then on.
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "threads do not survive a fork"
    gc.freeze()
    gc.enable()
    command = _fork_until_closed(requests)
    import_module("sandbox_sdk.cli").main(command)


if __name__ == "__main__":
    _main()
