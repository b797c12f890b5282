"""Environments on real runtimes: packages by name, through this machine's own pip, npm and apt."""

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import EnvironmentFailed, InvalidRequest
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.environments.builds import Builds
from sandbox_server.environments.catalogue import Catalogue, pooled
from sandbox_server.environments.layers import LayerRecipe, LayerStore
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.registry.environments import Environment, Packages
from sandbox_server.runtime.base import BoxSpec, Limits, Runtime
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.layers import PROGRAMS
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.worker import Worker
from tests.contract.conftest import RUNTIMES, building_runtime, state_dir
from tests.contract.stand import LIMITS
from tests.kernels import BUILD_S, built_in, layer_cache
from tests.run import run_owner

__all__ = ["building_runtime", "state_dir"]

OLD, NEWER = "0.8.9", "0.9.0"
"""Versions of tabulate: a small package that needs no other."""
FULL = Environment(
    name="Full",
    packages=Packages(pip=(f"tabulate=={OLD}",), npm=("is-number",)),
    env={"GREETING": "hello"},
    files={"/workspace/notes/a.txt": "of the box\n", "/etc/app/conf.txt": "of the layer\n"},
    setup=("export FROM_SETUP=yes", "echo ready > /workspace/ready; cd /tmp"),
    warm=1,
)
SIMPLE = BoxSpec(owner="", deadman_s=300, limits=Limits(memory_bytes=1 << 30, cpus=2))


class Stand:
    def __init__(self, worker: Worker, sandboxes: Sandboxes) -> None:
        self.worker = worker
        self.sandboxes = sandboxes
        self.thread = f"t-{uuid.uuid4().hex[:8]}"

    async def create(self, environment: str) -> str | None:
        request = CreateSessionRequest(thread_id=self.thread, environment=environment)
        return (await self.sandboxes.create_session(request)).environment

    async def run(self, command: str) -> str:
        request = ExecuteRequest(thread_id=self.thread, command=command, timeout=120)
        done = await self.sandboxes.execute(request)
        return f"{done.output}[{done.exit_code}]" if done.exit_code else done.output


@contextlib.asynccontextmanager
async def open_stand(
    runtime: Runtime,
    state_dir: Path,
    *environments: Environment,
    owner: str = "",
    registry: SqliteRegistry | None = None,
) -> AsyncIterator[Stand]:
    owner = owner or run_owner(f"environments-{uuid.uuid4().hex[:8]}")
    known = Catalogue(environments)
    builds = Builds(runtime, LayerStore(state_dir, runtime.name), wait_s=BUILD_S)
    registry = registry or SqliteRegistry(worker=owner)
    worker = Worker(
        runtime,
        replace(SIMPLE, owner=owner),
        registry,
        LoneLease(owner, registry.next_epoch()),
        pool=PoolSettings(size=0, min_size=0, max_size=0),
        environments=pooled(known, builds),
        idle_timeout_s=600,
        capacity=5,
        destroy_on_exit=True,
    )
    facts = ServiceFacts(worker_id=owner, runtime=runtime.name, limits=LIMITS)
    async with builds, worker:
        service = SandboxService(worker.table, facts, health=worker.health, name_of=known.name_of)
        yield Stand(worker, service.of(SOLE_TENANT))


