"""Making sessions: a record, and a box that gets the session's state."""

from __future__ import annotations

import contextlib
import shlex
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_sdk.protocol.models import WORKSPACE, EgressRules, LimitValues, VolumeMount
from sandbox_server.checkpoints.checkpoints import PAUSE_S
from sandbox_server.checkpoints.manifest import DiskCopy
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.registry.agents import SessionAgent
from sandbox_server.runtime.agent import BoxAgent, put_files
from sandbox_server.runtime.base import Box, BoxVolume, DiskImage
from sandbox_server.runtime.box_network import BoxNetwork, Network
from sandbox_server.runtime.ending import Endings
from sandbox_server.sessions.keeping import Origin, rules_from, timed
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.ledger import Ledger, Sharing
from sandbox_server.sessions.live import Key, LiveSession, digest, kept_of, state_of
from sandbox_server.sessions.registry import Record, Status
from sandbox_server.sessions.rules import SessionRules, SessionTerms
from sandbox_server.sessions.volumes import volumes_of
from sandbox_server.tasks import TaskSet
from sandbox_server.volumes.volumes import Volumes

log = structlog.get_logger()

_FINISH_S = 30.0
"""How long closing waits for what is being ended."""


class BoxSource(Protocol):
    """Where boxes for new sessions come from."""

    async def claim(
        self,
        provider: str,
        environment: str | None,
        limits: LimitValues,
        state: Mapping[str, Any],
        disk: DiskImage | None = None,
        volumes: Sequence[BoxVolume] = (),
        network: BoxNetwork | None = None,
    ) -> tuple[Box, BoxAgent]:
        """An unused box whose warden has stored this state. disk: what its /workspace begins as.
        Raises Capacity."""

    async def no_volumes(self, provider: str) -> str:
        """Why boxes of a provider cannot have volumes; empty if they can."""


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Options of a new session. None and empty mean the configured default."""

    environment: str | None = None
    env: Mapping[str, str] | None = None
    idle_timeout_s: float | None = None
    lifetime_s: float | None = None
    provider: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    network: Network | None = None
    egress_rules: EgressRules | None = None
    session_id: str | None = None
    made_for: SessionAgent | None = None
    policy: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The request that they come from, without what may be secret."""
    origin: Origin | None = None
    cwd: str = WORKSPACE
    volumes: Sequence[VolumeMount] = ()

    def recorded(self) -> Mapping[str, Any]:
        """What is remembered of them: also the checkpoint that a session began with."""
        if self.origin is None or self.origin.checkpoint_id is None:
            return self.asked
        return {**self.asked, "checkpoint_id": self.origin.checkpoint_id}

    def not_applied(self, session: LiveSession) -> list[str]:
        """The options that a live session does not have."""
        differ = {
            "environment": self.environment not in (None, session.environment),
            "agent": self.made_for is not None
            and (session.made_for is None or self.made_for.name != session.made_for.name),
            "env": bool(self.env) and digest(self.env) != session.env_digest,
            "idle_timeout_s": self.idle_timeout_s not in (None, session.idle_timeout_s),
            "lifetime_s": self.asked.get("lifetime_s")
            not in (None, session.record.asked.get("lifetime_s")),
            "ports": self.asked.get("ports") not in (None, session.record.asked.get("ports")),
            "metadata": self.asked.get("metadata", {}) not in ({}, session.metadata),
            "provider": self.provider not in (None, session.provider),
            "network": self.network not in (None, session.network.mode),
            "egress_rules": self.egress_rules not in (None, session.egress_rules),
            "checkpoint_id": self.origin is not None
            and self.origin.checkpoint_id != session.began_with,
            "persist": rules_from(self.asked).persist and not session.keep.persist,
            "history": rules_from(self.asked).history and not session.keep.history,
            "volumes": bool(self.volumes) and [*self.volumes] != volumes_of(session.record),
        }
        has = cast("dict[str, float]", session.limits or {})
        differ |= {f"limits.{name}": has.get(name) != value for name, value in self.limits.items()}
        return [name for name, differs in differ.items() if differs]


