"""apt and cargo in a box, set up as every box is that has a network through the server."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_server.network.networks import Networks
from sandbox_server.runtime.agent import put_files
from sandbox_server.runtime.warden.client import WardenClient
from tests.egress import SUBJECT, internet, run
from tests.internet import PACKAGE, Internet

from .conftest import MakeBox

__all__ = ["internet"]

NO_CARGO = "cargo: there is none on this machine; install one with rustup"


@pytest.fixture
async def online(make_box: MakeBox, internet: Internet) -> AsyncIterator[WardenClient]:
    """A box that reaches web.test."""
    networks = Networks(allow=internet.here("web.test"), resolver=internet.resolver)
    terms = networks.terms("allowlist", None)
    box = await make_box(network="allowlist", network_env=terms.env)
    async with WardenClient(box) as warden:
        await put_files(warden, terms.files)
        egress = networks.serve(warden, terms, SUBJECT, meet=warden.connect)
        await egress.listening()
        yield warden
        await egress.close()
    networks.close()


async def test_apt_gets_a_package(online: WardenClient, internet: Internet) -> None:
    """It cannot install one: only root can, and nobody is root in a box."""
    internet.add_debian_package()
    source = f"deb [trusted=yes] http://web.test:{internet.http}/debian ./"
    of = "-q -o Dir::Etc::sourcelist=/workspace/sources.list"
    await run(online, f"echo '{source}' > sources.list && apt-get {of} update")
    assert "Description: the answer" in await run(online, f"apt-cache {of} show {PACKAGE}")
    await run(online, f"apt-get {of} download {PACKAGE}")
    assert await run(online, f"dpkg-deb -x {PACKAGE}_*.deb x && cat x/answer") == "42\n"
    assert "debian" not in await run(online, "ls"), "its files are in .cache"


async def programs(warden: WardenClient) -> None:
    """The cargo of this machine, in the box. Of the compiler it needs to know the version alone."""
    try:
        found = await asyncio.to_thread(_said, "rustc", "--print", "sysroot")
    except (OSError, subprocess.CalledProcessError):  # Or a name without a toolchain behind it.
        pytest.skip(NO_CARGO)
    cargo = Path(found.strip(), "bin", "cargo")
    if not cargo.exists():
        cargo = Path(shutil.which("cargo") or "")

    async def pieces() -> AsyncIterator[bytes]:
        with cargo.open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece

    await warden.put("/workspace/cargo", pieces())
    version = await asyncio.to_thread(_said, "rustc", "-vV")
    await put_files(warden, {"/workspace/rustc": f"#!/bin/sh\ncat <<'END'\n{version}END\n"})
    await run(warden, "chmod +x cargo rustc")


def _said(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


async def test_cargo_gets_a_crate(online: WardenClient, internet: Internet) -> None:
    await programs(online)
    internet.add_crate()
    index = f"sparse+http://web.test:{internet.http}/crates/"
    await run(online, f"export RUSTC=/workspace/rustc CARGO_REGISTRIES_MINE_INDEX={index}")
    await run(online, "mkdir p && cd p && ../cargo init -q --name p --vcs none .")
    await run(online, f"../cargo add -q --registry mine {PACKAGE}")
    await run(online, "../cargo vendor -q")
    assert "42" in await run(online, f"cat vendor/{PACKAGE}/src/lib.rs")
    await run(online, "test -d /workspace/.cache/cargo/registry")  # The home is small.
