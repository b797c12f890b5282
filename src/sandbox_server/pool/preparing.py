"""What a new box gets before it is handed out: the files of its environment, and its setup."""

from __future__ import annotations

from sandbox_sdk.protocol.errors import EnvironmentFailed
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import BoxAgent, put_files
from sandbox_server.runtime.base import BoxSpec

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
