"""What all commands of a box come to. Only grows, so that a server that reads it counts nothing
twice, nor misses anything while there is no server."""

from typing import Dict, Set

from .command import Command


class Totals:
    def __init__(self) -> None:
        self._commands = 0
        self._running: Set[Command] = set()
        self._seconds = 0.0
        self._bytes_in = self._bytes_out = 0

    def begin(self, command: Command) -> None:
        self._commands += 1
        self._running.add(command)

    def end(self, command: Command) -> None:
        """No-op for one that does not count."""
        if command in self._running:
            self._running.discard(command)
            self._seconds += command.age_s
            self._bytes_in += _received(command)
            self._bytes_out += command.log.size

    def read(self) -> Dict[str, int]:
        """With what those that run have used so far."""
        running = list(self._running)
        seconds = self._seconds + sum(each.age_s for each in running)
        return {
            "commands": self._commands,
            "command_ms": int(seconds * 1000),
            "bytes_in": self._bytes_in + sum(map(_received, running)),
            "bytes_out": self._bytes_out + sum(each.log.size for each in running),
        }


def _received(command: Command) -> int:
    return 0 if command.stdin is None else command.stdin.received
