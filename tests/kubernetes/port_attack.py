"""Runs in a box: attacks the port of a warden. Arguments: how, address, port. Prints how often it
was taken for a server."""

import contextlib
import os
import socket
import sys
import time

how, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
taken = 0


def connected() -> socket.socket:
    return socket.create_connection((address, port), timeout=15)


def is_taken(sock: socket.socket) -> bool:
    """Whether the warden goes on to TLS."""
    try:
        return bool(sock.recv(1))
    except OSError:
        return False


if how == "garbage":
    for size in (1, 64, 65, 1000, 100_000):
        sock = connected()
        sock.recv(40, socket.MSG_WAITALL)
        with contextlib.suppress(OSError):
            sock.sendall(os.urandom(size))
            sock.shutdown(socket.SHUT_WR)
        taken += is_taken(sock)
elif how == "slow":
    socks = [connected() for _ in range(40)]
    for _ in range(8):
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.send(b"x")
        time.sleep(1)
    for sock in socks:
        with contextlib.suppress(OSError):
            taken += len(sock.recv(100)) > 40
elif how == "many":
    held = []
    for _ in range(1000):
        held.append(connected())
        if len(held) > 150:  # As many as a process may have open.
            held.pop(0).close()
elif how == "replay":
    first, second = connected(), connected()
    one, two = (sock.recv(40, socket.MSG_WAITALL) for sock in (first, second))
    second.sendall(one[8:] + two[8:])  # What the warden itself has sent.
    taken += is_taken(second)
    first.sendall(bytes(32) + one[8:])
    taken += is_taken(first)
print(f"streams: {taken}")
