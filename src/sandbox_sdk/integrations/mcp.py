"""The sandbox as tools over the Model Context Protocol; needs the extra `mcp`.

`sandbox mcp` serves one conversation on stdin and stdout. A server has them at `/mcp` for all: a
conversation is named by the header X-Sandbox-Thread, or else is the MCP session. The header
X-Sandbox-Agent, or `--agent`, names an agent of the server's registry, whose tools are served.
"""

from __future__ import annotations

import contextlib
import mimetypes
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import quote

from sandbox_sdk.artifacts import AsyncArtifactFile
from sandbox_sdk.extras import needs
from sandbox_sdk.integrations.arguments import ALL, Undo, our_tool
from sandbox_sdk.integrations.presenting import explain
from sandbox_sdk.integrations.tools import AsyncSandboxTools, CallIds, Reply
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.sandboxes import Sandboxes

with needs("mcp"):
    import mcp_types as types
    from mcp.server import Server, ServerRequestContext
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.exceptions import MCPError
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
    from starlette.datastructures import Headers
    from starlette.types import Receive, Scope, Send

THREAD_HEADER = "x-sandbox-thread"
AGENT_HEADER = "x-sandbox-agent"
SESSION_HEADER = "mcp-session-id"
ARTIFACT = "sandbox-artifact:"
"""What the URI of an artifact begins with; its id follows."""
MOST_ARTIFACTS = 1000

_INSTRUCTIONS = (
    "A Linux sandbox for this conversation alone: run commands, keep files. What was made in one"
    " call is there in the next. It is apart from the user's machine, whose files it does not have."
)
_NO_THREAD = (
    "Error: this call belongs to no conversation. Tell the user to have their MCP client send the"
    " header X-Sandbox-Thread with a name for each conversation."
)

Context = ServerRequestContext[dict[str, Any], Any]


class McpCaller(NamedTuple):
    """Who sends a request over HTTP."""

    tenant: str
    key_id: str
    """Empty for none."""
    sandboxes: Sandboxes


class Conversation(NamedTuple):
    """What a request belongs to."""

    tools: AsyncSandboxTools
    thread_id: str | None
    """None if the request names no thread."""
    agent: str | None = None


async def serve_stdio(
    tools: AsyncSandboxTools, thread_id: str, *, agent: str | None = None
) -> None:
    """Serve one conversation on stdin and stdout, until stdin ends."""
    server = mcp_server(lambda _: Conversation(tools, thread_id, agent))
    async with stdio_server() as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


class McpEndpoint:
    """The tools over HTTP: an ASGI app, which works inside its `lifespan`.

    `caller` gets whoever sends a request from its headers, or raises; each tenant has its own
    threads.
    """

    def __init__(self, caller: Callable[[Headers], McpCaller]) -> None:
        self._caller = caller
        self._tools: dict[tuple[str, str], AsyncSandboxTools] = {}
        # The app that mounts this checks the Host header.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._manager = StreamableHTTPSessionManager(
            mcp_server(self._conversation), security_settings=security
        )

    def __repr__(self) -> str:
        return f"<McpEndpoint {len(self._tools)} callers seen>"

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = self._caller(Headers(scope=scope)).tenant
        # An MCP session can only be used by the tenant that began it.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=tenant, scopes=[]))
        await self._manager.handle_request(scope, receive, send)

    def _conversation(self, context: Context) -> Conversation:
        assert context.request is not None, "there is no message without a request over HTTP"
        headers = context.request.headers
        tenant, key_id, sandboxes = self._caller(headers)  # In the task that carries it out.
        if (tenant, key_id) not in self._tools:
            self._tools[tenant, key_id] = AsyncSandboxTools(backend=sandboxes)
        thread_id = headers.get(THREAD_HEADER)
        if thread_id is None and (session_id := headers.get(SESSION_HEADER)):
            thread_id = f"mcp-{session_id}"
        return Conversation(self._tools[tenant, key_id], thread_id, headers.get(AGENT_HEADER))


_OFFERED = [name for name in ALL if name != Undo.name]
"""Without an agent: its sandboxes have no history."""


