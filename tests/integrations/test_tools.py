"""The tools themselves, over real boxes."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox_sdk.integrations import operations
from sandbox_sdk.integrations.arguments import ALL
from sandbox_sdk.integrations.presenting import OUTPUTS, REPLAYED, Presenting
from sandbox_sdk.integrations.tools import AsyncSandboxTools, Reply, SandboxTools, schemas
from sandbox_sdk.protocol.models import ExecuteResult
from sandbox_sdk.testing import FakeBackend
from tests.contract.stand import Stand, served


@pytest.fixture
async def tools(stand: Stand) -> AsyncIterator[AsyncSandboxTools]:
    async with AsyncSandboxTools(
        backend=stand.sandboxes, presenting=Presenting(max_chars=2000)
    ) as made:
        yield made


async def call(
    tools: AsyncSandboxTools, name: str, *, thread: str = "t", id: str | None = None, **given: Any
) -> Reply:
    return await tools.dispatch(name, given, thread_id=thread, tool_call_id=id)


async def test_state_carries_over_and_threads_are_apart(tools: AsyncSandboxTools) -> None:
    await call(tools, "bash", command="cd /tmp; x=7; echo mine > here")
    reply = await call(tools, "bash", command="echo $x $PWD; cat here; exit 3")
    assert reply.text == "7 /tmp\nmine\n[exit code 3]"
    assert isinstance(reply.artifact, ExecuteResult)
    assert reply.artifact.exit_code == 3
    assert not reply.failed
    other = await call(tools, "bash", thread="other", command="cat /tmp/here")
    assert "No such file" in other.text


async def test_arguments_may_be_json_and_mistakes_are_told(tools: AsyncSandboxTools) -> None:
    said = json.dumps({"command": "echo hi"})
    assert (await tools.dispatch("bash", said, thread_id="t")).text == "hi\n[exit code 0]"
    for name, given, problem in [
        ("bash", "{", "not JSON"),
        ("bash", "[1]", "bash: send a JSON object"),
        ("bash", "{}", "give a command"),
        ("bash", '{"command": "x", "timeout": 1e9}', "timeout: Input should be less than"),
        ("dash", "{}", "there is no tool 'dash', only bash, run_code, read_file"),
        ("read_file", "{}", "read_file: path: this field is required, but missing"),
    ]:
        reply = await tools.dispatch(name, given, thread_id="t")
        assert reply.failed
        assert problem in reply.text, reply.text
    bad = await tools.dispatch("bash", said, thread_id="no such thread")
    assert bad.failed
    assert "thread_id" in bad.text


async def test_a_timeout_is_explained(tools: AsyncSandboxTools) -> None:
    reply = await call(tools, "bash", command="echo first; sleep 60", timeout=0.5)
    assert reply.text.startswith("first\n[timed out after")


async def test_the_whole_of_a_shortened_output_is_in_the_box(tools: AsyncSandboxTools) -> None:
    reply = await call(tools, "bash", command="seq 1 5000")
    assert isinstance(reply.artifact, ExecuteResult)
    path = f"{OUTPUTS}/{reply.artifact.command_id}.txt"
    assert f"The whole is in {path}" in reply.text
    assert len(reply.text) < 2600
    hint = reply.text.split("as in `")[1].split("`")[0]
    first = int(reply.text.split("lines ")[1].split(" ")[0])
    part = await call(tools, "bash", command=hint)
    assert part.text.startswith(f"{first}\n{first + 1}\n")
    assert (await call(tools, "bash", command=f"wc -l < {path}")).text.startswith("5000")


async def test_only_the_newest_outputs_are_kept(
    tools: AsyncSandboxTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_KEPT", 30_000)
    for _ in range(3):
        last = await call(tools, "bash", command="seq 1 2500")
    kept = (await call(tools, "bash", command=f"ls {OUTPUTS}")).text.split()[:-3]
    assert len(kept) == 2
    assert any(name in last.text for name in kept)


async def test_a_full_disk_takes_no_result_away(tools: AsyncSandboxTools) -> None:
    await call(tools, "bash", command=f"mkdir {OUTPUTS}; chmod a-w {OUTPUTS}")
    reply = await call(tools, "bash", command="seq 1 5000")
    assert "Run the command again with" in reply.text
    assert reply.text.endswith("5000\n[exit code 0]")


async def test_a_call_that_is_repeated_runs_once(tools: AsyncSandboxTools) -> None:
    for note in ("", REPLAYED + "\n", REPLAYED + "\n"):
        reply = await call(tools, "bash", id="call_1", command="echo x >> log; wc -l < log")
        assert reply.text == f"{note}1\n[exit code 0]"
        assert isinstance(reply.artifact, ExecuteResult)
        assert reply.artifact.replayed == bool(note)
        edit = {"path": "log", "old": "x", "new": "xx"}
        reply = await call(tools, "edit_file", id="call_9", **edit)
        assert reply.text == f"{note}Replaced 1 in /workspace/log"
        assert isinstance(reply.artifact, ExecuteResult)
        assert reply.artifact.replayed == bool(note)
    changed = await call(tools, "bash", id="call_1", command="wc -l < log; echo approved")
    assert changed.text == "1\napproved\n[exit code 0]"


async def test_restart_begins_a_new_generation_once(tools: AsyncSandboxTools) -> None:
    await call(tools, "bash", command="echo old > file")
    for repeated in (False, True):
        reply = await call(tools, "bash", id="call_2", restart=True, command="ls; touch new")
        assert (REPLAYED in reply.text) is repeated
        assert reply.text.startswith("The sandbox was restarted")
        assert "(no output)" in reply.text
        assert isinstance(reply.artifact, ExecuteResult)
        assert reply.artifact.generation == 2
    assert (await call(tools, "bash", command="ls")).text == "new\n[exit code 0]"
    assert "restarted" in (await call(tools, "bash", restart=True)).text
    for note in ("", REPLAYED + "\n"):
        reply = await call(tools, "bash", id="call_3", restart=True)
        assert reply.text.startswith(f"{note}The sandbox was restarted")
        assert isinstance(reply.artifact, ExecuteResult)
        assert reply.artifact.replayed == bool(note)


async def test_a_lost_box_is_told_in_words(tools: AsyncSandboxTools, stand: Stand) -> None:
    await call(tools, "write_file", path="notes", content="x")
    await call(tools, "bash", command="ls")
    await stand.lose_box("t")
    assert (await call(tools, "list_files")).text == "/workspace is empty"
    reply = await call(tools, "bash", command="ls")
    assert "Your files from before are gone" in reply.text
    assert "gone" not in (await call(tools, "bash", command="ls")).text


async def test_files(tools: AsyncSandboxTools) -> None:
    wrote = await call(tools, "write_file", path="src/a.py", content="one\ntwo\nthree\n")
    assert wrote.text == "Wrote 14 bytes to /workspace/src/a.py"
    read = await call(tools, "read_file", path="src/a.py", offset=2, limit=1)
    assert read.text == "     2\ttwo\n[lines 2 to 2 of 3; go on at offset 3]"
    listing = await call(tools, "list_files", recursive=True)
    assert [line.split()[-1] for line in listing.text.splitlines()] == [
        "/workspace/src/",
        "/workspace/src/a.py",
    ]
    assert "is a folder" in (await call(tools, "read_file", path="src")).text
    missing = await call(tools, "read_file", path="none")
    assert missing.failed
    assert "file_not_found" in missing.text


async def test_a_long_listing_is_cut_with_advice(tools: AsyncSandboxTools) -> None:
    await call(tools, "bash", command="touch $(seq -f file-%g 1 200)")
    listing = await call(tools, "list_files")
    assert len(listing.text) < 1100
    assert listing.text.splitlines()[0].endswith(" /workspace/file-1")
    assert listing.text.endswith("\n[there is more; list a folder below, or use `find`]")


async def test_bytes(tools: AsyncSandboxTools) -> None:
    data = bytes(range(256))
    sent = base64.b64encode(data).decode()
    await call(tools, "upload_file", path="blob", data_base64=sent)
    assert (await call(tools, "download_file", path="blob")).text == sent
    assert "is not text: 256 bytes" in (await call(tools, "read_file", path="blob")).text
    assert (await call(tools, "upload_file", path="x", data_base64="?")).failed


async def test_edits(tools: AsyncSandboxTools) -> None:
    await call(
        tools, "bash", command="printf 'a b\\r\\na c\\r\\n' > 'a file'; chmod 750 'a file'; cd /"
    )
    many = await call(tools, "edit_file", path="a file", old="a", new="x")
    assert many.failed
    assert "is 2 times in /workspace/a file" in many.text
    assert "not in" in (await call(tools, "edit_file", path="a file", old="q", new="x")).text
    across = {"path": "a file", "old": "b\na", "new": "b\n$HOME 'é'"}
    for note in ("", REPLAYED + "\n"):
        reply = await call(tools, "edit_file", id="call_3", **across)
        assert reply.text == f"{note}Replaced 1 in /workspace/a file"
    now = await call(tools, "bash", command="cat -A '/workspace/a file'; stat -c %a /workspace/a*")
    assert now.text.splitlines()[:3] == ["a b^M$", "$HOME 'M-CM-)' c^M$", "750"]
    assert now.text.endswith("[exit code 0]")
    missing = await call(tools, "edit_file", path="none", old="a", new="b")
    assert missing.text == "Not edited: /workspace/none: No such file or directory"


async def test_ten_calls_at_once(tools: AsyncSandboxTools) -> None:
    await call(tools, "write_file", path="list", content="".join(f"<{n}>\n" for n in range(10)))
    replies = await asyncio.gather(
        *(call(tools, "bash", id=f"b{n}", command=f"echo {n} | tee out-{n}") for n in range(10)),
        *(
            call(tools, "edit_file", id=f"e{n}", path="list", old=f"<{n}>", new=f"done {n}")
            for n in range(10)
        ),
    )
    assert [reply.text for reply in replies[:10]] == [f"{n}\n[exit code 0]" for n in range(10)]
    after = await call(tools, "bash", command="cat out-? | sort | tr '\\n' ' '; grep -c done list")
    assert after.text == "0 1 2 3 4 5 6 7 8 9 10\n[exit code 0]"


async def test_output_comes_as_it_is_written(tools: AsyncSandboxTools) -> None:
    given = {"command": "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two"}
    pieces = tools.stream(given, thread_id="t", tool_call_id="call_4")
    assert await anext(pieces) == "one\n"
    await call(tools, "write_file", path="go", content="")
    rest = [piece async for piece in pieces]
    assert rest[:-1] == ["two\n"]
    assert isinstance(rest[-1], Reply)
    assert rest[-1].text == "one\ntwo\n[exit code 0]"
    again = [piece async for piece in tools.stream(given, thread_id="t", tool_call_id="call_4")]
    assert isinstance(again[-1], Reply)
    assert again[-1].text == f"{REPLAYED}\n{rest[-1].text}"
    once = [reply.artifact for reply in (rest[-1], again[-1])]
    assert len({isinstance(result, ExecuteResult) and result.command_id for result in once}) == 1


async def test_the_system_prompt_is_of_the_limits(tools: AsyncSandboxTools) -> None:
    assert "512 MiB of memory" in await tools.system_prompt("t")
    prompt, schemas = await tools.begin("t", ["bash", "read_file"])
    assert prompt == await tools.system_prompt("t")
    assert [schema["function"]["name"] for schema in schemas] == ["bash", "read_file"]


async def test_cleanup_ends_a_sandbox_or_does_nothing(
    tools: AsyncSandboxTools, stand: Stand
) -> None:
    await tools.cleanup("t")
    await call(tools, "bash", command="true")
    await tools.cleanup("t")
    assert not (await stand.sandboxes.sessions()).sessions


async def test_threads_and_loops_share_one(stand: Stand) -> None:
    async with served(stand.service) as url:
        with SandboxTools(server_url=url) as tools:

            def elsewhere() -> str:
                there = tools.dispatch("bash", {"command": "echo $x; x=$x."}, thread_id="t")
                loop = asyncio.run(tools.adispatch("bash", {"command": "echo $x"}, thread_id="t"))
                return there.text + loop.text

            await tools.adispatch("bash", {"command": "x=1"}, thread_id="t")
            assert await asyncio.to_thread(elsewhere) == "1\n[exit code 0]1.\n[exit code 0]"
            assert [piece async for piece in tools.astream({"command": ":"}, thread_id="t")]
            await tools.acleanup("t")
            # `with` closes with a call that waits for the server's loop, which is this one.
            await asyncio.to_thread(tools.close)


def test_the_synchronous_face() -> None:
    fake = FakeBackend()
    fake.on("greet", output="hello")
    with SandboxTools(backend=fake) as tools:
        assert tools.dispatch("bash", {"command": "greet"}, thread_id="t").text.startswith("hello")
        *pieces, reply = tools.stream({"command": "greet"}, thread_id="t")
        assert pieces == ["hello"]
        assert str(reply) == "hello\n[exit code 0]"
        assert "sandbox" in tools.system_prompt("t")
        assert tools.begin("t") == asyncio.run(tools.abegin("t"))
        fake.on("fetch", stderr="no host", exit_code=6, hint="there is no network")
        reply = tools.dispatch("bash", {"command": "fetch"}, thread_id="t")
        assert reply.text == "no host\n[hint: there is no network]\n[exit code 6]"
        tools.cleanup("t")


def test_schemas_are_what_models_are_given() -> None:
    bash, *_ = schemas()
    assert bash["type"] == "function"
    function = bash["function"]
    assert function["name"] == "bash"
    assert function["description"].startswith("Run a bash command")
    properties = function["parameters"]["properties"]
    assert properties["command"]["type"] == "string"
    assert properties["timeout"]["type"] == "number"
    assert "title" not in json.dumps(schemas(list(ALL)))
    assert {tool["function"]["name"] for tool in schemas(list(ALL))} == set(ALL)
