"""Paths as e2b's SDK writes them: relative ones begin in the user's home."""

from __future__ import annotations

import posixpath

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.runtime.base import HOME


def full_path(path: str | None) -> str:
    """Raises InvalidRequest."""
    if path is None or path in ("", "~"):
        return HOME
    if "\0" in path:
        raise InvalidRequest("a path must not have a NUL character")
    return posixpath.join(HOME, path.removeprefix("~/"))
