"""Errors of a worker's own file, translated."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from sandbox_sdk.protocol.errors import RuntimeUnavailable


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """A full or broken disk is an outage, not a bug. Raises RuntimeUnavailable."""
    try:
        yield
    except sqlite3.Error as exc:
        raise RuntimeUnavailable(
            f"the server cannot write its records ({exc}): look at the disk of its state folder",
            retry_after_s=5,
        ) from exc
