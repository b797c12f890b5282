"""Reads the presets of the network again when a file has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.network.networks import Networks
from sandbox_server.network.presets import preset_files, read_presets
from sandbox_server.registry.stamps import Stamps, stamps
from sandbox_server.tasks import stop

log = structlog.get_logger()

LOOK_S = 0.5


class PresetWatch:
    """Use as an async context manager: it looks for changes inside. A bad change is logged and told
    by the networks' `problem`; the last presets without a mistake stay in use."""

    def __init__(self, folder: Path | None, networks: Networks) -> None:
        """folder: that the networks' presets are from; None: there are none."""
        self._folder = folder
        self._networks = networks
        self._seen: Stamps = () if folder is None else _stamps(folder)
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._folder is not None:
            self._watching = asyncio.create_task(self._watch(self._folder))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._watching is not None:
            await stop(self._watching)

    async def look(self, folder: Path) -> None:
        """Take up what has changed."""
        seen = await asyncio.to_thread(_stamps, folder)
        if seen == self._seen:
            return
        self._seen, problem = seen, ""
        try:
            self._networks.use_presets(await asyncio.to_thread(read_presets, folder))
            log.info("presets.read", folder=str(folder))
        except InvalidRequest as exc:
            problem = exc.message
            if problem != self._networks.problem:
                log.error("presets.bad", why=problem, kept="the last good ones")
        self._networks.problem = problem

    async def _watch(self, folder: Path) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(folder)
            except Exception:
                log.exception("presets.failed")


def _stamps(folder: Path) -> Stamps:
    """Empty for a folder that cannot be listed."""
    try:
        return stamps((folder, *preset_files(folder)))
    except OSError:
        return ()
