"""The e2b runtime: every box is a sandbox of the operator's account at E2B.

A sandbox costs money as long as it lives, so each is made with a lifetime, which its owner prolongs
(ping): one that is forgotten ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from e2b import AsyncSandbox

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable, SandboxError
from sandbox_server.runtime.base import Box, BoxSpec, Enforcement, Runtime
from sandbox_server.runtime.e2b import scripts
from sandbox_server.runtime.e2b.account import E2bAccount
from sandbox_server.runtime.e2b.agent import E2bAgent
from sandbox_server.runtime.e2b.processes import Processes

OWNER = "agent-sandbox-owner"
BOX = "agent-sandbox-box"
"""Metadata of a sandbox: the worker it belongs to, and the name of the box."""
_INSTALL_S = 60.0
_DEADMAN_S = 2100.0
_TEMPLATE = "an E2B sandbox has the {} of its template; choose another template"
_NOT_ENFORCED = Enforcement(
    memory=_TEMPLATE.format("memory"),
    cpu=_TEMPLATE.format("cores"),
    pids="E2B has no limit of processes",
    disk=_TEMPLATE.format("disk"),
    inodes="E2B has no limit of files",
    syscalls="E2B sandboxes are virtual machines with a kernel of their own, without a filter",
    absent=frozenset({"memory", "cpu", "pids", "disk"}),
)


class E2bBox(Box):
    def __init__(
        self, account: E2bAccount, sandbox_id: str, sandbox: AsyncSandbox | None = None
    ) -> None:
        """sandbox: where it was just made."""
        super().__init__(sandbox_id)
        self._account = account
        self._sandbox = sandbox

    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> E2bAgent:
        return E2bAgent(
            self._account,
            self.id,
            epoch=epoch,
            deadman_s=deadman_s or _DEADMAN_S,
            sandbox=self._sandbox,
        )

    async def is_alive(self) -> bool:
        return await self._account.is_running(self.id)

    async def destroy(self) -> None:
        await self._account.kill(self.id)


class E2bRuntime(Runtime):
    name = "e2b"
    has_images = False
    has_templates = True

    def __init__(self, account: E2bAccount, *, template: str | None = None) -> None:
        """template: of boxes whose environment names none; E2B's own by default."""
        self._account = account
        self._template = template
        self._undoing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<E2bRuntime {self._account.url}>"

    @property
    def build(self) -> str:
        return scripts.build()

    async def about(self) -> str:
        await self._account.sandboxes({OWNER: "none"})
        return f"E2B at {self._account.url}"

    async def no_volumes(self) -> str:
        return "volumes are on the disks of this machine, and E2B sandboxes are not"

    async def create(self, spec: BoxSpec) -> Box:
        if spec.network not in self.networks:
            raise InvalidRequest(
                f"e2b boxes cannot have the network {spec.network!r}: they have E2B's own (bridge),"
                " or none"
            )
        sandbox = await self._account.create(
            spec.template or self._template,
            lifetime_s=spec.deadman_s,
            metadata={OWNER: spec.owner, BOX: uuid.uuid4().hex},
            env={**spec.network_variables(), **spec.env},
            internet=spec.network == "bridge",
        )
        try:
            await self._install(sandbox)
        except BaseException:
            await self._undo(sandbox.sandbox_id)
            raise
        return E2bBox(self._account, sandbox.sandbox_id, sandbox)

    async def _install(self, sandbox: AsyncSandbox) -> None:
        processes = Processes(sandbox, self._account.failures)
        args = scripts.install_arguments(uuid.uuid4().hex[:16])
        code, _, said = await processes.output(scripts.INSTALL, *args, within_s=_INSTALL_S)
        if code != 0:
            why = said.decode("utf-8", "replace").strip()[:300] or f"exit code {code}"
            raise RuntimeUnavailable(f"box {sandbox.sandbox_id} could not be prepared: {why}")

    async def _undo(self, sandbox_id: str) -> None:
        """Completes even if the caller is cancelled; what cannot be reached ends by itself."""
        task = asyncio.create_task(self._kill(sandbox_id))
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)

    async def _kill(self, sandbox_id: str) -> None:
        with contextlib.suppress(SandboxError):
            await self._account.kill(sandbox_id)

    async def boxes(self, owner: str) -> list[Box]:
        found = await self._account.sandboxes({OWNER: owner})
        return [E2bBox(self._account, sandbox_id) for sandbox_id in found]

    async def enforcement(self) -> Enforcement:
        return _NOT_ENFORCED

    async def close(self) -> None:
        if self._undoing:
            await asyncio.wait(self._undoing)
