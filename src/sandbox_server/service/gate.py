"""The gate: every command passes the policy here before it reaches a box."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, Self, TypeVar

import structlog

from sandbox_sdk.protocol.errors import CommandRejected, RuntimeUnavailable
from sandbox_sdk.protocol.models import ExecuteRequest, RunCodeRequest, SimpleCommand, Verdict
from sandbox_server.audit.log import AuditLog
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.policy.analysis import Analysis, Call
from sandbox_server.policy.bash.source import QUICK_WORK
from sandbox_server.policy.bash.syntax import TooMuch
from sandbox_server.policy.policy import MAX_SHOWN, Excerpt, Policy, Rejection, Ruling
from sandbox_server.policy.rulefile import PolicyError
from sandbox_server.policy.rules import Mode
from sandbox_server.runtime.layers import PROGRAMS

log = structlog.get_logger()
T = TypeVar("T")

INTERACTIVE = "bash"
"""What a policy judges where somebody types: nothing more is known."""
LONG = 2000
"""Commands from this length on are judged in the thread right away."""
FIXED_PATH = ":".join((*PROGRAMS, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))
"""PATH under a whitelist. No writable folder: a command could put its own `ls` there."""


class Gate:
    """Applies the policy, which an environment may override. Counts and audits the verdicts.

    Commands that take more than QUICK_WORK are judged in one thread, one at a time: a second thread
    would only compete for the GIL with the first and with the event loop.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        by_environment: Mapping[str, Policy] | None = None,
        audit: AuditLog | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._metrics = metrics
        self._policy = policy
        self._by_environment = dict(by_environment or {})
        self._named: dict[str, Policy] = {}
        self._audit = audit
        self._thread = ThreadPoolExecutor(1, "policy")
        self.allowed = 0
        self.rejected: Counter[str] = Counter()
        """Rejected commands by rule."""

    def __repr__(self) -> str:
        rejected = self.rejected.total()
        return f"<Gate {self._policy.name} {self.allowed} allowed, {rejected} rejected>"

    @classmethod
    def default(cls) -> Self:
        return cls(_default_policy())

    @classmethod
    def read(
        cls,
        policy: str,
        by_environment: Mapping[str, str],
        *,
        audit: AuditLog | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> Self:
        """From names of built-in sets or paths of rule files. Raises PolicyError."""
        others = {name: Policy.read(given) for name, given in by_environment.items()}
        policy_of_all = Policy.read(policy)
        return cls(policy_of_all, by_environment=others, audit=audit, metrics=metrics)

    def close(self) -> None:
        """Stop the thread after its current and queued commands."""
        self._thread.shutdown(wait=False)

    async def admit(
        self,
        request: ExecuteRequest,
        *,
        environment: str | None,
        policy: str | None = None,
        tenant: str,
        cwd: str | None = None,
    ) -> ExecuteRequest:
        """The request to run, with PATH fixed under a whitelist. policy: that of the session, where
        it has its own. Raises CommandRejected."""
        judge = self._policy_of(environment, policy).judge
        ruling = await self._in_time(judge, request, cwd)
        self._record(request, ruling, environment=environment, tenant=tenant)
        if ruling.rejection is not None:
            log.debug("command.rejected_text", command=request.command[:MAX_SHOWN])
        self._enforce(ruling, "command.rejected", tenant=tenant, thread=request.thread_id,
                      session=request.session_id)  # fmt: skip
        if ruling.mode is Mode.WHITELIST:
            return request.model_copy(update={"env": {**request.env, "PATH": FIXED_PATH}})
        return request

    async def admit_code(
        self,
        request: RunCodeRequest,
        *,
        language: str,
        environment: str | None,
        policy: str | None = None,
        tenant: str,
    ) -> None:
        """Code is judged as the command that would run it, such as `python3 -c …`: what a policy
        does not let bash start does not get past it as code. Raises CommandRejected."""
        # Not checked as a request: quoted, the code may be longer than a command may be.
        command = ExecuteRequest.model_construct(
            thread_id=request.thread_id,
            session_id=request.session_id,
            command=shlex.join([*_PROGRAMS.get(language, (language, "-e")), request.code]),
        )
        ruling = await self._in_time(self._policy_of(environment, policy).judge, command, None)
        self._record(
            command, ruling, environment=environment, tenant=tenant, code=request.code,
            language=language, context_id=request.context_id,
        )  # fmt: skip
        self._enforce(ruling, "code.rejected", tenant=tenant, thread=request.thread_id)

    def _enforce(self, ruling: Ruling, event: str, **logged: str | None) -> None:
        """Count a verdict. Raises CommandRejected, and logs it as this event."""
        rejection = ruling.rejection
        self._metrics.verdict(allowed=rejection is None)
        if rejection is None:
            self.allowed += 1
            return
        self.rejected[rejection.rule] += 1
        self._metrics.command("rejected")
        log.info(event, rule=rejection.rule, policy=ruling.policy, **logged)
        raise _rejected(ruling.policy, rejection)

    async def check(
        self,
        request: ExecuteRequest,
        *,
        environment: str | None,
        policy: str | None = None,
        tenant: str,
        cwd: str | None = None,
    ) -> Verdict:
        """The verdict of admit(), as a dry run."""
        judging = self._policy_of(environment, policy)

        def explain(command: str, **given: Any) -> tuple[Ruling, Verdict]:
            ruling, found = judging.explain(command, **given)
            return ruling, verdict_of(ruling, found)

        ruling, verdict = await self._in_time(explain, request, cwd)
        self._record(request, ruling, environment=environment, tenant=tenant)
        return verdict

    def _policy_of(self, environment: str | None, policy: str | None) -> Policy:
        """Raises RuntimeUnavailable: a session whose own policy is gone does not get another."""
        if policy is None:
            return self._by_environment.get(environment or "", self._policy)
        if policy not in self._named:
            try:
                self._named[policy] = Policy.read(policy)
            except PolicyError as exc:
                raise RuntimeUnavailable(f"the policy of this session is gone: {exc}") from None
        return self._named[policy]

    async def _in_time(
        self, judge: Callable[..., T], request: ExecuteRequest, cwd: str | None
    ) -> T:
        """Judge a request without blocking the event loop."""
        ask = partial(
            judge,
            request.command or INTERACTIVE,
            env=request.env,
            stdin=request.stdin,
            # A caller may still write to a background command.
            open_stdin=request.stdin_open or request.pty is not None,
            cwd=request.cwd or cwd,
        )
        if len(request.command) + len(request.stdin or "") + len(request.env) < LONG:
            with contextlib.suppress(TooMuch):
                return ask(work=QUICK_WORK)
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)

    def _record(
        self, request: ExecuteRequest, ruling: Ruling, *, environment: str | None, tenant: str,
        code: str | None = None, **more: Any,
    ) -> None:  # fmt: skip
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
            doubts=list(ruling.doubts),
            dry_run=request.dry_run,
            command=request.command if code is None else code,
            **more,
        )


