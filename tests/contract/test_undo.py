"""The history of a thread, and going back to before a command, through every way."""

import random
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    CheckpointRequest,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    HistoryEntry,
    RestoreRequest,
    Target,
    UndoRequest,
    VolumeMount,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.transfer import ByteChunks

from .stand import Place, Stand
from .test_trees import DIGEST

pytestmark = [pytest.mark.usefixtures("sandboxes"), pytest.mark.history, pytest.mark.bash]

STATE = "pwd; declare -p x y 2>/dev/null; declare -f f; alias; set -o | sha256sum; umask"


async def run(sandboxes: Sandboxes, thread: str, command: str, **options: Any) -> ExecuteResult:
    return await sandboxes.execute(ExecuteRequest(thread_id=thread, command=command, **options))


async def output(sandboxes: Sandboxes, thread: str, command: str) -> str:
    return (await run(sandboxes, thread, command)).output


async def begin(sandboxes: Sandboxes, thread: str, **options: Any) -> None:
    await sandboxes.create_session(CreateSessionRequest(thread_id=thread, history=True, **options))


async def undo(sandboxes: Sandboxes, thread: str, to: int | None = None) -> int:
    return (await sandboxes.undo(UndoRequest(thread_id=thread, to=to))).to


async def entries(sandboxes: Sandboxes, thread: str) -> list[HistoryEntry]:
    return (await sandboxes.history(thread, limit=250)).entries


@pytest.mark.seam
async def test_a_command_is_undone(sandboxes: Sandboxes) -> None:
    await begin(sandboxes, "u")
    await run(sandboxes, "u", "x=1; mkdir d; cd d; echo one > a; echo t > /tmp/t; echo h > ~/h")
    await run(sandboxes, "u", "x=2; rm a ../d/* /tmp/t ~/h; cd ..; exit 3")
    done = await sandboxes.undo(UndoRequest(thread_id="u"))
    assert (done.to, done.thread_id, done.generation) == (2, "u", 2)
    assert done.command.startswith("x=2; rm a")
    told = await output(sandboxes, "u", "echo $x; pwd; cat a /tmp/t ~/h")
    assert told == "1\n/workspace/d\none\nt\nh\n"


async def test_the_history_tells_what_was_done(sandboxes: Sandboxes) -> None:
    await begin(sandboxes, "h")
    await run(sandboxes, "h", "mkdir d; echo 1 > d/a; echo 1 > b; ln -s b c")
    await run(sandboxes, "h", "echo 2 >> d/a; rm c; chmod +x b; exit 7")
    last, first = await entries(sandboxes, "h")
    assert (first.number, first.what, first.exit_code, first.undone) == (1, "command", 0, False)
    assert (last.number, last.command[:6], last.exit_code) == (2, "echo 2", 7)
    assert last.duration_ms is not None
    assert last.at >= first.at
    assert first.files is not None
    assert (first.files.made, first.files.changed) == (["b", "c", "d", "d/a"], [])
    assert last.files is not None
    assert last.files.model_dump() == {
        "made": [], "changed": ["b", "d/a"], "removed": ["c"], "more": 0
    }  # fmt: skip
    told = await sandboxes.changes("h", 2)
    assert [(each.change, each.path) for each in told.changes] == [
        ("changed", "b"),
        ("removed", "c"),
        ("changed", "d/a"),
    ]
    assert "--- a/d/a\n+++ b/d/a\n@@ -1,1 +1,2 @@\n 1\n+2\n" in told.diff
    assert "old mode 100644\nnew mode 100755\n" in told.diff
    with pytest.raises(errors.NotFound):
        await sandboxes.changes("h", 3)


async def test_an_undo_can_be_undone(sandboxes: Sandboxes) -> None:
    await begin(sandboxes, "r")
    for number in (1, 2, 3):
        await run(sandboxes, "r", f"x={number}; echo {number} > a")
    assert await undo(sandboxes, "r") == 3
    assert await undo(sandboxes, "r") == 2
    every = {each.number: each for each in await entries(sandboxes, "r")}
    assert [number for number, each in every.items() if each.undone] == [3, 2]
    assert [each.what for each in every.values()] == ["undo", "undo", *["command"] * 3]
    await undo(sandboxes, "r", 4)  # To before the first undo.
    assert await output(sandboxes, "r", "echo $x; cat a") == "3\n3\n"
    assert await undo(sandboxes, "r") == 7
    assert await undo(sandboxes, "r") == 3
    assert await output(sandboxes, "r", "echo $x; cat a") == "2\n2\n"


