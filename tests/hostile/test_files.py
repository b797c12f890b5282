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
        with pytest.raises(errors.InvalidPath):
            async with warden.get(path):
                pass


async def test_a_box_that_is_full_can_still_be_emptied(warden: WardenClient) -> None:
    for place in ("/workspace", "/tmp", "/dev/shm", "/home/sandboxuser"):
        await warden.run(f"head -c 1G /dev/zero > {place}/full")
    result = await warden.run("kept=1; cat <<< here; rm -f /workspace/full /tmp/full", timeout_s=20)
    assert (result.output, result.state_saved) == ("here\n", True)
    assert (await warden.run("echo $kept > file; cat file")).output == "1\n"
