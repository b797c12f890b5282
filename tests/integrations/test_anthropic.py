"""Claude's own tools, run by Anthropic's tool runner against a scripted Messages API."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic

from sandbox_sdk import RemoteBackend
from sandbox_sdk.integrations.anthropic import async_sandbox_tools, sandbox_tools
from sandbox_sdk.integrations.tools import SandboxTools
from tests.contract.stand import Stand, served


@pytest.fixture
async def tools(stand: Stand) -> AsyncIterator[SandboxTools]:
    async with served(stand.service) as url:
        made = SandboxTools(backend=RemoteBackend(url))
        yield made
        await asyncio.to_thread(made.close)


class ScriptedApi:
    """Answers as the Messages API does: every answer makes the calls of the next step."""

    def __init__(self, *steps: list[dict[str, Any]]) -> None:
        self._steps = list(steps)
        self.requests: list[dict[str, Any]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(json.loads(request.content))
        calls = self._steps.pop(0) if self._steps else []
        number = len(self.requests)
        blocks = [
            {"type": "tool_use", "id": f"toolu_{number}_{n}", **call}
            for n, call in enumerate(calls)
        ]
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": blocks or [{"type": "text", "text": "done"}],
            "stop_reason": "tool_use" if blocks else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return httpx2.Response(200, json=message)

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        return self(request)

    def results(self) -> list[tuple[str, bool]]:
        """What Claude was told of each call, and whether as an error."""
        return [
            (block["content"], block.get("is_error", False))
            for message in self.requests[-1]["messages"]
            if message["role"] == "user" and not isinstance(message["content"], str)
            for block in message["content"]
        ]


def bash(**given: Any) -> dict[str, Any]:
    return {"name": "bash", "input": given}


def edit(command: str, path: str, **given: Any) -> dict[str, Any]:
    given = {"command": command, "path": path, **given}
    return {"name": "str_replace_based_edit_tool", "input": given}


QUESTION: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "go"}],
    "thread": False,
}


async def run(
    tools: SandboxTools, thread_id: str, *steps: list[dict[str, Any]]
) -> list[tuple[str, bool]]:
    api = ScriptedApi(*steps)
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(api.answer))
    async with AsyncAnthropic(api_key="none", http_client=http) as claude:
        runner = claude.beta.messages.tool_runner(
            tools=async_sandbox_tools(thread_id, tools=tools), **QUESTION
        )
        final = await runner.until_done()
    assert final.content[0].type == "text"
    assert api.requests[0]["tools"] == [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    ]
    return api.results()


async def test_bash_keeps_its_state_from_run_to_run(tools: SandboxTools) -> None:
    assert await run(tools, "a", [bash(command="cd /tmp; x=7; echo made > file")]) == [
        ("(no output)\n[exit code 0]", False)
    ]
    results = await run(
        tools,
        "a",
        [bash(command="echo $x; pwd"), bash(command="cat file; exit 3")],
        [bash(restart=True)],
        [bash(command="cat file; pwd")],
        [bash()],
    )
    assert [error for _, error in results] == [False, False, False, False, True]
    said = [text for text, _ in results]
    assert said[:2] == ["7\n/tmp\n[exit code 0]", "made\n[exit code 3]"]
    assert "empty, as new" in said[2]
    assert "No such file" in said[3]
    assert "/workspace" in said[3]
    assert "give a command" in said[4]


async def test_conversations_are_apart(tools: SandboxTools) -> None:
    async def one(name: str) -> list[tuple[str, bool]]:
        return await run(
            tools, name, [bash(command=f"echo {name} > {name}")], [bash(command="cat *; ls")]
        )

    ann, bob = await asyncio.gather(one("ann"), one("bob"))
    assert ann[1][0] == "ann\nann\n[exit code 0]"
    assert bob[1][0] == "bob\nbob\n[exit code 0]"


async def test_the_text_editor(tools: SandboxTools) -> None:
    path = "/workspace/src/poem.txt"
    done = await run(
        tools,
        "a",
        [edit("create", path, file_text="one\ntwo\nfour")],
        [edit("insert", path, insert_line=2, insert_text="three")],
        [edit("insert", path, insert_line=4, insert_text="five\n")],
        [edit("insert", path, insert_line=0, insert_text="zero\n")],
        [edit("str_replace", path, old_str="two", new_str="2")],
        [edit("str_replace", path, old_str="zero\n")],
        [edit("view", path)],
        [edit("view", "src/poem.txt", view_range=[2, 3])],
        [edit("view", "/workspace/src")],
        [bash(command=f"cat {path}")],
    )
    assert not any(error for _, error in done), done
    said = [text for text, _ in done]
    assert said[6] == "     1\tone\n     2\t2\n     3\tthree\n     4\tfour\n     5\tfive"
    assert said[7].startswith("     2\t2\n     3\tthree\n")
    assert said[8].endswith("/workspace/src/poem.txt")
    assert said[9] == "one\n2\nthree\nfour\nfive\n[exit code 0]"


async def test_mistakes_are_told_as_errors(tools: SandboxTools) -> None:
    results = await run(
        tools,
        "a",
        [edit("create", "twice", file_text="a a")],
        [
            edit("str_replace", "twice", old_str="a", new_str="b"),
            edit("str_replace", "twice", old_str="c", new_str="b"),
            edit("insert", "twice", insert_line=9, insert_text="x"),
            edit("insert", "missing", insert_line=0, insert_text="x"),
            edit("view", "missing"),
            edit("view", "../etc/../root/x"),
            edit("undo_edit", "twice"),
            edit("create", "nothing"),
        ],
        [edit("view", "twice")],
    )
    first, *mistakes, last = results
    assert not first[1]
    assert last == ("     1\ta a", False)
    for (said, error), reason in zip(
        mistakes,
        ["2 times", "not in", "only 1 lines", "No such file", "file_not_found", "", "", ""],
        strict=True,
    ):
        assert error, said
        assert reason in said


def synchronously(tools: SandboxTools) -> list[tuple[str, bool]]:
    api = ScriptedApi([bash(command="echo $((6 * 7)) > answer")], [edit("view", "answer")])
    http = httpx2.Client(transport=httpx2.MockTransport(api))
    with Anthropic(api_key="none", http_client=http) as claude:
        claude.beta.messages.tool_runner(
            tools=sandbox_tools("a", tools=tools), **QUESTION
        ).until_done()
    return api.results()


async def test_without_an_event_loop(tools: SandboxTools) -> None:
    results = await asyncio.to_thread(synchronously, tools)
    assert results == [("(no output)\n[exit code 0]", False), ("     1\t42", False)]
