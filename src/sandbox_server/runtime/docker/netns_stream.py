"""The short way to the warden of a container on this machine: no exec, no engine in between.

A warden listens in the network namespace of its box, where nobody else can be. A socket belongs to
the namespace it was made in, so a thread of ours steps in, makes one and ends. Over that socket the
warden is handed one end of a pair of sockets, as a relay hands over its stdin and stdout.

Takes CAP_SYS_ADMIN and the engine's own machine. Where anything about it is amiss, NoNetnsStream
says so and the long way, an exec, is taken.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import itertools
import os
import socket
import threading
from collections.abc import Iterator

from sandbox_sdk.protocol.errors import SessionLost
from sandbox_server.runtime.streams import BUFFER, SocketStream
from sandbox_warden.relay import SOCKET_NAME

_CLONE_NEWNET = 0x40000000
_PATIENCE_S = 5.0
"""For a box that has only just been started: its warden may not listen yet."""
_AGAIN_S = 0.01
_LOOK_EVERY = 10
"""Whether a process that does not answer is there at all is looked up once in so many attempts."""
_libc = ctypes.CDLL(None, use_errno=True)


class NoNetnsStream(Exception):
    """The warden cannot be reached this way."""


class NetnsStream(SocketStream):
    """A ByteStream, with the connection that tells the warden that somebody is there."""

    sign_of_life: socket.socket

    async def close(self) -> None:
        self.sign_of_life.close()
        await super().close()


async def open_netns_stream(pid: int, container_id: str, *, gone: str) -> NetnsStream:
    """A stream to the warden that is process `pid` of the host.

    Raises NoNetnsStream, SessionLost with the message `gone`, and TimeoutError where nobody
    listens.
    """
    with _process(pid) as process:
        _check(process, container_id)
        sign_of_life = _socket_in_network_of(process)
        ours, theirs = socket.socketpair()
        try:
            await _connect(sign_of_life, process, gone)
            _hand_over(sign_of_life, theirs)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=BUFFER)
        except BaseException:
            ours.close()
            sign_of_life.close()
            raise
        finally:
            theirs.close()
    stream = NetnsStream(reader, writer)
    stream.sign_of_life = sign_of_life
    return stream


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    """A descriptor of /proc/<pid>: of this process, and of no later one with its number."""
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise NoNetnsStream(f"process {pid} is not here: {exc}") from exc
    try:
        yield folder
    finally:
        os.close(folder)


def _check(process: int, container_id: str) -> None:
    """Numbers of processes mean nothing where the engine has others than we."""
    try:
        groups = _read(process, "cgroup")
    except OSError as exc:
        raise NoNetnsStream(f"the box's process cannot be looked at: {exc}") from exc
    if container_id not in groups:
        raise NoNetnsStream("the engine counts processes otherwise")


def _read(process: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)) as file:
        return file.read()


def _socket_in_network_of(process: int) -> socket.socket:
    made: list[socket.socket | OSError] = []

    def step_in() -> None:
        try:
            network = os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
            try:
                if _libc.setns(network, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(network)
            made.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        except OSError as exc:
            made.append(exc)

    # A thread of its own: it never comes back from there.
    thread = threading.Thread(target=step_in, name="step into a box's network")
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise NoNetnsStream(f"the box's network cannot be entered: {result}") from result
    return result


async def _connect(sock: socket.socket, process: int, gone: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        for attempt in itertools.count(1):
            try:
                sock.connect(SOCKET_NAME)
                return
            except (ConnectionRefusedError, BlockingIOError):
                if attempt % _LOOK_EVERY == 0:
                    _still_there(process, gone)
            except OSError as exc:
                raise NoNetnsStream(f"the warden cannot be reached: {exc}") from exc
            await asyncio.sleep(_AGAIN_S)


def _still_there(process: int, gone: str) -> None:
    try:
        _read(process, "cgroup")
    except OSError:
        raise SessionLost(gone) from None


def _hand_over(sign_of_life: socket.socket, theirs: socket.socket) -> None:
    descriptors = array.array("i", [theirs.fileno(), theirs.fileno()])
    try:
        sign_of_life.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    except OSError as exc:
        raise TimeoutError(f"the warden hung up: {exc}") from exc