@pytest.mark.timeout(BUILD_S)
async def test_a_box_has_what_its_environment_says(
    building_runtime: Runtime, state_dir: Path, subtests: pytest.Subtests
) -> None:
    """One box for all of it: what does not hold is told one by one."""
    cases = {
        "python3 -c 'import tabulate; print(tabulate.__version__)'": f"{OLD}\n",
        "env -u PATH -u PYTHONPATH /usr/bin/env python3 -c 'import tabulate'": "",
        "PYTHONPATH=/tmp python3 -c 'import tabulate'": "",
        "bash -c 'tabulate --help' | head -1": "Usage: tabulate [options] [FILE ...]\n",
        "echo $GREETING $FROM_SETUP": "hello yes\n",
        "cat ready notes/a.txt /etc/app/conf.txt": "ready\nof the box\nof the layer\n",
        "echo x > /etc/app/conf.txt; touch /opt/sandbox/python/x; touch /node_modules/x": None,
    }
    async with open_stand(building_runtime, state_dir, FULL) as stand:
        assert await stand.create("full") == "Full", "in another case too"
        with subtests.test("it starts where every box does"):
            assert await stand.run("pwd") == "/workspace\n"
        for command, expected in cases.items():
            with subtests.test(command):
                output = await stand.run(command)
                if expected is None:
                    assert output.count("Read-only file system") == 3, output
                else:
                    assert output == expected
        with subtests.test("a user's own packages go before those of the environment"):
            await own_packages_win(stand)
    # Built: another server has boxes of it at once.
    began = asyncio.get_running_loop().time()
    async with open_stand(building_runtime, state_dir, FULL) as stand:
        await stand.create("Full")
        took_s = asyncio.get_running_loop().time() - began
        assert took_s < 10, "it was built again"


async def test_a_user_and_a_home_of_its_own(
    building_runtime: Runtime, state_dir: Path, subtests: pytest.Subtests
) -> None:
    home = "/home/lovelace"
    named = Environment(name="Named", user="ada", home=home, files={f"{home}/hello": "hi\n"})
    cases = {
        "whoami; id -un; id -gn; id -u": "ada\nada\nada\n1000\n",
        "echo $HOME $USER $LOGNAME; cd; pwd; cd /workspace": f"{home} ada ada\n{home}\n",
        "cat ~/hello ~ada/hello; touch ~/x; stat -c %U ~/x": "hi\nhi\nada\n",
        "python3 -c 'import pathlib; print(pathlib.Path.home())'": f"{home}\n",
        "echo x > /etc/passwd || echo refused": None,
        "ls -d /home/sandboxuser/x; readlink /home/sandboxuser": f"/home/sandboxuser/x\n{home}\n",
    }
    async with open_stand(building_runtime, state_dir, named) as stand:
        await stand.create("Named")
        for command, expected in cases.items():
            with subtests.test(command):
                output = await stand.run(command)
                assert "refused" in output if expected is None else output == expected
        (session,) = stand.worker.table.sessions()
        with subtests.test("files by either path"):
            stored = await session.agent.put("/home/sandboxuser/by/link", one(b"1"))
            assert stored.path == f"{home}/by/link"
            assert await stand.run("cat ~/by/link") == "1"
        with subtests.test("its files in the home of another"):
            stand.thread = "usual"
            request = CreateSessionRequest(thread_id="usual")
            await stand.sandboxes.create_session(request)
            other = stand.worker.table.live(SOLE_TENANT, "usual")
            assert other is not None
            async with session.agent.pack(["/home/sandboxuser"], pause_s=5) as tree:
                await other.agent.unpack(aiter(tree))
            assert await stand.run("cat ~/hello ~/by/link; echo $HOME") == (
                "hi\n1/home/sandboxuser\n"
            )


