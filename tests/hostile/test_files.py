"""Odd output and odd files do no harm (docs/security.md, 38; 29 to 32 are in tests/contract).

In tests/contract/test_files.py: links that lead out (29), bad paths (30), pipes and sockets (31),
too large and cut off uploads (32). In test_file_bounds.py there:
folders of any depth and size. In test_commands.py there: output that is not text.
"""

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import CommandResult
from sandbox_server.runtime.warden.client import WardenClient

from .conftest import run_python

OUTPUT = [
    "head -c 3000000 /dev/urandom",
    "head -c 3000000 /dev/zero",
    "head -c 50000000 /dev/zero | tr '\\0' x",
    r"printf '\xff\xfe\x00\xed\xa0\x80\xf4\x90\x80\x80'",
    r"yes $'\x1b[2J\x1b]0;title\a\r' | head -c 2000000",
]


async def test_output_of_any_kind_is_text(warden: WardenClient, subtests: pytest.Subtests) -> None:
    for command in OUTPUT:
        with subtests.test(command):
            result = await warden.run(command)
            assert result.exit_code == 0
            result.output.encode()
            kinds = [type(event) async for event in warden.stream(command)]
            assert kinds[-1] is CommandResult


async def test_a_huge_sparse_file_cannot_be_made(warden: WardenClient) -> None:
    code = "import os\nos.truncate(os.open('sparse', 66, 0o644), 1 << 40)"
    result = await run_python(warden, code)
    assert "File too large" in result.output
    assert (await warden.stat("sparse")).size == 0


async def test_a_file_that_changes_while_it_is_read(warden: WardenClient) -> None:
    await warden.run(
        "head -c 10M /dev/zero > f; (while :; do head -c 1M /dev/zero >> f;"
        " [ $(wc -c < f) -gt 20000000 ] && : > f; done) & echo $! > pid"
    )
    for _ in range(20):
        try:
            async with warden.get("f") as file:
                size = sum([len(chunk) async for chunk in file])
            assert size == file.about.size
        except errors.RuntimeUnavailable:
            continue  # it became shorter, and that is told
    await warden.run("kill -9 $(cat pid)")


async def test_devices_and_kernel_files_are_refused_at_once(warden: WardenClient) -> None:
    await warden.run("ln -s /dev/zero zero; ln -s /proc/kmsg kmsg; ln -s /dev/shm/../tty tty")
    for path in ("/dev/zero", "/proc/kmsg", "/dev/pts/ptmx", "zero", "kmsg", "tty"):
        with pytest.raises((errors.InvalidPath, errors.FileMissing)):  # gVisor has no kmsg.
            async with warden.get(path):
                pass


async def test_a_box_that_is_full_can_still_be_emptied(warden: WardenClient) -> None:
    for place in ("/workspace", "/tmp", "/dev/shm", "/home/sandboxuser"):
        await warden.run(f"head -c 1G /dev/zero > {place}/full")
    result = await warden.run("kept=1; cat <<< here; rm -f /workspace/full /tmp/full", timeout_s=20)
    assert (result.output, result.state_saved) == ("here\n", True)
    assert (await warden.run("echo $kept > file; cat file")).output == "1\n"


OWN = [
    "/proc/1/environ",
    "/proc/1/mem",
    "/proc/1/maps",
    "/proc/1/fd",
    "/proc/1/fd/0",
    "/proc/1/cwd",
    "/proc/1/root/etc/passwd",
    "/proc/1/task/1/environ",
    "/proc/self",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "/proc/thread-self/environ",
    "/proc/mounts",
    "/proc/net/tcp",
    "/proc/./1//environ",
    "/proc/2/../1/environ",
    "/dev/fd",
    "/dev/stdin",
    "environ",
    "dir/environ",
    "far/self/environ",
]


async def test_the_wardens_own_entry_in_proc_is_never_read(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    """The kernel would show it to the warden, which reads for the caller, but not to the user."""
    await warden.run("ln -s /proc/1/environ environ; ln -s /proc/self dir; ln -s /proc far")
    for path in OWN:
        with subtests.test(path):
            with pytest.raises((errors.InvalidPath, errors.FileMissing)):
                async with warden.get(path):
                    pass
            with pytest.raises((errors.InvalidPath, errors.FileMissing)):
                await warden.list(path)
            with pytest.raises((errors.InvalidPath, errors.FileMissing)):
                await warden.watch(path)
    pid, _, _ = (await warden.run("sleep 100 & echo $! | tee pid")).output.partition("\n")
    async with warden.get(f"/proc/{pid}/cmdline") as file:
        assert b"".join([chunk async for chunk in file]) == b"sleep\x00100\x00"


async def test_walking_through_proc_passes_the_warden_by(warden: WardenClient) -> None:
    for path in ("/proc", "/proc/.", "/workspace/../proc"):
        paths = {entry.path for entry in (await warden.list(path, depth=2, limit=50_000)).entries}
        assert "/proc/1" in paths
        assert not any(each.startswith("/proc/1/") for each in paths)
        assert any(each.startswith("/proc/sys/") for each in paths)


async def test_a_link_to_the_wardens_entry_swapped_in_meanwhile(warden: WardenClient) -> None:
    """A folder that keeps turning into a link to /proc/self while a file in it is read."""
    await warden.run(
        "mkdir -p d; echo mine > d/environ; mv d d1; ln -s /proc/self d2; "
        "(while :; do mv -T d1 d; mv -T d d1; mv -T d2 d; mv -T d d2; done) 2>/dev/null >&2 &"
    )
    for _ in range(150):
        try:
            async with warden.get("d/environ") as file:
                assert b"".join([chunk async for chunk in file]) == b"mine\n"
        except (errors.InvalidPath, errors.FileMissing):
            continue


async def test_a_folder_that_looks_like_proc_is_a_folder(warden: WardenClient) -> None:
    await warden.run("mkdir -p fake/1; ln -s 1 fake/self; echo mine > fake/1/environ")
    async with warden.get("fake/self/environ") as file:
        assert b"".join([chunk async for chunk in file]) == b"mine\n"


async def test_the_warden_may_read_no_more_than_the_user(warden: WardenClient) -> None:
    """What it reads for a caller is what the user of the box could: the same user, groups and
    capabilities, and one thread, so that one entry in /proc is its own."""
    about = "grep -E 'Uid|Gid|Groups|Cap|Threads' /proc/%s/status"
    own, users = await warden.run(about % 1), await warden.run(about % "self")
    assert own.output == users.output
    assert "CapEff:\t0000000000000000\n" in own.output
    assert "Threads:\t1\n" in own.output
