"""Direct stream to the warden of a container on this machine, without `docker exec`.

The warden listens in the network namespace of its box. A socket belongs to the namespace it was
created in, so a short-lived thread of ours enters it and creates one. Over that connection we pass
the warden one end of a socket pair, as a relay passes its stdin and stdout.

Needs CAP_SYS_ADMIN and the engine on this machine. If it does not work, NoNetnsStream is raised
and the caller falls back to an exec.
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
"""In a box that was just started, the warden may not listen yet."""
_AGAIN_S = 0.01
_LOOK_EVERY = 10
"""Check on every tenth attempt whether the process still exists."""
_libc = ctypes.CDLL(None, use_errno=True)


class NoNetnsStream(Exception):
    """The warden cannot be reached this way."""


class NetnsStream(SocketStream):
    """A ByteStream. The warden ends it when the connection `sign_of_life` is closed."""

    sign_of_life: socket.socket

    async def close(self) -> None:
        self.sign_of_life.close()
        await super().close()


async def open_netns_stream(pid: int, container_id: str, *, gone: str) -> NetnsStream:
    """A stream to the warden, which is process `pid` of the host.

    Raises NoNetnsStream, SessionLost with the message `gone`, and TimeoutError if the warden does
    not listen.
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
    """A descriptor of /proc/<pid>: unlike the pid, it cannot refer to a later process."""
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise NoNetnsStream(f"no process {pid} on this machine: {exc}") from exc
    try:
        yield folder
    finally:
        os.close(folder)


def _check(process: int, container_id: str) -> None:
    """Check the cgroup: if the engine runs in another pid namespace, its pids are not ours."""
    try:
        groups = _read(process, "cgroup")
    except OSError as exc:
        raise NoNetnsStream(f"cannot read the cgroup of the box's process: {exc}") from exc
    if container_id not in groups:
        raise NoNetnsStream("the engine runs in another pid namespace")


def _read(process: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)) as file:
        return file.read()


def _socket_in_network_of(process: int) -> socket.socket:
    made: list[socket.socket | OSError] = []

    def enter() -> None:
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

    # In a thread of its own, which ends in the box's namespace instead of switching back.
    thread = threading.Thread(target=enter, name="enter a box's network namespace")
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise NoNetnsStream(f"cannot enter the box's network namespace: {result}") from result
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
                raise NoNetnsStream(f"cannot connect to the warden: {exc}") from exc
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
        raise TimeoutError(f"the warden closed the connection: {exc}") from exc
