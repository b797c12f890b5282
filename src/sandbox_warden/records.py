"""The records of commands, kept within limits for servers that reconnect, and what all come to."""

from collections import deque
from typing import Any, Deque, Dict, List, Optional, Set, Tuple

from .command import Command
from .errors import Refused

KEPT_BYTES = 8 << 20
KEPT_COMMANDS = 2000
SUMMARIES = 256
"""Most summaries in one answer: they fit into a frame with keys of any length."""
KEY_LENGTH = 200


class Records:
    """Every command by id and by idempotency key. Finished ones are limited: first their output is
    dropped, oldest first, then the records."""

    def __init__(self) -> None:
        self._by_id: Dict[str, Command] = {}
        self._by_key: Dict[str, Command] = {}
        self._done: Deque[Command] = deque()
        self._with_output: Deque[Command] = deque()
        self._kept_bytes = 0
        self.services: Set[str] = set()
        """Ids of processes of ours, which no record tells of."""

    def summaries(self) -> Tuple[List[Dict[str, Any]], bool]:
        """Summaries of the running and the newest ended commands in order of start, and whether
        there are more."""
        newest = list(reversed(self._by_id.values()))
        newest.sort(key=lambda command: command.result is not None)
        told = set(newest[:SUMMARIES])
        found = [command.summary() for command in self._by_id.values() if command in told]
        return found, len(found) < len(self._by_id)

    def get(self, ident: str) -> Command:
        command = self._by_id.get(ident)
        if command is None:
            raise Refused(
                "command_not_found",
                "no command %s in this session; list its commands to see those there are"
                % ident[:64],
            )
        return command

    def knows(self, ident: bytes) -> bool:
        name = ident.decode("utf-8", "replace")
        return name in self._by_id or name in self.services

    def known(self, ident: str, key: Optional[str], digest: str) -> Optional[Command]:
        """The command that an earlier attempt of the same call started, if any."""
        command = self._by_id.get(ident) or (self._by_key.get(key) if key else None)
        if command is not None and command.digest != digest:
            message = "idempotency_key %.64s was used for another command; use a new key" % (
                key or ident
            )
            raise Refused("idempotency_mismatch", message)
        return command

    def add(self, command: Command) -> None:
        self._by_id[command.ident] = command
        if command.key:
            self._by_key[command.key] = command

    def finished(self, command: Command) -> None:
        self._done.append(command)
        self._with_output.append(command)
        self._kept_bytes += command.log.retained
        while self._kept_bytes > KEPT_BYTES:
            self._forget_output()
        if len(self._done) > KEPT_COMMANDS:
            oldest = self._done.popleft()
            if self._with_output[0] is oldest:
                self._forget_output()
            del self._by_id[oldest.ident]
            if oldest.key:
                self._by_key.pop(oldest.key, None)

    def _forget_output(self) -> None:
        oldest = self._with_output.popleft()
        self._kept_bytes -= oldest.log.retained
        oldest.log.forget()


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
