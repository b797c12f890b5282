"""A warm box: running, with an open link to its warden."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import (
    EnvironmentFailed,
    InvalidRequest,
    RuntimeUnavailable,
    SandboxError,
    Unavailable,
)
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import BoxAgent, Fenced, put_files
from sandbox_server.runtime.base import Box, BoxSpec, Runtime
from sandbox_server.runtime.ending import end_patiently

Ready = Callable[[BoxSpec], Awaitable[BoxSpec]]
"""Makes the spec of boxes of an environment out of the usual one."""

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class WarmBox:
    """Its owner closes the link to the warden and destroys the box."""

    box: Box
    agent: BoxAgent
    fenced: bool = False
    """A process with a higher epoch has taken the box over, so we must not destroy it."""

    async def answers(self, *, within_s: float, state: Mapping[str, Any] | None = None) -> bool:
        """Whether the box answers in time and, if given, has stored the state. A broken link is
        reopened."""
        try:
            async with asyncio.timeout(within_s):
                if state is None:
                    await self.agent.ping()
                else:
                    await self.agent.set_state(state)
        except Fenced:
            self.fenced = True
            return False
        except (SandboxError, TimeoutError):
            return False
        except Exception:  # A hostile box may trigger anything: do not hand it out.
            log.exception("box.ping_broke", box=self.box.id)
            return False
        return True

    async def destroy(self) -> None:
        """Destroy the box, unless fenced."""
        await let_go(self.agent)
        if self.fenced:
            log.warning("box.fenced", box=self.box.id)
            return
        await end_patiently(self.box.id, self.box.destroy)


async def make(
    runtime: Runtime,
    spec: BoxSpec,
    *,
    slots: asyncio.Semaphore,
    connect: Callable[[Box], BoxAgent],
    discard: Callable[[WarmBox], None],
    within_s: float,
    ready: Ready | None = None,
) -> WarmBox:
    """A new box whose warden has answered, and that has its files and has run its setup. A slot is
    held only while the engine makes the box, not while its warden gets ready.

    Raises Unavailable, and what `ready` and prepare() do. A box that does not answer, or whose
    creation is cancelled, goes to `discard`.
    """
    if ready is not None:
        spec = await ready(spec)
    warm = await _started(runtime, spec, slots, connect, discard, within_s)
    try:
        if spec.disk is None:  # Else its files are those of a box that was prepared once.
            await prepare(warm.agent, spec)
        await _warm_kernels(warm, spec, within_s=within_s)
    except BaseException:
        discard(warm)
        raise
    return warm


async def _started(
    runtime: Runtime,
    spec: BoxSpec,
    slots: asyncio.Semaphore,
    connect: Callable[[Box], BoxAgent],
    discard: Callable[[WarmBox], None],
    within_s: float,
) -> WarmBox:
    box: Box | None = None
    try:
        async with slots, asyncio.timeout(within_s):
            box = await runtime.create(spec)
        warm = WarmBox(box, connect(box))
        try:
            async with asyncio.timeout(within_s):
                await warm.agent.connect()
        except BaseException:
            discard(warm)
            raise
        return warm
    except Unavailable:
        raise
    except TimeoutError as exc:
        raise RuntimeUnavailable(
            f"a new box was not ready within {within_s:g} s; try again"
        ) from exc
    except SandboxError as exc:
        if box is None and isinstance(exc, InvalidRequest):
            raise  # There can be no such box.
        raise RuntimeUnavailable(f"a new box did not answer ({exc}); try again") from exc


async def _warm_kernels(warm: WarmBox, spec: BoxSpec, *, within_s: float) -> None:
    """Start the kernels that the environment wants ahead. A box without them is used all the same:
    the first run of code says what is missing."""
    kernels = spec.kernels
    if not kernels.warm or "code" in warm.agent.lacks:
        return
    try:
        async with asyncio.timeout(within_s):
            await warm.agent.contexts(
                {"op": "warm", "languages": kernels.warm, "kernels": kernels.languages}
            )
    except (SandboxError, TimeoutError) as exc:
        log.warning("kernels.not_warm", box=warm.box.id, why=str(exc) or "not in time")


async def let_go(agent: BoxAgent) -> None:
    """Close a link that may be broken already."""
    with contextlib.suppress(OSError, SandboxError):
        await agent.close()


SETUP_S = 300.0
"""How long one command of a setup may take."""
_SHOWN = 2000


async def prepare(agent: BoxAgent, spec: BoxSpec) -> None:
    """Write the files and run the setup. What it exports, later commands have too.

    Raises EnvironmentFailed with the output of a command that failed, and what the agent raises.
    """
    await put_files(agent, {**spec.network_files, **spec.files})
    for command in spec.setup:
        done = await agent.run(command, timeout_s=SETUP_S, own=True)
        if done.exit_code != 0:
            ended = "timed out" if done.timed_out else f"ended with exit code {done.exit_code}"
            output = done.tail(_SHOWN).strip()
            raise EnvironmentFailed(
                f"the setup command `{command}` {ended}: {output}", log=output.splitlines()
            )
    if spec.setup:
        await agent.run(f"cd {WORKSPACE}", own=True)
