"""The audit log: every verdict with the command's text, and every connection of a box that goes
through the server, as JSON lines in a separate file."""

from __future__ import annotations

import hashlib
import json
import logging
import logging.handlers
import os
import stat
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Self

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server import log_fields

MAX_TEXT = 16384
"""Longer commands are cut; the digest is of the whole text."""


class _PrivateFile(logging.handlers.WatchedFileHandler):
    """Not readable by other users, also after a log rotation."""

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            fd = os.open(path, flags, 0o600)
            # An existing file may be meant for a group, so keep its group permissions.
            if stat.S_ISREG(mode := os.fstat(fd).st_mode) and mode & 0o007:
                os.fchmod(fd, stat.S_IMODE(mode) & 0o770)
            return fd

        return open(self.baseFilename, "a", encoding=self.encoding, opener=private)


class AuditLog:
    """Appends to a file, and opens it again after a log rotation. Use as a context manager, or
    close it."""

    def __init__(self, path: Path) -> None:
        """Raises RuntimeUnavailable if the file cannot be opened."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handler = _PrivateFile(path, encoding="ascii")
        except OSError as exc:
            why = exc.strerror or type(exc).__name__
            raise RuntimeUnavailable(f"the audit log {path} cannot be written: {why}") from None
        self._logger = logging.Logger("audit", logging.INFO)
        self._logger.addHandler(self._handler)

    def __repr__(self) -> str:
        return f"<AuditLog {self._handler.baseFilename}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._handler.close()

    def write(self, *, command: str, **facts: Any) -> None:
        """Write one line about a command."""
        whole = command.encode("utf-8", "surrogatepass")
        self._write(
            request_id=log_fields.bound().get("request_id"),
            **facts,
            command=command[:MAX_TEXT],
            command_bytes=len(whole),
            command_sha256=hashlib.sha256(whole).hexdigest(),
        )

    def write_connection(self, **facts: Any) -> None:
        """Write one line about a connection of a box."""
        self._write(kind="connection", **facts)

    def _write(self, **line: Any) -> None:
        """ASCII only: nothing that a caller or a box says can inject a second line."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._logger.info("%s", json.dumps({"at": at, **line}))