async def test_there_is_nothing_to_undo(sandboxes: Sandboxes) -> None:
    await begin(sandboxes, "n")
    with pytest.raises(errors.NotFound, match="nothing to undo"):
        await undo(sandboxes, "n")
    await run(sandboxes, "n", "x=1")
    with pytest.raises(errors.NotFound, match="command 9"):
        await undo(sandboxes, "n", 9)
    assert await output(sandboxes, "n", "echo $x") == "1\n"
    assert await undo(sandboxes, "n", 1) == 1
    with pytest.raises(errors.NotFound):
        await undo(sandboxes, "n")
    await sandboxes.create_session(CreateSessionRequest(thread_id="without"))
    await run(sandboxes, "without", "x=1")
    assert await entries(sandboxes, "without") == []
    with pytest.raises(errors.NotFound):
        await undo(sandboxes, "without")


async def test_all_that_changes_a_sandbox_is_undone(sandboxes: Sandboxes) -> None:
    await begin(sandboxes, "all")
    await sandboxes.upload_file(Target(thread_id="all"), "a", ByteChunks(b"1"))
    await sandboxes.upload_file(Target(thread_id="all"), "a", ByteChunks(b"2"))
    taken = await sandboxes.checkpoint(CheckpointRequest(thread_id="all"))
    started = await run(sandboxes, "all", "echo 3 > a", background=True)
    async for _ in sandboxes.follow(Target(thread_id="all"), started.command_id):
        pass
    request = RestoreRequest(thread_id="all", checkpoint_id=taken.checkpoint_id)
    await sandboxes.restore(request)
    every = [(each.what, each.exit_code) for each in await entries(sandboxes, "all")]
    assert every == [("restore", None), ("command", 0), ("upload", None), ("upload", None)]
    assert await undo(sandboxes, "all") == 4
    assert await output(sandboxes, "all", "cat a") == "3\n"
    assert await undo(sandboxes, "all", 2) == 2
    assert await output(sandboxes, "all", "cat a") == "1"


async def test_a_replayed_command_is_one_entry(sandboxes: Sandboxes) -> None:
    await begin(sandboxes, "once")
    for _ in range(2):
        await run(sandboxes, "once", "echo x >> a", idempotency_key="k")
    with pytest.raises(errors.IdempotencyMismatch):
        await run(sandboxes, "once", "echo y >> a", idempotency_key="k")
    request = UndoRequest(thread_id="once", idempotency_key="u")
    assert [each.number for each in await entries(sandboxes, "once")] == [1]
    first, second = await sandboxes.undo(request), await sandboxes.undo(request)
    assert first.session_id == second.session_id
    assert await output(sandboxes, "once", "ls") == ""


async def test_a_lost_box_can_be_gone_back_from(sandboxes: Sandboxes, stand: Place) -> None:
    await begin(sandboxes, "lost")
    await run(sandboxes, "lost", "x=1; echo 1 > a")
    await run(sandboxes, "lost", "x=2; echo 2 > a")
    await stand.lose_box("lost")
    assert await undo(sandboxes, "lost") == 2
    assert await output(sandboxes, "lost", "echo $x; cat a") == "1\n1\n"


@pytest.mark.inside
async def test_after_an_undo_a_lost_box_goes_on_from_there(
    sandboxes: Sandboxes, stand: Place
) -> None:
    await begin(sandboxes, "p", persist=True)
    await run(sandboxes, "p", "echo 1 > a")
    await run(sandboxes, "p", "echo 2 > a")
    await sandboxes.checkpoint(CheckpointRequest(thread_id="p"))
    await undo(sandboxes, "p")
    await stand.lose_box("p")
    try:
        told = await output(sandboxes, "p", "cat a")
    except errors.SessionLost:  # It had begun before the loss was known.
        told = await output(sandboxes, "p", "cat a")
    assert told == "1\n"


async def test_a_thread_that_has_ended_has_no_history(sandboxes: Sandboxes) -> None:
    await begin(sandboxes, "e")
    await run(sandboxes, "e", "echo 1 > a")
    await sandboxes.cleanup(Target(thread_id="e"))
    assert await entries(sandboxes, "e") == []
    with pytest.raises(errors.NotFound):
        await undo(sandboxes, "e")


