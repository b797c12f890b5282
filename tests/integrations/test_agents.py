"""Agents and tools of a registry folder, over real boxes, in every framework."""

import asyncio
import contextlib
import json
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from anthropic import AsyncAnthropic
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from mcp import Client
from mcp_types import TextContent

from sandbox_sdk import RemoteBackend, errors
from sandbox_sdk.integrations import anthropic, openai_agents
from sandbox_sdk.integrations.langchain import SandboxMiddleware
from sandbox_sdk.integrations.mcp import Conversation, mcp_server
from sandbox_sdk.integrations.tools import AsyncSandboxTools, SandboxTools
from sandbox_sdk.protocol.models import (
    CallToolRequest,
    CreateSessionRequest,
    ExecuteRequest,
    Target,
    ToolAnswer,
)
from sandbox_sdk.testing.langchain import ScriptedModel as LangChainModel
from sandbox_server.registry.live import LOOK_S, LiveRegistry
from tests.contract.conftest import RUNTIMES, state_dir
from tests.contract.stand import Stand, lone_standing, make_runtime, open_stand, served
from tests.integrations.test_anthropic import QUESTION, ScriptedApi
from tests.kernels import BUILD_S, spec_of

__all__ = ["state_dir"]

FILES = {
    "agents/clerk.yaml": """
        name: clerk
        prompt: clerk
        policy: strict
        limits: {idle_timeout: 20m}
        tools: [count, words]
    """,
    "agents/handy.yaml": "{name: handy, tools: [bash, words]}",
    "prompts/clerk.yaml": """
        name: clerk
        text: |
          You count words as {agent}. {network}
          {tools}
    """,
    "tools/count.yaml": """
        name: count
        description: Count the words of a file.
        parameters:
          properties: {path: {type: string}}
          required: [path]
        command: wc -w {{path}}
    """,
    "tools/words.yaml": """
        name: words
        description: The arguments, one on each line.
        parameters:
          properties:
            words: {type: array, items: {type: string}}
            text: {type: string}
        command: printf '%s\\n' {{words}} --text={{text}}
        limit: 200
    """,
    "tools/about.yaml": """
        name: about
        description: Facts about a file.
        parameters: {properties: {path: {type: string}}, required: [path]}
        command: size=$(wc -c < {{path}}) && printf '{"size":%s}' $size
        output: json
    """,
    "tools/save.yaml": """
        name: save
        description: Save a text.
        parameters: {properties: {path: {type: string}, text: {type: string}}}
        command: cat > {{path}}; echo saved; realpath {{path}}
        stdin: "{{text}}"
        output: file
    """,
    "tools/slow.yaml": "{name: slow, description: d, command: sleep 60, timeout: 0.3}",
    "tools/py.yaml": "{name: py, description: d, code: print(1), language: python}",
}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Office(Stand):
    """A server with a registry folder."""

    folder: Path
    clock: Clock


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))


@pytest.fixture(params=[name for name in RUNTIMES if name != "gvisor"])
async def office(
    request: pytest.FixtureRequest, state_dir: Path, tmp_path: Path
) -> AsyncIterator[Office]:
    for name, text in FILES.items():
        write(tmp_path, name, text)
    clock = Clock()
    declared = LiveRegistry(tmp_path, clock=clock)
    async with (
        make_runtime(str(request.param), state_dir) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing, declared=declared) as stand,
    ):
        made = Office(stand.worker, stand.service)
        made.folder, made.clock = tmp_path, clock
        yield made


async def call(office: Office, tool: str, thread: str = "t", **given: Any) -> ToolAnswer:
    request = CallToolRequest(thread_id=thread, tool=tool, arguments=given)
    return await office.sandboxes.call_tool(request)


HOSTILE = [
    "$(touch /workspace/pwned)",
    "`touch /workspace/pwned`",
    "'; touch /workspace/pwned; '",
    '"; touch /workspace/pwned; "',
    "$((a[$(touch /workspace/pwned)]))",
    "x\ntouch /workspace/pwned",
    "& touch /workspace/pwned &",
    "${IFS}touch${IFS}/workspace/pwned",
    "* ? [a-z] ~ {a,b}",
    "\\",
    "'",
    '"',
    "-n",
    "--",
    "{{text}} {{words}}",
    "$TOOL_ARG_text",
    "!! \x1b[31m \t é\U0001f600",
]


async def test_no_value_is_ever_source(office: Office, subtests: pytest.Subtests) -> None:
    for value in HOSTILE:
        with subtests.test(value=value):
            answer = await call(office, "words", words=[value, value], text=value)
            assert answer.result is not None
            assert answer.result.stdout == f"{value}\n{value}\n--text={value}\n"
    ran = ExecuteRequest(thread_id="t", command="ls -A; env | grep TOOL_ARG; echo $TOOL_ARG_text")
    assert (await office.sandboxes.execute(ran)).output == "\n", "nothing is left behind"


