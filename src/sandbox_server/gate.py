"""The gate: every command passes it before it reaches a box, whichever way it came in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Self

import structlog

from sandbox_sdk.protocol.errors import CommandRejected
from sandbox_sdk.protocol.models import ExecuteRequest, SimpleCommand, Verdict
from sandbox_server.audit import AuditLog
from sandbox_server.policy.analysis import Call
from sandbox_server.policy.fields import certain
from sandbox_server.policy.policy import Policy, Rejection, Ruling
from sandbox_server.policy.rules import Mode

log = structlog.get_logger()

LONG = 4096
"""From here on a command is judged in a thread, so that it holds nobody up."""
MAX_TOLD = 1000
FIXED_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Under a whitelist, names must mean what they say: no folder that a command can write to."""


class Gate:
    """One policy for all, or one for an environment. Counts and audits what it decides."""

    def __init__(
        self,
        policy: Policy,
        *,
        by_environment: Mapping[str, Policy] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._policy = policy
        self._by_environment = dict(by_environment or {})
        self._audit = audit
        self.counts: Counter[str] = Counter()
        """How many commands were allowed, and how many rejected by each rule."""

    def __repr__(self) -> str:
        rejected = self.counts.total() - self.counts["allowed"]
        return f"<Gate {self._policy.name} {self.counts['allowed']} allowed, {rejected} rejected>"

    @classmethod
    def default(cls) -> Self:
        return cls(_default_policy())

    @classmethod
    def read(
        cls, policy: str, by_environment: Mapping[str, str], *, audit: AuditLog | None = None
    ) -> Self:
        """By the names of built-in sets or the paths of rule files. Raises PolicyError."""
        others = {name: Policy.read(given) for name, given in by_environment.items()}
        return cls(Policy.read(policy), by_environment=others, audit=audit)

    async def admit(
        self,
        request: ExecuteRequest,
        *,
        environment: str | None,
        tenant: str,
        cwd: str | None = None,
    ) -> ExecuteRequest:
        """The request as it may be run. Raises CommandRejected."""
        ruling = await self._judge(request, environment, cwd)
        rejection = ruling.rejection
        self.counts["allowed" if rejection is None else rejection.rule] += 1
        self._record(request, ruling, environment=environment, tenant=tenant)
        if rejection is not None:
            log.info("command.rejected", rule=rejection.rule, policy=ruling.policy, tenant=tenant,
                     thread=request.thread_id, session=request.session_id)  # fmt: skip
            log.debug("command.rejected_text", command=request.command[:MAX_TOLD])
            raise _rejected(ruling.policy, rejection)
        if ruling.mode is Mode.WHITELIST:
            return request.model_copy(update={"env": {**request.env, "PATH": FIXED_PATH}})
        return request

    async def check(
        self,
        request: ExecuteRequest,
        *,
        environment: str | None,
        tenant: str,
        cwd: str | None = None,
    ) -> Verdict:
        """What admit would do, told and not done."""
        ruling = await self._judge(request, environment, cwd)
        self._record(request, ruling, environment=environment, tenant=tenant)
        return verdict_of(ruling)

    async def _judge(
        self, request: ExecuteRequest, environment: str | None, cwd: str | None
    ) -> Ruling:
        policy = self._by_environment.get(environment or "", self._policy)

        def judge() -> Ruling:
            return policy.judge(
                request.command,
                env=request.env,
                stdin=request.stdin,
                # Whoever leaves a command in the background may still write to it.
                open_stdin=request.stdin_open,
                cwd=request.cwd or cwd,
            )

        long = len(request.command) + len(request.stdin or "") > LONG
        return await asyncio.to_thread(judge) if long else judge()

    def _record(
        self, request: ExecuteRequest, ruling: Ruling, *, environment: str | None, tenant: str
    ) -> None:
        if self._audit is None:
            return
        self._audit.write(
            tenant=tenant,
            thread_id=request.thread_id,
            session_id=request.session_id,
            environment=environment,
            policy=ruling.policy,
            allowed=ruling.allowed,
            rule=ruling.rejection.rule if ruling.rejection else None,
            doubts=ruling.doubts,
            dry_run=request.dry_run,
            command=request.command,
        )


def verdict_of(ruling: Ruling) -> Verdict:
    """A ruling in the words of the wire."""
    rejection = ruling.rejection
    return Verdict(
        allowed=ruling.allowed,
        policy=ruling.policy,
        mode=ruling.mode.value,
        rule=rejection.rule if rejection else None,
        reason=rejection.reason if rejection else None,
        alternative=rejection.alternative if rejection else None,
        command=_offending(rejection) if rejection else None,
        doubts=ruling.doubts,
        commands=[_told(call) for call in ruling.analysis.calls if _is_command(call)][:MAX_TOLD],
    )


def _rejected(policy: str, rejection: Rejection) -> CommandRejected:
    place = rejection.place
    instead = f"; instead: {rejection.alternative}" if rejection.alternative else ""
    return CommandRejected(
        f"rule {rejection.rule} rejects `{_clipped(place.text)}`: {rejection.reason}{instead}",
        rule=rejection.rule,
        policy=policy,
        command=_clipped(place.text),
        start=place.start,
        end=place.end,
        via=list(rejection.via),
        reason=rejection.reason,
        alternative=rejection.alternative,
    )


def _is_command(call: Call) -> bool:
    return not call.defines and any(call.argvs)


def _told(call: Call) -> SimpleCommand:
    place = call.place
    return SimpleCommand(
        argv=[certain(field) for field in call.argvs[0]],
        text=_clipped(place.text),
        start=place.start,
        end=place.end,
        via=list(call.via),
    )


def _offending(rejection: Rejection) -> SimpleCommand:
    place = rejection.place
    return SimpleCommand(
        argv=[certain(field) for field in rejection.argv],
        text=_clipped(place.text),
        start=place.start,
        end=place.end,
        via=list(rejection.via),
    )


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TOLD else f"{text[: MAX_TOLD - 1]}…"


@lru_cache(maxsize=1)
def _default_policy() -> Policy:
    return Policy.read("default")