@pytest.mark.inside
@pytest.mark.one_way
async def test_points_are_bounded(sandboxes: Sandboxes, stand: Stand) -> None:
    await begin(sandboxes, "many")
    (session,) = stand.worker.table.sessions()
    points = await stand.worker.table.keeper.points_of(session)
    points._most = 3
    for number in range(5):
        await run(sandboxes, "many", f"echo {number} > a")
    assert [each.number for each in await entries(sandboxes, "many")] == [5, 4, 3]
    await run(sandboxes, "many", "head -c 40M /dev/urandom > big")
    await run(sandboxes, "many", "head -c 40M /dev/urandom > big")
    await run(sandboxes, "many", "true")  # More than 64 MB together.
    assert [each.number for each in await entries(sandboxes, "many")] == [8]
    left = sorted(path.suffix for path in points.folder.iterdir())
    assert left == ["", ".img", ".json", ".tree"]


@pytest.mark.rest
@pytest.mark.one_way
async def test_any_of_many_points(sandboxes: Sandboxes) -> None:
    """Random commands that make, change, move and remove files, and change the shell."""
    chance = random.Random(7)
    look = f"{STATE}; ({DIGEST % WORKSPACE}) 2>&1"
    await begin(sandboxes, "random")
    before = {1: await output(sandboxes, "random", look)}
    for number in range(1, 201):
        told = await output(sandboxes, "random", f"{_random_command(chance)}\n{look}")
        before[number + 2] = told
    # Each undo and each look adds a point, and 250 are kept.
    for number in chance.sample(range(60, 202), 50):
        assert await undo(sandboxes, "random", number) == number
        assert await output(sandboxes, "random", look) == before[number]


def _random_command(chance: random.Random) -> str:
    name, other = (f"{chance.choice('abcd')}/{chance.choice('efgh')}" for _ in range(2))
    return chance.choice(
        [
            f"mkdir -p {name[0]}; echo {chance.random()} > {name}",
            f"mkdir -p {name[0]}; echo {chance.random()} >> {name}",
            f"mkdir -p {other[0]}; mv {name} {other} 2>/dev/null",
            f"rm -rf {name[0]}",
            f"chmod {chance.choice(['600', '755', '000'])} {name} 2>/dev/null",
            f"ln -sf {other} {name} 2>/dev/null",
            f"mkdir -p {name[0]}; head -c {chance.randrange(200_000)} /dev/zero > {name}",
            f"touch -d 200{chance.randrange(10)}-01-01 {name} 2>/dev/null",
            f"x={chance.random()}; y=({chance.random()} b)",
            f"f() {{ echo {chance.random()}; }}; alias ll='ls {chance.random()}'",
            f"cd /workspace; mkdir -p {name[0]}; cd {name[0]}",
            f"cd /workspace; umask 0{chance.randrange(64):02o}",
        ]
    )


async def test_a_volume_goes_on(sandboxes: Sandboxes) -> None:
    """It may be that of other threads, too."""
    await begin(sandboxes, "v", volumes=[VolumeMount(name="data", path="/workspace/data")])
    await run(sandboxes, "v", "echo 1 > data/a; echo 1 > b")
    await run(sandboxes, "v", "echo 2 > data/a; echo 2 > b")
    assert await undo(sandboxes, "v") == 2
    assert await output(sandboxes, "v", "cat data/a b") == "2\n1\n"
    await run(sandboxes, "v", "echo 3 > data/a")
    last = (await entries(sandboxes, "v"))[0]
    assert last.files is not None
    assert last.files.changed == []
    await sandboxes.cleanup(Target(thread_id="v"))
    await sandboxes.delete_volume("data")


async def test_files_of_nearly_a_mebibyte_go_back(sandboxes: Sandboxes) -> None:
    """They are packed with the home and /tmp, before and after every command."""
    await begin(sandboxes, "middle")
    command = "for n in {1..10}; do seq $n 199999 | head -c 950000 | tee ~/h$n > /tmp/t$n; done"
    assert (await run(sandboxes, "middle", command)).exit_code == 0
    sums = "cat ~/h* /tmp/t* | sha256sum"
    before = await output(sandboxes, "middle", sums)
    for _ in range(2):
        await run(sandboxes, "middle", "rm ~/h* /tmp/t*")
        await undo(sandboxes, "middle")
        assert await output(sandboxes, "middle", sums) == before