async def test_how_results_are_presented(office: Office) -> None:
    saved = await call(office, "save", path="a b.txt", text="one 'two'\n" * 3)
    assert saved.file is not None
    assert (saved.text, saved.file.size) == ("/workspace/a b.txt (30 bytes)", 30)
    about = await call(office, "about", path="a b.txt")
    assert (about.data, about.failed) == ({"size": 30}, False)
    missing = await call(office, "about", path="nothing")
    assert missing.data is None
    assert "nothing: No such file or directory\n[exit code 1]" in missing.text

    long = await call(office, "words", words=[f"line {n}" for n in range(100)])
    assert len(long.text) < 700
    assert "The whole is in /tmp/outputs/" in long.text
    slow = await call(office, "slow")
    assert slow.text.startswith("(no output)\n[timed out after 0 s")
    for tool, given, problem in [
        ("count", {"path": 3}, r"count: path: 3 is not of type 'string'"),
        ("count", {}, "count: 'path' is a required property"),
        ("count", {"path": "x", "y": 1}, "count: Additional properties are not allowed"),
        ("cuont", {}, r"there is no tool 'cuont', only bash, .*count.* \(nearest: count\)"),
        ("py", {}, "no Jupyter kernel for python"),
    ]:
        with pytest.raises(errors.InvalidRequest, match=problem):
            await call(office, tool, **given)  # type: ignore[arg-type]


CODE = {
    "tools/double.yaml": """
        name: double
        description: d
        parameters: {properties: {n: {type: integer}}}
        language: python
        code: |
          import json
          print(json.dumps({"twice": 2 * args["n"]}))
        output: json
    """,
    "tools/draw.yaml": """
        name: draw
        description: d
        language: python
        code: |
          from IPython.display import Image, display
          display(Image(data=b"PNG", format="png"))
    """,
    "tools/fail.yaml": "{name: fail, description: d, code: 1 / 0, language: python}",
}


@pytest.mark.timeout(BUILD_S)
async def test_tools_that_are_code(state_dir: Path, tmp_path: Path) -> None:
    for name, text in CODE.items():
        write(tmp_path, name, text)
    runtime_name = "bubblewrap" if "bubblewrap" in RUNTIMES else "docker"
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(make_runtime(runtime_name, state_dir))
        spec = await spec_of("Data", runtime)
        standing = await stack.enter_async_context(lone_standing())
        declared = LiveRegistry(tmp_path)
        stand = await stack.enter_async_context(
            open_stand(runtime, standing, declared=declared, spec=spec)
        )
        office = Office(stand.worker, stand.service)
        assert (await call(office, "double", n=21)).data == {"twice": 42}
        drawn = await call(office, "draw")
        assert [(image.mime, image.data) for image in drawn.images] == [("image/png", "UE5H")]
        failed = await call(office, "fail")
        assert "ZeroDivisionError" in failed.text
        ours = await call(office, "run_code", code="6 * 7")
        assert (ours.text, ours.failed) == ("42", False)
        async with AsyncSandboxTools(backend=office.sandboxes) as tools:
            reply = await tools.dispatch("draw", {}, thread_id="t")
        assert [image.mime for image in reply.images] == ["image/png"]


async def test_an_agent_has_its_policy_and_keeps_what_it_began_with(office: Office) -> None:
    made = await office.sandboxes.create_session(CreateSessionRequest(thread_id="t", agent="clerk"))
    assert made.agent is not None
    assert made.agent.prompt == (
        "You count words as clerk. There is no network: nothing can be downloaded or installed"
        " from the internet.\n- count: Count the words of a file.\n- words: The arguments, one on"
        " each line."
    )
    assert 1190 < (made.expires_at - made.created_at).total_seconds() < 1210
    with pytest.raises(errors.CommandRejected, match="rule runs-programs rejects"):
        await office.sandboxes.execute(ExecuteRequest(thread_id="t", command="curl x"))
    await office.sandboxes.upload_file(Target(thread_id="t"), "f", _chunks(b"one two"))
    assert (await call(office, "count", path="f")).text == "2 f\n[exit code 0]"
    with pytest.raises(errors.InvalidRequest, match="there is no tool 'bash', only count, words"):
        await call(office, "bash", command="ls")

    # The change concerns sessions from now on.
    write(office.folder, "tools/count.yaml", FILES["tools/count.yaml"].replace("wc -w", "wc -c"))
    office.clock.now += LOOK_S
    assert (await call(office, "count", path="f")).text == "2 f\n[exit code 0]"
    await office.sandboxes.cleanup(Target(thread_id="t"))
    await office.sandboxes.create_session(CreateSessionRequest(thread_id="t", agent="clerk"))
    await office.sandboxes.upload_file(Target(thread_id="t"), "f", _chunks(b"one two"))
    assert (await call(office, "count", path="f")).text == "7 f\n[exit code 0]"


