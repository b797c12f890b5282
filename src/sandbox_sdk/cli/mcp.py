"""`sandbox mcp`: the sandbox as tools of any program that speaks the Model Context Protocol."""

from __future__ import annotations

import uuid
from typing import Annotated

import anyio
import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.protocol.errors import RuntimeUnavailable

_CLEANUP_S = 15.0


async def mcp(
    *,
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread",
            "-t",
            envvar="SANDBOX_THREAD",
            help="Whose sandbox; without it, one that ends with this program.",
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="An agent of the server's registry, whose tools are served.")
    ] = None,
    caller: Caller,
) -> None:
    """Serve the sandbox as MCP tools on stdin and stdout, for an MCP client to start.

    Ends when stdin does. A server has the same tools at /mcp, over HTTP.
    """
    try:
        from sandbox_sdk.integrations.mcp import serve_stdio
    except ModuleNotFoundError as exc:
        raise RuntimeUnavailable(
            f"`sandbox mcp` needs `pip install 'agent-sandbox[mcp]'` ({exc})"
        ) from None
    from sandbox_sdk.integrations.tools import AsyncSandboxTools

    thread_id = thread or f"mcp-{uuid.uuid4().hex}"
    async with AsyncSandboxTools(backend=caller.sandboxes()) as tools:
        try:
            await serve_stdio(tools, thread_id, agent=agent)
        finally:
            if thread is None:
                with anyio.move_on_after(_CLEANUP_S, shield=True):
                    await tools.cleanup(thread_id)
