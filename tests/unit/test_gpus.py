"""Which GPUs a new box gets."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from sandbox_sdk.protocol.errors import Capacity, InvalidRequest
from sandbox_server.registry.environments import Environment, Gpus
from sandbox_server.runtime.base import BoxSpec, GpuRequest
from sandbox_server.runtime.docker.config import BoxImage, container_config
from sandbox_server.runtime.gpus import GpuUse, choose, devices, present


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    names = ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvme0", "null"]
    for name in names:
        (tmp_path / name).touch()
    return tmp_path


def test_those_of_the_machine(dev: Path, tmp_path: Path) -> None:
    assert present(dev) == [0, 1, 10]
    assert present(tmp_path / "none") == []
    found = devices(GpuUse((1, 10), shared=False), dev)
    assert [Path(path).name for path in found] == [
        "nvidia1",
        "nvidia10",
        "nvidiactl",
        "nvidia-uvm",
    ]


def test_a_gpu_has_one_box() -> None:
    first = choose([0, 1], [], GpuRequest(count=1))
    second = choose([0, 1], [first], GpuRequest(count=1))
    assert {*first.numbers, *second.numbers} == {0, 1}
    with pytest.raises(Capacity, match="0 of 2 GPUs are free") as full:
        choose([0, 1], [first, second], GpuRequest(count=1))
    assert full.value.details["retry_after_s"] > 0
    with pytest.raises(Capacity, match="1 of 2 GPUs are free, and the environment needs 2"):
        choose([0, 1], [first], GpuRequest(count=2))


def test_shared_ones_are_spread_and_kept_apart_from_others() -> None:
    own = GpuUse((0,), shared=False)
    shared = GpuRequest(count=1, shared=True)
    first = choose([0, 1, 2], [own], shared)
    second = choose([0, 1, 2], [own, first], shared)
    third = choose([0, 1, 2], [own, first, second], shared)
    assert [use.numbers for use in (first, second, third)] == [(1,), (2,), (1,)]
    with pytest.raises(Capacity):
        choose([0, 1, 2], [own, first, second, third], GpuRequest(count=1))


@pytest.mark.parametrize(
    ("there", "says"), [([], "needs 2 GPUs, and this machine has none"), ([0], "has 1")]
)
def test_a_machine_that_has_too_few(there: list[int], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        choose(there, [], GpuRequest(count=2))


@pytest.mark.parametrize("use", [GpuUse((0, 3), shared=False), GpuUse((2,), shared=True)])
def test_what_a_box_has_is_read_back_from_its_record(use: GpuUse) -> None:
    assert GpuUse.parse(str(use)) == use


def test_a_container_gets_the_devices_that_were_chosen() -> None:
    made = container_config(
        BoxSpec(owner="o"),
        box_id="b",
        created_at=0,
        image=BoxImage(name="i"),
        gpus=GpuUse((0, 3), shared=False),
    )
    (request,) = made["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["0", "3"]
    assert made["Labels"]["sandbox.gpus"] == "0,3"


def test_a_number_alone_is_the_count() -> None:
    assert Environment.model_validate({"name": "A", "gpus": 2}).gpus == Gpus(count=2)
    with pytest.raises(ValidationError):
        Environment.model_validate({"name": "A", "gpus": True})
