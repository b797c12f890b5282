"""Environments: their names, what their layers are made of, and the waiting for a build."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import EnvironmentBuilding, EnvironmentFailed, InvalidRequest
from sandbox_server.environments import programs
from sandbox_server.environments.builds import Builds, box_spec
from sandbox_server.environments.catalogue import Catalogue, of_settings
from sandbox_server.environments.layers import LayerRecipe, LayerStore
from sandbox_server.registry.environments import Environment, Gpus, Packages, Pods
from sandbox_server.registry.folder import read_registry
from sandbox_server.runtime.base import Box, BoxSpec, Enforcement, Layer, Runtime, Tell
from sandbox_server.runtime.bubblewrap.layers import layered, refusal
from sandbox_server.runtime.layers import (
    HOST_PACKAGES,
    NODE_PACKAGES,
    PYTHON_PACKAGES,
    Interpreter,
)

SPEC = BoxSpec(owner="test")
PYTHON = Interpreter(
    executable="/usr/bin/python3",
    version=(3, 11, 2),
    machine="x86_64",
    libc=("glibc", "2.36"),
    markers={"python_version": "3.11", "python_full_version": "3.11.2"},
)


def recipe(*pip: str, python: Interpreter = PYTHON) -> LayerRecipe:
    return LayerRecipe(python=python, packages=Packages(pip=pip), files={})


# Names


def test_the_built_in_ones_are_found_in_any_case() -> None:
    known = Catalogue(read_registry(None).environments.values())
    assert list(known) == ["Data", "Node", "Python3", "base", "code-interpreter"]
    assert known.find("python3").name == known.name_of("PYTHON3") == "Python3"
    assert known.name_of("mine") == "mine"
    with pytest.raises(InvalidRequest, match="unknown environment 'mine': there are Data, Node"):
        known.find("mine")


def test_those_of_the_settings_go_before_built_in_ones() -> None:
    images, policies = {"node": "node:20", "plain": "debian"}, {"node": "strict"}
    known = Catalogue(
        [
            *read_registry(None).environments.values(),
            *of_settings(images, policies, has_images=True),
        ]
    )
    assert known["Node"].name == "node"
    assert (known["node"].image, known["node"].policy) == ("node:20", "strict")
    assert not known["node"].packages.pip
    without = Catalogue(of_settings(images, policies, has_images=False))
    assert [(each.name, each.image, each.policy) for each in without.values()] == [
        ("node", None, "strict")
    ]


# Layers


def test_a_layer_is_for_the_interpreter_of_the_box() -> None:
    words = programs.pip_install(["pandas", "-x"], Path("/layer"), PYTHON)
    assert words[-3:] == ["--", "pandas", "-x"], "a requirement is never an option"
    assert "--only-binary" in words, "nothing of a package runs on the server"
    assert {"manylinux_2_36_x86_64", "manylinux2014_x86_64"} <= {*words}
    assert "manylinux_2_37_x86_64" not in words
    assert json.loads(words[3]) == PYTHON.markers
    musl = replace(PYTHON, libc=("", ""))
    assert musl.platforms[0] == "musllinux_1_2_x86_64"


def test_the_digest_of_a_layer_follows_what_is_in_it() -> None:
    same = recipe("a", python=replace(PYTHON, markers={**PYTHON.markers}))
    assert recipe("a").digest == same.digest
    others = [
        recipe("b"),
        recipe("a", python=replace(PYTHON, libc=("glibc", "2.31"))),
        recipe("a", python=replace(PYTHON, markers={"python_version": "3.12"})),
        replace(recipe("a"), files={"/etc/x": "1"}),
    ]
    assert len({recipe("a").digest, *(other.digest for other in others)}) == 5


async def test_markers_are_those_of_the_box(tmp_path: Path) -> None:
    """pip alone would ask the interpreter that runs it."""
    given = tmp_path / "requirements"
    given.write_text('nowhere-to-be-found; python_version < "2"\n')
    old = {**PYTHON.markers, "python_version": "1.0"}
    pip_for = str(Path(programs.__file__).with_name("pip_for.py"))
    install = ["install", "--no-index", "--dry-run", "--target", str(tmp_path / "t"), "-r"]

    async def run(markers: dict[str, str]) -> None:
        words = [sys.executable, "-P", pip_for, json.dumps(markers), *install, str(given)]
        await programs.run(words, tell=print, what="pip")

    await run(dict(PYTHON.markers))
    with pytest.raises(EnvironmentFailed) as failed:
        await run(old)
    assert any("nowhere-to-be-found" in line for line in failed.value.details["log"])


async def test_a_layer_that_failed_or_was_given_up_leaves_nothing(tmp_path: Path) -> None:
    store = LayerStore(tmp_path, "test")
    with pytest.raises(EnvironmentFailed, match="pip install failed"):
        await store.made(recipe("no such requirement!"), print)
    assert [path.suffix for path in store.path.iterdir()] == [".lock"]
    assert store.info(recipe("x").digest) is None


def test_what_a_crash_has_left_is_removed(tmp_path: Path) -> None:
    store = LayerStore(tmp_path, "test")
    for name in ("a", "b", "c.making"):
        (store.path / name).mkdir(parents=True)
        (store.path / name / "layer.json").write_text('{"bytes": 5, "made_at": 1}')
    removed = store.prune({"a"})
    assert [(layer.digest, layer.bytes) for layer in removed if layer.digest == "b"] == [("b", 5)]
    assert [path.name for path in store.path.iterdir() if path.is_dir()] == ["a"]


def test_where_an_embedded_box_has_a_layer(tmp_path: Path) -> None:
    folder, site = tmp_path / "layer", tmp_path / "site-packages"
    for path in (folder / "python", folder / "site", folder / "node_modules", site):
        path.mkdir(parents=True)
    python = replace(PYTHON, site=("/nowhere", str(site)))
    layer = Layer(digest="d", folder=folder, files=("/etc/app.conf",))
    assert layered(SPEC, layer, python).layers == {
        PYTHON_PACKAGES: str(folder / "python"),
        HOST_PACKAGES: str(site),
        str(site): str(folder / "site"),
        NODE_PACKAGES: str(folder / "node_modules"),
        "/etc/app.conf": str(folder / "files/0"),
    }
    assert "use the docker runtime" in refusal(Layer(digest="d", apt=("graphviz",)))
    assert "choose another folder" in refusal(Layer(digest="d", files=("/usr/lib/x",)))


# Specs and builds


def test_the_spec_of_a_box() -> None:
    environment = Environment(
        name="x",
        env={"A": "1"},
        files={"/workspace/a": "in the box", "/etc/b": "in the layer"},
        setup=("make",),
        gpus=Gpus(count=2),
    )
    spec = box_spec(environment, replace(SPEC, env={"A": "0", "B": "2"}))
    assert spec.env == {"A": "1", "B": "2"}
    assert spec.files == {"/workspace/a": "in the box"}
    assert (spec.setup, spec.image) == (("make",), SPEC.image)
    assert spec.gpus is not None
    assert (spec.gpus.count, spec.gpus.shared) == (2, False)
    for path in ("relative", "/workspace/../etc/x"):
        with pytest.raises(InvalidRequest, match="not absolute"):
            box_spec(Environment(name="x", files={path: ""}), SPEC)


class SlowRuntime(Runtime):
    """Its boxes have a layer once `finish` is set; then it may fail."""

    name = "slow"

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.failure: EnvironmentFailed | None = None
        self.builds = 0

    async def interpreter(self, _image: str) -> Interpreter:
        return PYTHON

    async def with_layer(self, spec: BoxSpec, _layer: Layer, tell: Tell) -> BoxSpec:
        self.builds += 1
        tell("Installing things")
        await self.finish.wait()
        if self.failure:
            raise self.failure
        return replace(spec, image="made")

    async def create(self, spec: BoxSpec) -> Box:
        raise NotImplementedError

    async def boxes(self, owner: str) -> list[Box]:
        return []

    async def enforcement(self) -> Enforcement:
        return Enforcement()

    async def close(self) -> None:
        pass


APT = Environment(name="x", packages=Packages(apt=("tree",)))


def builds_of(
    runtime: Runtime, folder: Path, *, wait_s: float = 5, clock: Callable[[], float] | None = None
) -> Builds:
    store = LayerStore(folder, "test")
    return Builds(runtime, store, wait_s=wait_s, **({"clock": clock} if clock else {}))


async def test_all_wait_for_one_build_and_not_for_ever(tmp_path: Path) -> None:
    runtime = SlowRuntime()
    async with builds_of(runtime, tmp_path, wait_s=0.05) as builds:
        waiting = [asyncio.create_task(builds.ready(APT, SPEC)) for _ in range(3)]
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, EnvironmentBuilding)
            assert "environment x is being built" in error.message
            assert "(Installing things); retry in 5 s" in error.message
            assert error.details == {"retry_after_s": 5.0}
        runtime.finish.set()
        assert (await builds.ready(APT, SPEC)).image == "made"
        assert runtime.builds == 1


async def test_a_failed_build_is_told_with_its_log_and_tried_again_later(tmp_path: Path) -> None:
    runtime, now = SlowRuntime(), [0.0]
    runtime.finish.set()
    runtime.failure = EnvironmentFailed("apt-get failed", log=["line 1", "no such package"])
    async with builds_of(runtime, tmp_path, clock=lambda: now[0]) as builds:
        for _ in range(2):
            with pytest.raises(EnvironmentFailed) as failed:
                await builds.ready(APT, SPEC)
            assert failed.value.message == (
                "environment x: apt-get failed: line 1 | no such package"
            )
            assert failed.value.details["log"] == ["line 1", "no such package"]
        assert runtime.builds == 1, "not at once again"
        first = failed.value.details["retry_after_s"]
        assert 5 <= first <= 10
        now[0] += first
        with pytest.raises(EnvironmentFailed) as failed:
            await builds.ready(APT, SPEC)
        assert failed.value.details["retry_after_s"] >= 10, "the pauses grow"
        now[0] += 20
        runtime.failure = None
        assert (await builds.ready(APT, SPEC)).image == "made"


async def test_what_boxes_of_a_runtime_cannot_have(tmp_path: Path) -> None:
    runtime = SlowRuntime()
    runtime.has_images = False
    async with builds_of(runtime, tmp_path) as builds:
        with pytest.raises(InvalidRequest, match="host's programs, not an image"):
            await builds.ready(Environment(name="y", image="node:20"), SPEC)
        with pytest.raises(InvalidRequest, match=r"says where its pods run.*provider kubernetes"):
            await builds.ready(Environment(name="p", pods=Pods(priority_class="high")), SPEC)
        with pytest.raises(InvalidRequest, match="needs 1 GPU, and this machine has none"):
            await builds.ready(Environment(name="z", gpus=Gpus()), SPEC)
