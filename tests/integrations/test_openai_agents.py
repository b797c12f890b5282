"""Agents of the OpenAI Agents SDK, run by its own runner with a scripted model."""

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agents import Agent, RunConfig, RunContextWrapper, Runner, ShellTool, set_tracing_disabled
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig, errors
from agents.sandbox.entries import File
from agents.sandbox.session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall, ResponseFunctionShellToolCall
from openai.types.responses.response_function_shell_tool_call import Action

from sandbox_sdk import AsyncSandboxClient, CommandRejected, ExecuteResult, RemoteBackend
from sandbox_sdk.integrations.openai_agents import (
    CheckpointSnapshot,
    CheckpointSnapshotSpec,
    SandboxShell,
    ThreadSandboxClient,
    ThreadSandboxClientOptions,
)
from sandbox_sdk.integrations.presenting import RECREATED, REPLAYED
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.protocol.models import ExecuteRequest
from tests.contract.stand import Stand, served

Call = Any


@pytest.fixture(autouse=True)
def no_tracing() -> Iterator[None]:
    """Nothing here may look for a network."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


def shown(model: ScriptedModel) -> list[Any]:
    """What the model was shown of its calls, in order."""
    call = model.last_call
    assert call is not None
    assert not isinstance(call.input, str)
    items: list[Any] = list(call.input)
    return [item["output"] for item in items if str(item.get("type")).endswith("_output")]


def exec_command(command: str, **more: Any) -> Call:
    return function_call("exec_command", {"cmd": command, **more}, call_id=uuid4().hex)


class Conversation:
    """A SandboxAgent in the sandbox of a thread; every turn is a run of its own."""

    def __init__(
        self, stand: Stand, thread_id: str | None, manifest: Manifest | None = None
    ) -> None:
        self.client = ThreadSandboxClient(backend=stand.sandboxes)
        self.options = ThreadSandboxClientOptions(thread_id=thread_id)
        self.manifest = manifest

    async def turn(self, *calls: Call, session: SandboxSession | None = None) -> list[str]:
        """The model makes these calls, one after the other."""
        model = ScriptedModel([*([call] for call in calls), [assistant_message("done")]])
        agent = SandboxAgent(name="coder", model=model, default_manifest=self.manifest)
        sandbox = SandboxRunConfig(client=self.client, options=self.options)
        if session is not None:
            sandbox = SandboxRunConfig(session=session)
        result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=sandbox))
        assert result.final_output == "done"
        model.assert_complete()
        return [str(output) for output in shown(model)]


async def test_a_conversation_keeps_its_sandbox_from_run_to_run(stand: Stand) -> None:
    ours, other = Conversation(stand, "a"), Conversation(stand, "b")
    (wrote,), (elsewhere,) = await asyncio.gather(
        ours.turn(exec_command("echo 'print(6 * 7)' > answer.py; pwd")),
        other.turn(exec_command("ls -A")),
    )
    assert "Process exited with code 0\nOutput:\n/workspace\n" in wrote
    assert "answer.py" not in elsewhere
    (ran,) = await ours.turn(exec_command("python3 answer.py; exit 3"))
    assert "Process exited with code 3" in ran
    assert ran.endswith("Output:\n42\n")
    (hinted,) = await ours.turn(exec_command("sudo ls"))
    assert "[hint: nobody is root in this sandbox" in hinted


async def test_files_are_patched_and_a_manifest_is_laid_once(stand: Stand) -> None:
    start = Manifest(
        entries={"notes/plan.txt": File(content=b"one\ntwo\n")}, environment={"value": {"A": "b"}}
    )
    ours = Conversation(stand, "a", start)
    patch = "*** Begin Patch\n*** Update File: notes/plan.txt\n@@\n one\n-two\n+2\n*** End Patch\n"
    read, _, patched = await ours.turn(
        exec_command("cat notes/plan.txt; echo $A"),
        ResponseCustomToolCall(
            type="custom_tool_call", name="apply_patch", call_id="p", input=patch
        ),
        exec_command("cat plan.txt", workdir="notes"),
    )
    assert read.endswith("one\ntwo\nb\n")
    assert patched.endswith("one\n2\n")
    (kept,) = await ours.turn(exec_command("cat notes/plan.txt"))
    assert kept.endswith("one\n2\n")


async def test_a_manifest_comes_to_a_box_that_others_used_before(stand: Stand) -> None:
    ours = Conversation(stand, "a", Manifest(entries={"readme": File(content=b"hello\n")}))
    async with AsyncSandboxClient("a", backend=stand.sandboxes) as other:
        await other.write_text("uploaded.csv", "1,2\n")
        await other.execute("mkdir deep; cd deep; x=7")
        (both,) = await ours.turn(exec_command("cat uploaded.csv readme; cd /; x=8"))
        assert both.endswith("1,2\nhello\n")
        assert (await other.execute("pwd; echo $x")).output == "/workspace/deep\n7\n"


async def test_a_long_command_goes_on_and_can_be_typed_to(stand: Stand) -> None:
    manager = Conversation(stand, None)
    session = await manager.client.create()
    async with session:
        begun = (
            await manager.turn(
                exec_command("read name; echo hi $name; sleep 600", tty=True, yield_time_ms=250),
                session=session,
            )
        )[0]
        number = int(re.findall(r"running with session ID (\d+)", begun)[0])
        output = ""
        while "hi ann" not in output:  # How much comes at once depends on the machine.
            said = {"session_id": number, "chars": "ann\n" if not output else ""}
            (more,) = await manager.turn(
                function_call("write_stdin", said, call_id=uuid4().hex), session=session
            )
            output += more
        stop = {"session_id": number, "chars": "\x03", "yield_time_ms": 30_000}
        (ended,) = await manager.turn(
            function_call("write_stdin", stop, call_id=uuid4().hex), session=session
        )
        assert "Process exited with code" in ended
        (gone,) = await manager.turn(
            function_call("write_stdin", stop, call_id=uuid4().hex), session=session
        )
        assert "write_stdin failed" in gone
    await manager.client.delete(session)


async def test_a_command_without_a_terminal_takes_no_input(stand: Stand) -> None:
    ours = Conversation(stand, None)
    session = await ours.client.create()
    async with session:
        (begun,) = await ours.turn(exec_command("sleep 600", yield_time_ms=250), session=session)
        number = int(re.findall(r"running with session ID (\d+)", begun)[0])
        said = {"session_id": number, "chars": "x"}
        (refused,) = await ours.turn(
            function_call("write_stdin", said, call_id="w"), session=session
        )
        assert "tty=true" in refused
    await ours.client.delete(session)


async def test_a_lost_sandbox_is_told(stand: Stand) -> None:
    ours = Conversation(stand, "a", Manifest(entries={"readme": File(content=b"hello\n")}))
    await ours.turn(exec_command("touch mine"))
    await stand.lose_box("a")
    (told, silent) = await ours.turn(exec_command("ls"), exec_command("ls"))
    assert RECREATED in told
    assert told.endswith("readme\n")
    assert RECREATED not in silent


async def test_ten_calls_at_once(stand: Stand) -> None:
    # Each waits for all the others: one after the other, none would ever end.
    wait = "until [ $(ls here | wc -l) = 10 ]; do sleep 0.3; done"
    calls = [
        exec_command(f"mkdir -p here; touch here/{n}; {wait}; echo {n}", yield_time_ms=30_000)
        for n in range(10)
    ]
    model = ScriptedModel([calls, [assistant_message("done")]])
    agent = SandboxAgent(name="coder", model=model)
    client = ThreadSandboxClient(backend=stand.sandboxes)
    run_config = RunConfig(sandbox=SandboxRunConfig(client=client))
    await Runner.run(agent, "go", run_config=run_config)
    assert [said.rpartition("Output:\n")[2] for said in shown(model)] == [
        f"{n}\n" for n in range(10)
    ]


async def test_a_rejected_command_is_told_with_what_to_do(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = stand.sandboxes.execute

    async def judging(request: ExecuteRequest, **options: Any) -> ExecuteResult:
        if "shred" in request.command:
            raise CommandRejected("shred is not allowed", alternative="rm file")
        return await execute(request, **options)

    monkeypatch.setattr(stand.sandboxes, "execute", judging)
    ours = Conversation(stand, "a")
    rejected, after = await ours.turn(exec_command("shred file"), exec_command("echo fine"))
    assert "exited with code 126" in rejected
    assert "shred is not allowed\ndo this instead: rm file" in rejected
    assert after.endswith("fine\n")
    session = await ours.client.create(options=ours.options)
    async with session:
        direct = await session.exec("shred file")
        assert (direct.exit_code, b"rm file" in direct.stderr) == (126, True)
    await ours.client.delete(session)


async def test_a_sandbox_of_its_own_ends_with_its_run(stand: Stand) -> None:
    await Conversation(stand, None).turn(exec_command("true"))
    assert (await stand.sandboxes.sessions()).sessions == []


async def test_a_snapshot_brings_the_files_into_another_sandbox(
    stand: Stand, tmp_path: Path
) -> None:
    client = ThreadSandboxClient(backend=stand.sandboxes)
    manifest = Manifest(entries={"scratch": File(content=b"x", ephemeral=True)})
    session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path), manifest=manifest)
    async with session:
        await session.write(Path("deep/data.bin"), io.BytesIO(bytes(range(256))))
    await client.delete(session)
    saved = client.serialize_session_state(session.state)
    assert (await stand.sandboxes.sessions()).sessions == []

    session = await client.resume(client.deserialize_session_state(saved))
    async with session:
        assert (await session.read(Path("deep/data.bin"))).read() == bytes(range(256))
        assert [Path(entry.path).name for entry in await session.ls("deep")] == ["data.bin"]
    await client.delete(session)


async def test_a_snapshot_is_a_checkpoint(stand: Stand) -> None:
    client = ThreadSandboxClient(backend=stand.sandboxes)
    options = ThreadSandboxClientOptions(thread_id="a")
    session = await client.create(snapshot=CheckpointSnapshotSpec(), options=options)
    async with session:
        await session.write(Path("plan"), io.BytesIO(b"one"))
        await session.exec("echo kept > ~/home")
    saved = client.serialize_session_state(session.state)
    snapshot = session.state.snapshot
    assert isinstance(snapshot, CheckpointSnapshot)

    async with AsyncSandboxClient("a", backend=stand.sandboxes) as other:
        await other.execute("echo two > plan; rm ~/home")
        for name in ("left", "right"):  # Another two begin from it.
            begins = ThreadSandboxClientOptions(thread_id=name)
            way = await client.create(snapshot=snapshot, options=begins)
            async with way:
                read = await way.exec(f"echo {name} >> ~/home; cat plan ~/home")
                assert read.stdout == f"onekept\n{name}\n".encode()
            assert way.state.snapshot != snapshot
            async with AsyncSandboxClient(name, backend=stand.sandboxes) as its:
                assert (await its.session()).generation == 1
                await its.cleanup()
        assert (await other.execute("cat plan")).output == "two\n"

        session = await client.resume(client.deserialize_session_state(saved))
        async with session:  # And it goes back itself.
            read = await session.exec("cat plan ~/home")
            assert read.stdout == b"onekept\n"

        assert snapshot.checkpoint_id is not None
        await other.execute("echo three > plan")
        await other.delete_checkpoint(snapshot.checkpoint_id)
        gone = await client.resume(client.deserialize_session_state(saved))
        with pytest.raises(errors.SnapshotNotRestorableError):
            await gone.start()
        assert (await other.execute("cat plan")).output == "three\n"


async def test_an_agent_goes_back_to_its_snapshot(stand: Stand) -> None:
    ours = Conversation(stand, "a")
    session = await ours.client.create(snapshot=CheckpointSnapshotSpec(), options=ours.options)
    async with session:
        await ours.turn(exec_command("echo one > plan"), session=session)
    await ours.turn(exec_command("echo two > plan"))
    session = await ours.client.create(snapshot=session.state.snapshot, options=ours.options)
    async with session:
        (shown,) = await ours.turn(exec_command("cat plan"), session=session)
        assert shown.endswith("Output:\none\n")


async def test_errors_are_those_of_the_framework(stand: Stand) -> None:
    client = ThreadSandboxClient(backend=stand.sandboxes)
    session = await client.create()
    async with session:
        with pytest.raises(errors.WorkspaceReadNotFoundError):
            await session.read(Path("missing"))
        with pytest.raises(errors.WorkspaceArchiveReadError):
            await session.read(Path("/workspace"))
        with pytest.raises(errors.InvalidManifestPathError):
            await session.write(Path("/etc/passwd"), io.BytesIO(b""))
        with pytest.raises(errors.ConfigurationError, match="sandboxuser"):
            await session.exec("id", user="root")
        with pytest.raises(errors.ExecTimeoutError):
            await session.exec("sleep 600", timeout=0.2)
        failed = await session.exec("echo no >&2; exit 4")
        assert (failed.exit_code, failed.stderr) == (4, b"no\n")
    await client.delete(session)
    taken = [await client.create() for _ in range(stand.capacity + 1)]
    *_, last = taken
    for session in taken[:-1]:
        await session.start()
    with pytest.raises(errors.WorkspaceStartError) as full:
        await last.start()
    assert full.value.retryable
    for session in taken:
        await client.delete(session)


def shell_call(*commands: str, call_id: str, **limits: int) -> Call:
    return ResponseFunctionShellToolCall(
        id=call_id,
        call_id=call_id,
        type="shell_call",
        status="completed",
        action=Action.model_validate(
            {"commands": commands, "timeout_ms": None, "max_output_length": None, **limits}
        ),
    )


async def test_the_shell_tool(stand: Stand) -> None:
    def thread_of(context: RunContextWrapper[Any]) -> str:
        return str(context.context["conversation"])

    async def turn(thread_id: str, *calls: Call) -> list[Any]:
        model = ScriptedModel([*([call] for call in calls), [assistant_message("done")]])
        agent = Agent(name="coder", model=model, tools=[ShellTool(executor=shell)])
        await Runner.run(agent, "go", context={"conversation": thread_id})
        return shown(model)

    async with served(stand.service) as url:
        tools = SandboxTools(backend=RemoteBackend(url))
        shell = SandboxShell(thread_of, tools=tools)
        (first,) = await turn(
            "a", shell_call("cd /tmp; echo one >> log", "wc -l < log; pwd; exit 2", call_id="c1")
        )
        assert [entry["outcome"] for entry in first] == [
            {"type": "exit", "exit_code": 0},
            {"type": "exit", "exit_code": 2},
        ]
        assert first[1]["stdout"] == "1\n/tmp\n[exit code 2]"
        (replayed,) = await turn("a", shell_call("cd /tmp; echo one >> log", call_id="c1"))
        assert replayed[0]["stdout"] == f"{REPLAYED}\n{first[0]['stdout']}"
        once, slow, apart = await asyncio.gather(
            turn("a", shell_call("cat /tmp/log", call_id="c2")),
            turn("a", shell_call("sleep 600", call_id="c3", timeout_ms=200)),
            turn("b", shell_call("cat /tmp/log", call_id="c2")),
        )
        assert once[0][0]["stdout"] == "one\n[exit code 0]"
        assert slow[0][0]["outcome"] == {"type": "timeout"}
        assert "timed out" in slow[0][0]["stdout"]
        assert "No such file" in apart[0][0]["stdout"]
        (refused,) = await turn("no thread", shell_call("true", call_id="c4"))
        assert "thread_id" in refused[0]["stderr"]
        await asyncio.to_thread(tools.close)
