"""The registry of a running server: read again when a file has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.registry.entries import KINDS, Registry, RegistryError
from sandbox_server.registry.folder import files_of, read_registry
from sandbox_server.registry.stamps import Stamps, stamps

log = structlog.get_logger()

LOOK_S = 0.5
"""At most this often the files are looked at, and only when somebody uses the registry."""


class LiveRegistry:
    """The last registry without a mistake. A bad change is logged, and told by `problem`."""

    def __init__(
        self, folder: Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises InvalidRequest: a server does not start with a bad registry."""
        self._folder = folder
        self._clock = clock
        self._looked_at = clock()
        self._seen = self._look()
        self._problem = ""
        try:
            self._registry = read_registry(folder)
        except RegistryError as exc:
            raise InvalidRequest(str(exc)) from None

    def __repr__(self) -> str:
        return f"<LiveRegistry {self._folder or 'built-in'} {self._registry!r}>"

    def current(self) -> Registry:
        self._refresh()
        return self._registry

    @property
    def problem(self) -> str:
        """What is wrong with the files as they are now; empty if nothing is."""
        self._refresh()
        return self._problem

    def _refresh(self) -> None:
        now = self._clock()
        if self._folder is None or now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if (seen := self._look()) != self._seen:
            self._seen = seen
            self._read()

    def _read(self) -> None:
        try:
            self._registry, problem = read_registry(self._folder), ""
            log.info("registry.read", folder=str(self._folder))
        except RegistryError as exc:
            problem = str(exc)
            if problem != self._problem:
                log.error("registry.bad", why=problem, kept="the last good one")
        self._problem = problem

    def _look(self) -> Stamps:
        """What changes when a file does. Empty for a folder that cannot be listed."""
        if self._folder is None:
            return ()
        try:
            paths = [self._folder / kind for kind in KINDS]
            paths += [path for _, path in files_of(self._folder)]
        except OSError:
            return ()
        return stamps((self._folder, *paths))
