"""Artifacts and the history: what stays after a session, through every way to reach it."""

import hashlib
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.events import ExitEvent
from sandbox_sdk.protocol.models import ExecuteRequest, ExecuteResult, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .stand import STORED


async def run(sandboxes: Sandboxes, thread: str, command: str, **options: Any) -> ExecuteResult:
    return await sandboxes.execute(ExecuteRequest(thread_id=thread, command=command, **options))


async def read(sandboxes: Sandboxes, artifact_id: str) -> bytes:
    async with sandboxes.download_artifact(artifact_id) as download:
        return b"".join([chunk async for chunk in download.chunks])


@pytest.mark.seam
async def test_an_artifact_outlives_its_session(sandboxes: Sandboxes) -> None:
    assert (await run(sandboxes, "art", "true", artifacts=True)).artifacts == []
    result = await run(sandboxes, "art", "echo x > file", artifacts=True)
    (made,) = result.artifacts
    assert (made.path, made.size, made.mime) == (
        "/workspace/file",
        2,
        "application/octet-stream",
    )
    assert made.sha256 == hashlib.sha256(b"x\n").hexdigest()
    assert (made.thread_id, made.session_id) == ("art", result.session_id)
    assert result.artifact_problems == []

    await sandboxes.cleanup(Target(thread_id="art"))
    assert (await sandboxes.artifacts(thread_id="art")).artifacts == [made]
    assert (await sandboxes.artifacts(session_id=result.session_id)).artifacts == [made]
    assert (await sandboxes.artifacts(thread_id="other")).artifacts == []
    async with sandboxes.download_artifact(made.artifact_id) as download:
        assert b"".join([chunk async for chunk in download.chunks]) == b"x\n"
        assert (download.info.filename, download.info.sha256) == ("file", made.sha256)

    assert (await sandboxes.delete_artifact(made.artifact_id)).artifact_id == made.artifact_id
    assert (await sandboxes.artifacts(thread_id="art")).artifacts == []
    for missing in (made.artifact_id, "never@here", "was"):
        with pytest.raises(errors.NotFound, match="no artifact"):
            await read(sandboxes, missing)
        with pytest.raises(errors.NotFound, match="no artifact"):
            await sandboxes.delete_artifact(missing)


async def test_an_ended_session_is_remembered(sandboxes: Sandboxes) -> None:
    first = await run(sandboxes, "remember", "echo hello")
    await run(sandboxes, "remember", "echo x > file", artifacts=True)
    await sandboxes.cleanup(Target(thread_id="remember"))
    second = await run(sandboxes, "remember", "echo again")
    listed = (await sandboxes.stored_sessions(thread="remember", text="again")).sessions
    assert [session.session_id for session in listed] == [second.session_id]
    await run(sandboxes, "remember", "echo now")
    latest = (await sandboxes.stored_session(second.session_id)).log
    assert [each.command for each in latest] == ["echo again", "echo now"]
    found = await sandboxes.stored_session(first.session_id)
    assert (found.thread_id, found.generation, found.state) == ("remember", 1, "cleaned")
    assert found.ended_at is not None
    assert found.ended_at >= found.created_at
    assert found.sandbox_id
    assert [each.command for each in found.log] == ["echo hello", "echo x > file"]
    assert (found.log[0].exit_code, found.log[0].output) == (0, "hello\n")
    assert [each.path for each in found.artifacts] == ["/workspace/file"]
    assert (await sandboxes.stored_session(second.session_id)).state == "live"

    async def ids(**wanted: Any) -> list[str]:
        listed = await sandboxes.stored_sessions(**wanted)
        return [session.session_id for session in listed.sessions]

    both = [second.session_id, first.session_id]
    assert await ids(thread="remember") == both
    assert await ids(thread="remember", state="live") == both[:1]
    assert await ids(thread="remember", text="hello") == both[1:]
    assert await ids(thread="remember", text="no such text") == []
    assert await ids(thread="remember", environment="none") == []
    assert await ids(thread="remember", before=second.session_id) == both[1:]
    page = await sandboxes.stored_sessions(thread="remember", limit=1)
    assert ([s.session_id for s in page.sessions], page.truncated) == (both[:1], True)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.stored_session("never-was")


@pytest.mark.bash
@pytest.mark.one_way
async def test_what_is_kept_of_a_run(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    async def kept(command: str, **options: Any) -> list[str]:
        result = await run(sandboxes, "kept", command, **options)
        return sorted(artifact.path for artifact in result.artifacts)

    with subtests.test("hidden, generated and foreign files are left out"):
        clutter = (
            "mkdir -p .git node_modules/x __pycache__ deep/er v/bin; touch .git/a node_modules/x/b"
            " __pycache__/c .hidden v/pyvenv.cfg v/bin/python deep/er/good.csv; ln -s good.csv"
            " deep/er/link"
        )
        assert await kept(clutter, artifacts=True) == ["/workspace/deep/er/good.csv"]
    with subtests.test("what did not change is not kept again, also where its time is set back"):
        assert await kept("sleep 0.05; cat deep/er/good.csv", artifacts=True) == []
        old = "echo 1 > old.txt; touch -d 2001-01-01 old.txt"
        assert await kept(old, artifacts=True) == ["/workspace/old.txt"]
    with subtests.test("marked files are kept without being asked for"):
        assert await kept("echo 7 > .secret; echo 8 > /tmp/eight") == []
        marked = "cd deep && save_artifact ../.secret er/good.csv /tmp/eight"
        paths = ["/tmp/eight", "/workspace/.secret", "/workspace/deep/er/good.csv"]
        assert await kept(marked) == paths
        missing = await run(sandboxes, "kept", "save_artifact nothing")
        assert (missing.exit_code, missing.artifacts) == (1, [])
    with subtests.test("in a stream the exit has them"):
        request = ExecuteRequest(thread_id="kept", command="echo > s.txt; cd", artifacts=True)
        events = [event async for event in sandboxes.stream(request)]
        assert isinstance(events[-1], ExitEvent)
        assert [each.path for each in events[-1].artifacts] == ["/workspace/deep/s.txt"]
    with subtests.test("a file over the quota is told, and the run does not fail"):
        size = STORED.artifact_quota + 1
        command = f"cd /workspace; head -c {size} /dev/zero > big; echo > small"
        result = await run(sandboxes, "kept", command, artifacts=True)
        assert result.exit_code == 0
        assert [each.path for each in result.artifacts] == ["/workspace/small"]
        (problem,) = result.artifact_problems
        assert (problem.path, problem.code) == ("/workspace/big", "file_too_large")
        assert "SANDBOX_ARTIFACT_QUOTA" in problem.message
    with subtests.test("the oldest go when the quota is used up"):
        for number in range(3):
            await kept(f"head -c 2000000 /dev/urandom > part{number}", artifacts=True)
        left = (await sandboxes.artifacts(thread_id="kept")).artifacts
        assert sum(each.size for each in left) <= STORED.artifact_quota
        assert [each.path for each in left][:2] == ["/workspace/part2", "/workspace/part1"]
    with subtests.test("too many are told"):
        result = await run(sandboxes, "kept", "touch {1..120}.txt", artifacts=True)
        assert len(result.artifacts) == 100
        assert "pack them with tar" in result.artifact_problems[0].message


@pytest.mark.bash
@pytest.mark.one_way
async def test_a_command_in_the_background_has_no_artifacts(sandboxes: Sandboxes) -> None:
    with pytest.raises(ValueError, match="save_artifact"):
        ExecuteRequest(thread_id="t", command="true", background=True, artifacts=True)
