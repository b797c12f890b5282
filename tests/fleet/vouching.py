"""A worker's table of sessions without boxes: what it tells the registry does not need them."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox_sdk.protocol.models import LimitValues
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.runtime.base import Box, BoxVolume, DiskImage, Enforcement, Limits
from sandbox_server.runtime.box_network import BoxNetwork
from sandbox_server.runtime.streams import ByteStream
from sandbox_server.runtime.warden import WardenClient
from sandbox_server.runtime.warden.client import WardenBox
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionMaker
from sandbox_server.sessions.registry import Record, Status
from sandbox_server.sessions.rules import SessionRules, limit_values
from sandbox_server.sessions.share import Occupancy
from sandbox_server.sessions.table import SessionTable

TENANT = "t"


class NoBox(WardenBox):
    """Only its end is noticed."""

    destroyed = False

    def __init__(self, box_id: str) -> None:
        super().__init__(box_id)

    async def open_stream(self) -> ByteStream:
        raise AssertionError("nobody speaks to it")

    async def is_alive(self) -> bool:
        return not self.destroyed

    async def destroy(self) -> None:
        self.destroyed = True


class NoSource:
    async def claim(
        self,
        provider: str,
        environment: str | None,
        limits: LimitValues,
        state: Mapping[str, Any],
        disk: DiskImage | None = None,
        volumes: Sequence[BoxVolume] = (),
        network: BoxNetwork | None = None,
    ) -> tuple[Box, WardenClient]:
        raise AssertionError("no session begins here")

    async def no_volumes(self, provider: str) -> str:
        return provider


def table_of(index: SessionIndex, lease: RedisLease) -> SessionTable:
    registry = RedisRegistry(index, lease)
    default = limit_values(Limits(), command_timeout_s=30)
    rules = SessionRules(default=default, idle_timeout_s=600, providers={"none": Enforcement()})
    maker = SessionMaker(NoSource(), lease, registry.ledger, rules)
    return SessionTable(registry, lease, maker, Occupancy(1 << 20))


def session_of(worker: str, number: int) -> LiveSession:
    record = Record(
        tenant=TENANT,
        thread_id=f"conv-{number}",
        generation=1,
        session_id=str(uuid.uuid4()),
        box_id=f"box-{number}",
        status=Status.LIVE,
        created_at=1.5,
        worker=worker,
        epoch=-1,
    )
    box = NoBox(record.box_id)
    return LiveSession(record, box, WardenClient(box), idle_timeout_s=600, last_used=0.0)