class SessionMaker:
    """Makes sessions with their boxes, and destroys the boxes afterwards."""

    def __init__(
        self,
        source: BoxSource,
        lease: Lease,
        ledger: Ledger,
        rules: SessionRules,
        volumes: Volumes | None = None,
        metrics: Metrics = NO_METRICS,
        sharing: Sharing | None = None,
    ) -> None:
        """volumes: without, no session has any. sharing: where others can take boxes over."""
        self.sharing = sharing or Sharing(ledger, lease.worker, on=False)
        self._metrics = metrics
        self._volumes = volumes
        self._source = source
        self._lease = lease
        self._ledger = ledger
        self._rules = rules
        self._endings = Endings()
        self._finishing: TaskSet[None] = TaskSet()

    def terms(self, options: SessionOptions) -> SessionTerms:
        """What a session with these options gets. Raises InvalidRequest."""
        return self._rules.terms(
            environment=options.environment,
            provider=options.provider,
            limits=options.limits,
            idle_timeout_s=options.idle_timeout_s,
            network=options.network,
            egress_rules=options.egress_rules,
        )

    async def make(
        self,
        key: Key,
        options: SessionOptions,
        terms: SessionTerms,
        before: Record | None,
        made_by: str = "",
    ) -> LiveSession:
        """A session that follows `before`, in a box set up as the caller wants. It is not in the
        registry yet. made_by: see LiveSession. Raises Capacity, RuntimeUnavailable."""
        record = Record(
            tenant=key[0],
            thread_id=key[1],
            generation=1 if before is None else before.generation + 1,
            session_id=options.session_id or str(uuid.uuid4()),
            box_id="",
            status=Status.LIVE,
            created_at=time.time(),
            worker=self._lease.worker,
            epoch=self._lease.epoch,
            asked=options.recorded(),
        )
        env_digest = digest(options.env)
        state = state_of(
            record,
            idle_timeout_s=terms.idle_timeout_s,
            environment=options.environment,
            env_digest=env_digest,
            limits=terms.limits,
            network=terms.network.mode,
        )
        origin = options.origin
        image = None if origin is None else origin.image_for(terms.provider, terms.limits["disk"])
        checkpoint_id = None if origin is None else origin.checkpoint_id
        end_at = None if options.lifetime_s is None else time.time() + options.lifetime_s
        kept = kept_of(
            options.made_for, options.policy, checkpoint_id, end_at=end_at, made_by=made_by or None
        )
        async with self._attached(key, options, terms.provider) as volumes:
            network = terms.network.box()
            claim = partial(
                self._source.claim,
                terms.provider, options.environment, terms.limits, state, image, volumes, network,
            )  # fmt: skip
            box, agent = await self._claim(claim, kept)
        try:
            if origin is not None:
                with timed(self._metrics, "restore"):
                    await self._restore(origin, agent, terms, copy=image is None)
                    await put_files(agent, network.files)  # Its tree may be of another network.
            if options.env:
                exports = "; ".join(f"export {k}={shlex.quote(v)}" for k, v in options.env.items())
                await agent.run(exports, own=True)
                await _tell_kernels(agent, options.env)
        except BaseException:
            await self.finish(self.discard(box, agent))
            raise
        return LiveSession(
            self.placed(record, box, terms.provider),
            box,
            agent,
            terms.idle_timeout_s,
            time.monotonic(),
            end_at=end_at,
            environment=options.environment,
            provider=terms.provider,
            limits=terms.limits,
            user=terms.user,
            network=terms.network,
            env_digest=env_digest,
            made_for=options.made_for,
            made_by=made_by,
            policy=options.policy,
            cwd=options.cwd if origin is None else origin.cwd,
            keep=rules_from(options.asked),
            checkpoint_id=checkpoint_id,
            began_with=checkpoint_id,
            changed=origin is None or origin.resumed is None,
            resumed=None if origin is None else origin.resumed,
        )

    async def _claim(
        self, claim: Callable[[], Awaitable[tuple[Box, BoxAgent]]], kept: Mapping[str, Any]
    ) -> tuple[Box, BoxAgent]:
        """An unused box, with this worker as its owner. One that another worker has claimed
        meanwhile is left to that, and the next is tried."""
        while True:
            box, agent = await claim()
            try:
                if kept:
                    self._ledger.keep(box.id, kept)
                if await self.sharing.claim(box):
                    return box, agent
            except BaseException:
                await self.finish(self.discard(box, agent))
                raise
            log.warning("box.claimed_by_another", box=box.id)
            await self.give_up(box, agent)

    def placed(self, record: Record, box: Box, provider: str) -> Record:
        """The record of a session that has this box."""
        if (shared := self.sharing.of(box)) is None:
            return replace(record, box_id=box.id)
        return replace(record, box_id=box.id, movable=provider, claims=shared.holding.claims)

    def keep(self, session: LiveSession) -> None:
        """Remember what a later process needs of a session that was changed. Raises
        RuntimeUnavailable."""
        self._ledger.keep(session.box.id, session.kept())
        self.sharing.keep(session.box)

    async def _restore(
        self, origin: Origin, agent: BoxAgent, terms: SessionTerms, *, copy: bool
    ) -> None:
        """copy: the box did not begin with the disk of the origin."""
        agent.require("tree", "a session from a checkpoint")
        if copy and origin.disk is not None:
            await self._copy_workspace(origin, origin.disk, terms, agent)
        await agent.unpack(origin.segments())

    @contextlib.asynccontextmanager
    async def _attached(
        self, key: Key, options: SessionOptions, provider: str
    ) -> AsyncIterator[Sequence[BoxVolume]]:
        """The volumes of a new box, held until it has them. Raises InvalidRequest, Conflict,
        DiskFull, VolumeNotFound."""
        if not options.volumes:
            yield ()
            return
        if self._volumes is None:
            raise InvalidRequest("this server has no volumes")
        if why := await self._source.no_volumes(provider):
            raise InvalidRequest(f"{provider} boxes cannot have volumes here: {why}")
        async with self._volumes.attached(*key, options.volumes) as attached:
            yield attached

    async def _copy_workspace(
        self, origin: Origin, disk: DiskCopy, terms: SessionTerms, agent: BoxAgent
    ) -> None:
        """Copy the files of a disk on which the box could not begin, through another box."""
        limits = LimitValues(**{**terms.limits, "disk": disk.size})
        state: dict[str, Any] = {}
        other, source = await self._source.claim(disk.provider, None, limits, state, origin.image)
        try:
            async with source.pack([WORKSPACE], pause_s=PAUSE_S) as tree:
                await agent.unpack(aiter(tree))
        finally:
            await self.finish(self.discard(other, source))

    async def give_up(self, box: Box, agent: BoxAgent) -> None:
        """Leave a box to the worker that has claimed it."""
        await agent.close()
        with contextlib.suppress(RuntimeUnavailable):
            self._ledger.forget(box.id)

    async def close(self) -> None:
        """No more sessions are made or ended. Waits for those that are being ended."""
        await self._finishing.stop(after_s=_FINISH_S)
        await self._endings.close()

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what may not be broken off with its caller."""
        await self._finishing.finish(work)

    async def discard(self, box: Box, agent: BoxAgent) -> None:
        """Destroy a box, after this has returned if it fails now."""
        await agent.close()
        await self._endings.end(box.id, box.destroy)
        with contextlib.suppress(RuntimeUnavailable):
            self._ledger.forget(box.id)


async def _tell_kernels(agent: BoxAgent, env: Mapping[str, str]) -> None:
    """Kernels that were started with the box have the variables too. Those started later get them
    from the shell, and a box of an earlier version has no kernels."""
    if "code" not in agent.lacks:
        with contextlib.suppress(InvalidRequest):
            await agent.contexts({"op": "env", "env": env})
