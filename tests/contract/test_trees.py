"""All files of a box, out of one and into another."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import TreeAbout
from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.warden.client import WardenClient
from sandbox_warden.tree import RECORD, REGULAR, ROOT, SYMLINK

from .conftest import RUNTIMES, MakeBox

Another = Callable[[], Awaitable[WardenClient]]

PLACES = ("/workspace", "/home/sandboxuser", "/tmp")
DIGEST = r"""
cd %s && find . -mindepth 1 \( -type f -o -type d -o -type p \) -printf '%%P %%y %%m %%T@ %%s\0' |
    sed -z '/ d /s/ [0-9]*$//' | LC_ALL=C sort -z | sha256sum
find . -type l -printf '%%P %%l\0' | LC_ALL=C sort -z | sha256sum
find . -type f -readable -print0 | LC_ALL=C sort -z | xargs -0r sha256sum | sha256sum
"""


async def packed(
    warden: WardenClient, *roots: str, pause_s: float = 30.0
) -> tuple[list[bytes], TreeAbout, list[str]]:
    async with warden.pack(roots or PLACES, pause_s=pause_s) as tree:
        segments = [segment async for segment in tree]
    assert tree.about is not None
    return segments, tree.about, list(tree.running)


async def each(segments: Iterable[bytes]) -> AsyncIterator[bytes]:
    for segment in segments:
        yield segment


async def digest(warden: WardenClient, place: str = "/workspace") -> str:
    result = await warden.run(f"( {DIGEST % place} )")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
async def another(make_box: MakeBox) -> AsyncIterator[Another]:
    """Makes further boxes."""
    async with AsyncExitStack() as stack:

        async def make() -> WardenClient:
            return await stack.enter_async_context(WardenClient(await make_box()))

        yield make


async def copied(another: Another, segments: Iterable[bytes]) -> WardenClient:
    copy = await another()
    await copy.unpack(each(segments))
    return copy


ODD = r"""
mkdir -p a/b/c 'with space' $'new\nline' $'not \xff utf8' ünïcode .hidden
echo one > a/b/c/one; : > empty; echo x > $'new\nline/x'; echo y > $'not \xff utf8/y\xfe'
printf '\0\1\2' > .hidden/binary; ln a/b/c/one hard; ln -s a/b/c/one soft; ln -s /nowhere dangling
mkfifo fifo; echo '#!/bin/sh' > run; chmod 4755 run; chmod 2750 a/b; chmod 1777 'with space'
echo secret > unreadable; chmod 000 unreadable
touch -d '2001-02-03 04:05:06.123456789' empty a/b/c/one; touch -h -d 2002-01-01 soft
head -c 3000000 /dev/urandom > large; truncate -s 50M sparse; echo end >> sparse
dd if=/dev/urandom of=middle bs=1M seek=20 count=1 status=none; truncate -s 40M middle
touch -d 2003-01-01 a/b a; umask 027; mkdir -p ~/.config; echo rc > ~/.config/rc; echo t > /tmp/t
"""


@pytest.mark.kernel
async def test_everything_comes_over(warden: WardenClient, another: Another) -> None:
    result = await warden.run(ODD)
    assert (result.exit_code, result.stderr) == (0, "")
    before = [await digest(warden, place) for place in PLACES]
    segments, about, running = await packed(warden)
    assert (about.left_out, about.left_out_more, running) == ([], 0, [])
    assert about.files >= 12
    assert sum(map(len, segments)) < 10_000_000  # Without the holes.

    copy = await copied(another, segments)
    assert [await digest(copy, place) for place in PLACES] == before
    same = await copy.run(
        "[[ hard -ef a/b/c/one ]] && cat hard; chmod 600 unreadable; cat unreadable"
    )
    assert same.stdout == "one\nsecret\n"
    assert (await copy.run("umask")).stdout == "0027\n"


async def test_what_only_its_owner_can_open_stays_as_it_is(warden: WardenClient) -> None:
    made = "mkdir -p d/e; echo x > d/e/f; chmod 000 d/e/f d/e d; "
    mode = "find %s -maxdepth 0 -printf '%%m\\n'; chmod 700 %s; "  # gVisor's stat does not work.
    seen = "".join(mode % (path, path) for path in ("d", "d/e", "d/e/f"))
    result = await warden.run(made + "true")
    assert result.exit_code == 0
    _, about, _ = await packed(warden, "/workspace")
    assert (about.files, about.folders, about.left_out) == (1, 2, [])
    assert (await warden.run(seen)).stdout == "0\n0\n0\n"


async def test_a_socket_is_left_out_and_told(warden: WardenClient) -> None:
    python = "import socket; socket.socket(socket.AF_UNIX).bind('here.sock')"
    assert (await warden.run(f'python3 -c "{python}"')).exit_code == 0
    _, about, _ = await packed(warden, "/workspace")
    assert [left.path for left in about.left_out] == ["/workspace/here.sock"]
    assert "neither a file" in about.left_out[0].why


@pytest.mark.kernel
async def test_the_state_of_the_shell_comes_over(warden: WardenClient, another: Another) -> None:
    await warden.run(
        "mkdir d; cd d; x='two words'; export y=2; declare -A map=([a]=1); f() { echo f$1; };"
        " alias say='echo said'; shopt -s extglob; set -o pipefail"
    )
    segments, _, _ = await packed(warden)
    copy = await copied(another, segments)
    seen = (
        'pwd; echo "$x"; printenv y; echo ${map[a]}; f 1; say; shopt extglob; set -o | grep pipef'
    )
    assert (await copy.run(seen)).output == (await warden.run(seen)).output
    assert (await copy.run("pwd")).cwd == "/workspace/d"


async def test_what_was_there_before_is_replaced(warden: WardenClient, another: Another) -> None:
    await warden.run("echo new > same; x=1")
    segments, _, _ = await packed(warden)
    copy = await another()
    await copy.run("mkdir -p old/deep; echo old > same; touch old/deep/f; chmod 000 old; x=2; y=3")
    await copy.unpack(each(segments))
    assert (await copy.run("ls -A; cat same; echo $x ${y-none}")).output == "same\nnew\n1 none\n"


async def test_the_same_files_make_the_same_segments(warden: WardenClient) -> None:
    await warden.run("for i in {1..2000}; do echo $i > f$i; done; head -c 20M /dev/urandom > large")
    first, _, _ = await packed(warden)
    assert len(first) > 8
    second, _, _ = await packed(warden)
    assert first == second
    await warden.run("echo changed > f1000; echo more >> large")
    third, _, _ = await packed(warden)
    assert len(set(third) - set(first)) <= 4


@pytest.mark.rest
@pytest.mark.parametrize("runtime_name", [name for name in RUNTIMES if name != "gvisor"])
async def test_fifty_thousand_files(warden: WardenClient, another: Another) -> None:
    made = await warden.run(
        "python3 - <<'E'\nimport os\nfor d in range(500):\n    os.mkdir(f'd{d}')\n"
        "    for f in range(100):\n        open(f'd{d}/{f}', 'w').write(f'{d} {f}')\nE",
        timeout_s=120,
    )
    assert made.exit_code == 0
    segments, about, _ = await packed(warden)
    assert (about.files, about.folders) == (50_000, 500)
    copy = await copied(another, segments)
    count = "find . -type f | wc -l; cat d499/99"
    assert (await copy.run(count)).output == "50000\n499 99"


@pytest.mark.rest
@pytest.mark.parametrize("runtime_name", [name for name in RUNTIMES if name != "gvisor"])
async def test_a_file_of_a_gigabyte(make_box: MakeBox) -> None:
    limits = Limits(disk_bytes=2 << 30, cpus=2.0)
    async with (
        WardenClient(await make_box(limits=limits)) as warden,
        WardenClient(await make_box(limits=limits)) as copy,
    ):
        made = await warden.run("seq 112000000 | head -c 1000000000 > big", timeout_s=110)
        assert made.exit_code == 0
        async with warden.pack(["/workspace"], pause_s=60) as tree:
            await copy.unpack(aiter(tree))
        digests = [await each.run("sha256sum big", timeout_s=60) for each in (warden, copy)]
        assert digests[0].stdout == digests[1].stdout != ""


# While something runs.

WRITER = "i=0; while :; do i=$((i+1)); echo $i >> a; echo $i >> b; done"


@pytest.mark.kernel
async def test_a_box_that_writes_all_the_while(warden: WardenClient, another: Another) -> None:
    await warden.run("head -c 30M /dev/urandom > large")
    writer = await warden.start(WRITER, timeout_s=None)
    await asyncio.sleep(0.3)
    for _ in range(3):
        segments, about, running = await packed(warden)
        assert any("bash" in each for each in running)
        assert about.paused_ms > 0
        copy = await copied(another, segments)
        check = "diff <(seq $(wc -l < a)) a && diff <(seq $(wc -l < b)) b && wc -l < a && wc -l < b"
        result = await copy.run(check)
        assert result.exit_code == 0, result.output
        first, second = map(int, result.stdout.split())
        assert first - second in (0, 1)
    before = int((await warden.run("wc -l < a")).stdout)
    await asyncio.sleep(0.3)
    assert int((await warden.run("wc -l < a")).stdout) > before, "it does not go on"
    await warden.signal(writer, 9)


async def test_a_shell_does_not_notice_that_its_jobs_were_paused(warden: WardenClient) -> None:
    job = await warden.start("set -m; sleep 1 & wait $!; echo $?; (sleep 1; exit 3); echo $?")
    for _ in range(10):
        await packed(warden)
        await asyncio.sleep(0.1)
    await warden.ended(job)
    result = await warden.result(job)
    assert (result.stdout, result.exit_code) == ("0\n3\n", 0)
    assert "Stopped" not in result.stderr


# On gVisor a stopped process ends with the command that started it.
@pytest.mark.kernel
@pytest.mark.parametrize("runtime_name", [name for name in RUNTIMES if name != "gvisor"])
async def test_what_was_stopped_stays_stopped(warden: WardenClient) -> None:
    await warden.run("sleep 100 & echo $! > pid; kill -STOP $!; sleep 0.1")
    await packed(warden)
    state = await warden.run("cut -d' ' -f3 /proc/$(< pid)/stat; kill -9 $(< pid)")
    assert state.stdout == "T\n"


async def test_commands_wait_meanwhile_and_uploads_do_not(warden: WardenClient) -> None:
    await warden.run("head -c 60M /dev/urandom > large")
    async with warden.pack(["/workspace"], pause_s=30) as tree:
        pieces = aiter(tree)
        await anext(pieces)
        command = asyncio.create_task(warden.run("echo late > late; echo done"))
        uploaded = await warden.put("/workspace/up", each([b"1"]))
        assert uploaded.size == 1
        assert not command.done()
        async for _ in pieces:
            pass
    assert (await command).stdout == "done\n"


async def test_a_copy_that_is_given_up(warden: WardenClient) -> None:
    """Whoever waits goes on."""
    await warden.run("head -c 60M /dev/urandom > large; sleep 100 & echo $! > pid")
    async with warden.pack(["/workspace"], pause_s=30) as tree:
        async for _ in tree:
            break
        raise_later = asyncio.create_task(warden.run("cut -d' ' -f3 /proc/$(< pid)/stat"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), warden.pack(["/workspace"], pause_s=30):
            pass
    assert (await raise_later).stdout in ("S\n", "R\n")


async def test_a_pause_is_bounded(warden: WardenClient) -> None:
    await warden.run("head -c 60M /dev/urandom > large; sleep 100 & echo $! > pid")
    with pytest.raises(errors.Conflict, match=r"could not be read within 0\.001 s"):
        await packed(warden, pause_s=0.001)
    assert (await warden.run("cut -d' ' -f3 /proc/$(< pid)/stat")).stdout == "S\n"


# Trees that nobody packed.


def record(kind: bytes, path: str, body: bytes = b"") -> bytes:
    name = os.fsencode(path)
    return RECORD.pack(kind, 0o755, len(body), 0, len(name)) + name + body


FORGED = {
    "a path /etc": record(REGULAR, "/etc/passwd", b"x"),
    "a path /workspace/../etc": record(REGULAR, "/workspace/../etc/x", b"x"),
    "a path /workspace/./x": record(REGULAR, "/workspace/./x", b"x"),
    "a place": record(REGULAR, "/workspace", b"x"),
    "a link": record(SYMLINK, "/workspace/l", b"/tmp") + record(REGULAR, "/workspace/l/x", b"x"),
    "a file as a folder": record(REGULAR, "/workspace/f", b"") + record(REGULAR, "/workspace/f/x"),
    "a file twice": record(REGULAR, "/workspace/f") * 2,
    "another kind": record(b"?", "/workspace/x"),
    "bytes without a file": record(b"X", "/workspace/x", bytes(9)),
    "a size too short": record(b"B", "/workspace/x", b"1"),
    "an end that is missing": record(REGULAR, "/workspace/x", b"12345")[:-1],
    "a record of any size": RECORD.pack(REGULAR, 0, 1 << 60, 0, 1) + b"/",
}


async def test_a_tree_that_is_forged(another: Another, subtests: pytest.Subtests) -> None:
    warden = await another()
    for name, data in FORGED.items():
        with subtests.test(name), pytest.raises((errors.InvalidRequest, errors.RuntimeUnavailable)):
            await warden.unpack(each([record(ROOT, "/workspace"), data]))
    assert (await warden.run("ls -A /tmp; echo alive")).stdout == "alive\n"
    with pytest.raises(errors.InvalidPath, match="a root must be"):
        await packed(warden, "/etc")


async def test_what_runs_in_the_background_outlives_copies(warden: WardenClient) -> None:
    loop = "while :; do /bin/true; done"
    background = f"({loop}) & echo $! > a; (setsid bash -c 'echo $$ > b; {loop}' &)"
    await warden.run(f"{background}; until [ -s b ]; do sleep 0.01; done")
    for _ in range(20):
        await packed(warden)
    lost = await warden.run("for name in a b; do kill -0 $(< $name) || echo $name; done")
    assert lost.output == ""
