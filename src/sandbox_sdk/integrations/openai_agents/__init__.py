"""Sandboxes for the OpenAI Agents SDK; needs the extra `openai-agents`.

A SandboxAgent gets the sandbox of its conversation, run after run:

    run_config = RunConfig(
        sandbox=SandboxRunConfig(
            client=ThreadSandboxClient(),
            options=ThreadSandboxClientOptions(thread_id="conv-42"),
        )
    )
    await Runner.run(agent, "Run the tests.", run_config=run_config)

Any other agent gets a shell in it:

    Agent(name="coder", tools=[ShellTool(executor=SandboxShell("conv-42"))])

Or the tools of an agent that the server's registry declares:

    Agent(name="coder", tools=sandbox_tools("conv-42", agent="code_executor"))

With `snapshot=CheckpointSnapshotSpec()` a SandboxAgent's session is kept as a checkpoint.
"""

from sandbox_sdk.extras import needs

with needs("openai-agents"):
    from sandbox_sdk.integrations.openai_agents.client import (
        ThreadSandboxClient,
        ThreadSandboxClientOptions,
    )
    from sandbox_sdk.integrations.openai_agents.session import (
        ThreadSandboxSession,
        ThreadSandboxSessionState,
    )
    from sandbox_sdk.integrations.openai_agents.snapshot import (
        CheckpointSnapshot,
        CheckpointSnapshotSpec,
    )
    from sandbox_sdk.integrations.openai_agents.tools import SandboxShell, sandbox_tools

__all__ = [
    "CheckpointSnapshot",
    "CheckpointSnapshotSpec",
    "SandboxShell",
    "ThreadSandboxClient",
    "ThreadSandboxClientOptions",
    "ThreadSandboxSession",
    "ThreadSandboxSessionState",
    "sandbox_tools",
]