_PROGRAMS = {
    "python": ("python3", "-c"),
    "javascript": ("node", "-e"),
    "typescript": ("node", "-e"),
    "r": ("Rscript", "-e"),
}
"""The commands that run code."""


def verdict_of(ruling: Ruling, found: Analysis) -> Verdict:
    """A ruling as a wire model, with all simple commands that were found."""
    rejection = ruling.rejection
    calls = [Excerpt.of(call.place, call.via, call.argvs[0]) for call in found.calls if _runs(call)]
    return Verdict(
        allowed=ruling.allowed,
        policy=ruling.policy,
        mode=ruling.mode.value,
        rule=rejection.rule if rejection else None,
        reason=rejection.reason if rejection else None,
        alternative=rejection.alternative if rejection else None,
        command=_simple(rejection.excerpt) if rejection else None,
        doubts=list(ruling.doubts),
        commands=[_simple(call) for call in calls],
    )


def _rejected(policy: str, rejection: Rejection) -> CommandRejected:
    excerpt = rejection.excerpt
    instead = f"; instead: {rejection.alternative}" if rejection.alternative else ""
    return CommandRejected(
        f"rule {rejection.rule} rejects `{excerpt.text}`: {rejection.reason}{instead}",
        rule=rejection.rule,
        policy=policy,
        command=excerpt.text,
        start=excerpt.start,
        end=excerpt.end,
        via=list(excerpt.via),
        reason=rejection.reason,
        alternative=rejection.alternative,
    )


def _runs(call: Call) -> bool:
    return not call.defines and any(call.argvs)


def _simple(excerpt: Excerpt) -> SimpleCommand:
    return SimpleCommand.model_validate(excerpt, from_attributes=True)


@lru_cache(maxsize=1)
def _default_policy() -> Policy:
    return Policy.read("default")