async def test_a_bad_change_is_told_and_the_last_good_one_stays(office: Office) -> None:
    assert (await office.service.health()).status == "healthy"
    write(office.folder, "agents/clerk.yaml", "name: clerk\ntools: [cuont]\n")
    office.clock.now += LOOK_S
    health = await office.service.health()
    assert health.status == "degraded"
    assert (
        'clerk.yaml:2: tools: no tool "cuont" (nearest: count)' in health.checks["registry files"]
    )
    (clerk,) = [a for a in (await office.sandboxes.registry()).agents if a.name == "clerk"]
    assert [tool.name for tool in clerk.tools] == ["count", "words"]


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


# Frameworks. The server is in the loop of the test, so what blocks runs in a thread.


@pytest.fixture
async def tools(office: Office) -> AsyncIterator[SandboxTools]:
    async with served(office.service) as url:
        made = SandboxTools(backend=RemoteBackend(url))
        yield made
        await asyncio.to_thread(made.close)


async def test_tools_of_an_agent(tools: SandboxTools) -> None:
    prompt, schemas = await tools.abegin("t", agent="clerk")
    assert prompt.startswith("You count words as clerk.")
    assert [schema["function"]["name"] for schema in schemas] == ["count", "words"]
    reply = await tools.adispatch("words", '{"text": "$(id)"}', thread_id="t", tool_call_id="1")
    assert (reply.text, reply.failed) == ("--text=$(id)\n[exit code 0]", False)
    again = await tools.adispatch("words", '{"text": "$(id)"}', thread_id="t", tool_call_id="1")
    assert again.text.startswith("[answered from an earlier call with this id]\n--text")
    for name, given, problem in [
        ("bash", '{"command": "ls"}', "Error: there is no tool 'bash', only count, words. Correct"),
        ("count", "[]", "Error: count: send a JSON object. Correct the call"),
        ("count", "{}", "Error: count: 'path' is a required property. Correct the call"),
    ]:
        wrong = await tools.adispatch(name, given, thread_id="t")
        assert wrong.failed
        assert wrong.text.startswith(problem)
    # A thread keeps its agent when its sandbox has ended: so do its environment and policy.
    await tools.acleanup("t")
    reply = await tools.adispatch("count", {"path": "/dev/null"}, thread_id="t")
    assert "0 /dev/null" in reply.text
    assert (await tools.adispatch("bash", {"command": "ls"}, thread_id="t")).failed
    with pytest.raises(errors.InvalidRequest, match="no agent 'nobody'"):
        await tools.abegin("u", agent="nobody")


async def test_langchain(tools: SandboxTools) -> None:
    middleware = await asyncio.to_thread(SandboxMiddleware, tools, agent="handy")
    turn = [
        {"name": "words", "args": {"words": ["a;b"]}},
        {"name": "bash", "args": {"command": "echo own"}},
    ]
    model = LangChainModel(turns=[turn])
    agent: Any = create_agent(model, middleware=[middleware])
    state = await agent.ainvoke(
        {"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "l"}}
    )
    replies = [m.content for m in state["messages"] if isinstance(m, ToolMessage)]
    assert replies == ["a;b\n--text=\n[exit code 0]", "own\n[exit code 0]"]


async def test_openai_agents(tools: SandboxTools) -> None:
    set_tracing_disabled(True)
    found = await asyncio.to_thread(openai_agents.sandbox_tools, "o", tools=tools, agent="handy")
    model = ScriptedModel(
        [[function_call("words", {"text": "x"}, call_id="1")], [assistant_message("done")]]
    )
    await Runner.run(Agent(name="handy", model=model, tools=[*found]), "go")
    assert model.last_call is not None
    outputs = [item for item in model.last_call.input if "output" in item]
    assert [item["output"] for item in outputs] == ["--text=x\n[exit code 0]"]


async def test_anthropic(tools: SandboxTools) -> None:
    found = await asyncio.to_thread(anthropic.async_sandbox_tools, "n", tools=tools, agent="handy")
    api = ScriptedApi(
        [{"name": "words", "input": {"text": "x"}}, {"name": "words", "input": {"y": 1}}]
    )
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(api.answer))
    async with AsyncAnthropic(api_key="none", http_client=http) as claude:
        await claude.beta.messages.tool_runner(tools=found, **QUESTION).until_done()
    assert [tool["name"] for tool in api.requests[0]["tools"]] == ["bash", "words"]
    (right, wrong) = api.results()
    assert right == ("--text=x\n[exit code 0]", False)
    assert "Additional properties" in wrong[0]
    assert wrong[1]


async def test_mcp(office: Office) -> None:
    tools = AsyncSandboxTools(backend=office.sandboxes)
    async with Client(mcp_server(lambda _: Conversation(tools, "m", "handy"))) as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == ["bash", "words"]
        assert json.dumps(listed[1].input_schema).count("words") == 1
        called: Any = await client.call_tool("words", {"text": "x"})
        (content,) = called.content
        assert isinstance(content, TextContent)
        assert content.text == "--text=x\n[exit code 0]"
        hidden: Any = await client.call_tool("count", {"path": "x"})
        assert hidden.is_error
    async with Client(mcp_server(lambda _: Conversation(tools, "m", "hany"))) as client:
        with pytest.raises(Exception, match="no agent 'hany'; there are: clerk"):
            await client.list_tools()
