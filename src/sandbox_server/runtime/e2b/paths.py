"""Paths in an E2B sandbox: relative ones begin in /workspace, and not everything is written to."""

from __future__ import annotations

import posixpath

from sandbox_sdk.protocol.errors import InvalidPath
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.base import HOME

MAX_PATH = 4096
_SHARED = (WORKSPACE, HOME, "/tmp", "/dev/shm")


def full_path(path: str) -> str:
    """Raises InvalidPath."""
    if not path or "\0" in path or len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise InvalidPath(
            f"path {path[:100]!r}: a path must have 1 to {MAX_PATH} bytes and no NUL character"
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidPath(f"path {path[:100]!r} is not valid text") from None
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


def writable_path(path: str, home: str) -> str:
    """The same, of what is to be written. Raises InvalidPath."""
    full = full_path(path)
    places = list(dict.fromkeys([*_SHARED, home]))
    if not any(full == place or full.startswith(f"{place}/") for place in places):
        raise InvalidPath(
            f"{full} is outside of the folders that can be written to: {', '.join(places)}"
        )
    if full in places:
        raise InvalidPath(f"{full} is a folder that every sandbox has: name something in it")
    return full
