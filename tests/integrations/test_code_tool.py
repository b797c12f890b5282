"""run_code as a tool: text for the model, and images in the form of each framework."""

from typing import Any

import pytest
from mcp import Client
from mcp_types import ImageContent, TextContent

from sandbox_sdk.integrations.anthropic import AsyncSandboxCode, SandboxCode
from sandbox_sdk.integrations.langchain import code_tool
from sandbox_sdk.integrations.mcp import Conversation, mcp_server
from sandbox_sdk.integrations.tools import AsyncSandboxTools, SandboxTools
from sandbox_sdk.protocol.models import CodeError, CodeResult
from sandbox_sdk.testing import FakeBackend

PNG = "iVBORw0KGgo="
GIVEN = {"code": "plot()"}
TEXT = "drawn\n[an image: <Figure>]"


@pytest.fixture
def fake() -> FakeBackend:
    made = FakeBackend()
    shown = [{"text/plain": "<Figure>", "image/png": PNG}]
    made.on("plot()", output="drawn\n", results=shown)
    made.on("bad", error=CodeError(name="ValueError", value="no", traceback=["ValueError: no"]))
    return made


def test_a_loop_of_your_own(fake: FakeBackend) -> None:
    with SandboxTools(backend=fake) as tools:
        reply = tools.dispatch("run_code", GIVEN, thread_id="t", tool_call_id="c1")
        again = tools.dispatch("run_code", GIVEN, thread_id="t", tool_call_id="c1")
        bad = tools.dispatch("run_code", {"code": "bad"}, thread_id="t")
    assert (reply.text, reply.failed) == (TEXT, False)
    assert isinstance(reply.artifact, CodeResult)
    assert again.text.startswith("[answered from an earlier call")
    assert fake.ran == ["plot()", "bad"]
    url = f"data:image/png;base64,{PNG}"
    assert reply.parts() == [
        {"type": "text", "text": TEXT},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    assert (bad.text, bad.failed) == ("ValueError: no", False)


async def test_langchain(fake: FakeBackend) -> None:
    tool = code_tool(SandboxTools(backend=fake))
    call: Any = {"name": "run_code", "args": GIVEN, "id": "c1", "type": "tool_call"}
    config: Any = {"configurable": {"thread_id": "t"}}
    message = await tool.ainvoke(call, config)
    assert message.content == [
        {"type": "text", "text": TEXT},
        {"type": "image", "base64": PNG, "mime_type": "image/png"},
    ]


async def test_anthropic(fake: FakeBackend) -> None:
    tools = SandboxTools(backend=fake)
    one = SandboxCode("t", tools=tools).call(GIVEN)
    other = await AsyncSandboxCode("t", tools=tools).call(GIVEN)
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    assert one == other == [{"type": "text", "text": TEXT}, {"type": "image", "source": source}]


async def test_mcp(fake: FakeBackend) -> None:
    async with (
        AsyncSandboxTools(backend=fake) as tools,
        Client(mcp_server(lambda _: Conversation(tools, "t"))) as client,
    ):
        result = await client.call_tool("run_code", GIVEN)
    text, image = result.content
    assert isinstance(text, TextContent)
    assert isinstance(image, ImageContent)
    assert (text.text, image.data, image.mime_type) == (TEXT, PNG, "image/png")
