"""The audit log: every verdict with the command's text, as JSON lines in a file of its own."""

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

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable

MAX_TEXT = 16384
"""Of a longer command the start is kept, with the digest of the whole."""


class _PrivateFile(logging.handlers.WatchedFileHandler):
    """Nobody else may read it, whether it is the first or one opened later."""

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            fd = os.open(path, flags, 0o600)
            # Who made it before may have meant it for a group, but for nobody else.
            if stat.S_ISREG(mode := os.fstat(fd).st_mode) and mode & 0o007:
                os.fchmod(fd, stat.S_IMODE(mode) & 0o770)
            return fd

        return open(self.baseFilename, "a", encoding=self.encoding, opener=private)


class AuditLog:
    """Appends to a file that others may move away: it is opened anew then. Close it, or use it as a
    context manager."""

    def __init__(self, path: Path) -> None:
        """Raises RuntimeUnavailable where the file cannot be written."""
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
        """One line. Pure ASCII: what a command has in it cannot make a second one."""
        whole = command.encode("utf-8", "surrogatepass")
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": structlog.contextvars.get_contextvars().get("request_id"),
            **facts,
            "command": command[:MAX_TEXT],
            "command_bytes": len(whole),
            "command_sha256": hashlib.sha256(whole).hexdigest(),
        }
        self._logger.info("%s", json.dumps(line))