def mcp_server(conversation: Callable[[Context], Conversation]) -> Server[dict[str, Any]]:
    """An MCP server with the tools of the conversation that a request belongs to."""

    async def list_tools(
        context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools, _, agent = conversation(context)
        try:
            found = await tools.agent_tools(agent) if agent else list(map(our_tool, _OFFERED))
        except SandboxError as error:
            raise MCPError(types.INVALID_PARAMS, explain(error)) from None
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name, description=tool.description, input_schema=tool.parameters
                )
                for tool in found
            ]
        )

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        asked = conversation(context)
        if asked.thread_id is None:
            return _result(types.TextContent(text=_NO_THREAD), failed=True)
        arguments = params.arguments or {}
        ids = CallIds(thread_id=asked.thread_id, agent=asked.agent)
        reply = await _carried_out(asked.tools, ids, params.name, arguments, context)
        if params.name == "download_file" and not reply.failed:
            return _result(_file(str(arguments["path"]), reply.text))
        images = [types.ImageContent(data=each.data, mime_type=each.mime) for each in reply.images]
        return _result(types.TextContent(text=reply.text), *images, failed=reply.failed)

    async def list_resources(
        context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        asked = conversation(context)
        thread_id = asked.thread_id
        found = [] if thread_id is None else await _artifacts(asked.tools, thread_id)
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    name=artifact.info.path,
                    uri=f"{ARTIFACT}{artifact.info.artifact_id}",
                    mime_type=artifact.info.mime,
                    size=artifact.info.size,
                )
                for artifact in found
            ]
        )

    async def read_resource(
        context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        asked = conversation(context)
        async with contextlib.AsyncExitStack() as stack:
            if asked.thread_id is not None:
                sandbox = await stack.enter_async_context(asked.tools.sandbox(asked.thread_id))
                for artifact in await sandbox.artifacts(limit=MOST_ARTIFACTS):
                    if f"{ARTIFACT}{artifact.info.artifact_id}" == params.uri:
                        return _contents(params.uri, artifact.info.mime, await artifact.read())
        raise MCPError(
            code=types.INVALID_PARAMS,
            message=f"no artifact {params.uri} in this conversation; list the resources",
        )

    async def discover(
        context: Context, _params: types.RequestParams | None
    ) -> types.DiscoverResult:
        # The newest protocol has no sessions. A client that names no thread is offered the older
        # versions alone, whose session ids tell conversations apart.
        named = conversation(context).thread_id is not None
        versions = MODERN_PROTOCOL_VERSIONS if named else HANDSHAKE_PROTOCOL_VERSIONS
        return types.DiscoverResult(
            supported_versions=list(versions),
            capabilities=server.get_capabilities(protocol_version=context.protocol_version),
            instructions=server.instructions,
        )

    server = Server(
        "sandbox",
        title="Sandbox",
        version=version("agent-sandbox"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
    server.add_request_handler("server/discover", types.RequestParams, discover)
    return server


async def _artifacts(tools: AsyncSandboxTools, thread_id: str) -> list[AsyncArtifactFile]:
    async with tools.sandbox(thread_id) as sandbox:
        return await sandbox.artifacts(limit=MOST_ARTIFACTS)


def _contents(uri: str, mime: str, data: bytes) -> types.ReadResourceResult:
    """Text as such, so that a model can read it."""
    try:
        if mime.startswith("text/") or mime == "application/json":
            text = types.TextResourceContents(uri=uri, mime_type=mime, text=data.decode())
            return types.ReadResourceResult(contents=[text])
    except UnicodeDecodeError:
        pass
    blob = types.BlobResourceContents(uri=uri, mime_type=mime, blob=b64encode(data).decode())
    return types.ReadResourceResult(contents=[blob])


async def _carried_out(
    tools: AsyncSandboxTools,
    ids: CallIds,
    name: str,
    arguments: Mapping[str, Any],
    context: Context,
) -> Reply:
    """The reply of a tool. A client that asked for progress gets a command's output as it comes."""
    if name != "bash" or "progress_token" not in (context.meta or {}):
        return await tools.dispatch(name, arguments, **ids)
    seen = 0
    async with contextlib.aclosing(tools.stream(arguments, **ids)) as items:
        async for item in items:
            if isinstance(item, Reply):
                return item
            seen += len(item)
            await context.session.report_progress(seen, message=item)
    raise AssertionError("a stream ends with its reply")


def _result(*content: types.ContentBlock, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=list(content), is_error=failed)


def _file(path: str, data: str) -> types.ContentBlock:
    """A file as MCP content: an image as such, anything else as a resource."""
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    if kind.startswith("image/"):
        return types.ImageContent(data=data, mime_type=kind)
    uri = f"sandbox:{quote(path)}"
    resource = types.BlobResourceContents(uri=uri, mime_type=kind, blob=data)
    return types.EmbeddedResource(resource=resource)