async def one(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.parametrize(
    "wrong", [{"user": "root"}, {"user": "Ada"}, {"home": "/root"}, {"home": "/home/a/b"}]
)
def test_users_that_cannot_be(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Environment(name="Named", **wrong)


async def own_packages_win(stand: Stand) -> None:
    shown = "python3 -c 'import tabulate; print(tabulate.__version__)'"
    fake = f"mkdir -p $D && echo \"__version__ = '{NEWER}'\" > $D/tabulate.py"
    user = "D=$(python3 -c 'import site; print(site.getusersitepackages())')"
    assert await stand.run(f"{user}; {fake}; {shown}") == f"{NEWER}\n"
    assert await stand.run(f"{user}; rm -r $D; {shown}") == f"{OLD}\n"
    await stand.run("python3 -m venv --without-pip .venv")
    assert "ModuleNotFoundError" in await stand.run(f".venv/bin/{shown}")
    site = "D=$(.venv/bin/python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
    assert await stand.run(f"{site}; {fake}; .venv/bin/{shown}") == f"{NEWER}\n"


async def test_warm_boxes_are_set_up_and_those_of_a_killed_server_are_not_mixed_up(
    building_runtime: Runtime, state_dir: Path
) -> None:
    ready = Environment(name="Ready", setup=("date +%s%N > /workspace/made",), warm=1)
    owner = run_owner(f"environments-{uuid.uuid4().hex[:8]}")
    registry = SqliteRegistry(worker=owner)
    async with open_stand(building_runtime, state_dir, ready, owner=owner) as stand:
        while stand.worker.health().pool_size < 1:
            await asyncio.sleep(0.02)
        (box,) = await building_runtime.boxes(owner)
        await stand.create("ready")
        assert await stand.run("cat made") != ""
        (session,) = stand.worker.table.sessions()
        assert session.box.id == box.id, "the warm one"
    # As a killed server leaves it: a warm box of an environment, in the ledger.
    box = await building_runtime.create(replace(SIMPLE, owner=owner))
    registry.ledger.keep_warm(box.id, build=f"{building_runtime.build} and an environment")
    async with open_stand(building_runtime, state_dir, owner=owner, registry=registry) as stand:
        assert not await box.is_alive()
        assert stand.worker.health().pool_size == 0


async def test_what_fails_says_why(
    building_runtime: Runtime, state_dir: Path, subtests: pytest.Subtests
) -> None:
    failing = (
        Environment(name="NoPackage", packages=Packages(pip=("surely-no-such-package-1234",))),
        Environment(name="NoSetup", setup=("true", "echo the reason; exit 7")),
    )
    async with open_stand(building_runtime, state_dir, *failing) as stand:
        with subtests.test("a package that is not there"):
            with pytest.raises(EnvironmentFailed, match="surely-no-such-package-1234") as failed:
                await stand.create("NoPackage")
            assert failed.value.message.startswith("environment NoPackage: pip install failed: ")
            assert len(failed.value.details["log"]) >= 1
            assert failed.value.details["retry_after_s"] > 0
            assert "environment NoPackage" in stand.worker.health().checks
        with subtests.test("a setup"):
            with pytest.raises(EnvironmentFailed, match="the reason") as failed:
                await stand.create("NoSetup")
            assert "`echo the reason; exit 7` ended with exit code 7" in failed.value.message
        with (
            subtests.test("an environment that is not there"),
            pytest.raises(InvalidRequest, match="there are NoPackage, NoSetup"),
        ):
            await stand.create("Other")
        with subtests.test("and a box is left by none of them"):
            while await building_runtime.boxes(stand.worker.health().worker_id):
                await asyncio.sleep(0.05)


@pytest.mark.timeout(BUILD_S)
async def test_debian_packages(building_runtime: Runtime, state_dir: Path) -> None:
    tree = Environment(name="Tree", packages=Packages(apt=("tree",)))
    async with open_stand(building_runtime, state_dir, tree) as stand:
        if not building_runtime.has_images:
            with pytest.raises(InvalidRequest, match=r"\(tree\) need an image: use the docker"):
                await stand.create("Tree")
            return
        await stand.create("Tree")
        assert "0 directories" in await stand.run("tree /workspace")
        assert "proxy" not in (await stand.run("env")).lower()


@pytest.mark.skipif("docker" not in RUNTIMES, reason="no docker here")
@pytest.mark.timeout(BUILD_S)
async def test_an_image_of_a_dockerfile(tmp_path: Path, state_dir: Path) -> None:
    from sandbox_server.runtime.docker import DockerRuntime

    (tmp_path / "Dockerfile").write_text("FROM sandbox-secure:latest\nCOPY motd /etc/motd\n")
    (tmp_path / "motd").write_text("from a file\n")
    own = Environment(name="Own", dockerfile=str(tmp_path / "Dockerfile"))
    async with DockerRuntime() as runtime, open_stand(runtime, state_dir, own) as stand:
        await stand.create("own")
        assert await stand.run("cat /etc/motd") == "from a file\n"
        (tmp_path / "Dockerfile").write_text("FROM sandbox-secure:latest\nRUN echo oh; exit 9\n")
        stand.thread = "another"
        with pytest.raises(EnvironmentFailed, match=r"building the image failed.*exit 9"):
            await stand.create("own")


@pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
@pytest.mark.timeout(BUILD_S)
async def test_two_that_build_at_once_make_one_layer(tmp_path: Path) -> None:
    """As two servers would: each has a store of its own. What a killed one left is removed."""
    async with BubblewrapRuntime(state_dir=tmp_path) as runtime:
        python = await runtime.interpreter("")
    recipe = LayerRecipe(python=python, packages=Packages(pip=(f"tabulate=={OLD}",)), files={})
    stores = [LayerStore(tmp_path, "bubblewrap") for _ in range(2)]
    left = stores[0].path / f"{recipe.digest}.making"
    left.mkdir(parents=True)
    (left / "half").touch()
    told: list[str] = []
    made = await asyncio.gather(*(store.made(recipe, told.append) for store in stores))
    assert made[0] == made[1]
    assert [line for line in told if line.startswith("pip install")] == [
        f"pip install tabulate=={OLD}"
    ]
    assert not left.exists()
    assert not (made[0] / "half").exists()
    info = stores[1].info(recipe.digest)
    assert info is not None
    assert info.bytes > 10_000
    # A build that is given up half-way leaves nothing, and the lock is free again.
    other = LayerRecipe(python=python, packages=Packages(pip=(f"tabulate=={NEWER}",)), files={})
    running = asyncio.create_task(stores[0].made(other, told.append))
    while not any("pip install" in line and NEWER in line for line in told):
        await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert [path.name for path in stores[0].path.iterdir() if path.is_dir()] == [recipe.digest]


NODE = "node -p 'require(\"is-number\")(42)'"
NODE_MODULE = "node --input-type=module -e 'import x from \"is-number\"; console.log(x(42))'"
BUILT_IN = {
    "Data": {  # Python3 is a part of it.
        "python3 -c 'import pandas, matplotlib.pyplot; print(pandas.Series([42]).sum())'": 42,
        "jupyter-kernelspec list 2>&1 | grep -ow python3 | head -1": "python3",
    },
    "Node": {
        NODE: "true",
        f"cd /tmp && {NODE_MODULE}; cd /workspace": "true",
        "npm -v | grep -c .": 1,
        "deno eval -q 'const x: number = 42; console.log(x)'": 42,
        "jupyter-kernelspec list 2>&1 | grep -ow deno | head -1": "deno",
    },
}


@pytest.mark.timeout(BUILD_S)
@pytest.mark.parametrize("name", BUILT_IN)
async def test_the_built_in_ones(
    building_runtime: Runtime, state_dir: Path, name: str, subtests: pytest.Subtests
) -> None:
    """They are large, so they are kept beyond this run."""
    async with open_stand(building_runtime, layer_cache(), built_in(name)) as stand:
        await stand.create(name.lower())
        for command, expected in BUILT_IN[name].items():
            with subtests.test(command):
                assert await stand.run(command) == f"{expected}\n"


def test_programs_of_a_layer_are_on_the_path_of_a_strict_policy() -> None:
    from sandbox_server.service.gate import FIXED_PATH

    assert FIXED_PATH.split(":")[: len(PROGRAMS)] == list(PROGRAMS)


async def test_the_state_folder_shows_nothing_to_others(state_dir: Path) -> None:
    for path, _, _ in os.walk(state_dir / "layers"):
        assert os.stat(path).st_mode & 0o022 == 0, path
    for about in (state_dir / "layers").glob("*/*/layer.json"):
        assert json.loads(about.read_text())["bytes"] > 0
