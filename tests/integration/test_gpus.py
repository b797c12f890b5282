"""Boxes with a GPU. Runs where there is one, with the driver alone: no package is needed."""

from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import Capacity
from sandbox_server.runtime import gpus
from sandbox_server.runtime.base import BoxSpec, GpuRequest
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.warden.client import WardenBox
from tests.contract.conftest import RUNTIMES, state_dir
from tests.run import run_owner

__all__ = ["state_dir"]

pytestmark = [
    pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here"),
    pytest.mark.skipif(not gpus.present(), reason="GPUs: this machine has no NVIDIA GPU"),
]

COUNT = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0, "cuInit"
count = ctypes.c_int()
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0, "cuCtxCreate"
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0, "cuMemAlloc"
assert cuda.cuMemsetD8_v2(memory, 7, ctypes.c_size_t(1 << 20)) == 0, "cuMemset"
back = ctypes.create_string_buffer(4)
assert cuda.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(4)) == 0, "cuMemcpy"
print(count.value, list(back.raw))
"""


async def test_a_box_computes_on_the_gpus_it_has_and_on_no_other(state_dir: Path) -> None:
    there = len(gpus.present())
    spec = BoxSpec(owner=run_owner("gpus"), deadman_s=300)
    spec = replace(spec, limits=replace(spec.limits, memory_bytes=4 << 30, cpus=2))
    async with BubblewrapRuntime(state_dir=state_dir) as runtime:
        first = await runtime.create(replace(spec, gpus=GpuRequest(count=1)))
        try:
            assert isinstance(first, WardenBox)
            async with first.agent() as agent:
                done = await agent.run("python3 -", stdin=COUNT.encode(), timeout_s=120)
                assert done.output == "1 [7, 7, 7, 7]\n"
            with pytest.raises(Capacity, match=f"{there - 1} of {there} GPUs are free"):
                await runtime.create(replace(spec, gpus=GpuRequest(count=there)))
        finally:
            await first.destroy()
        again = await runtime.create(replace(spec, gpus=GpuRequest(count=there)))
        await again.destroy()
        plain = await runtime.create(spec)
        try:
            assert isinstance(plain, WardenBox)
            async with plain.agent() as agent:
                assert (await agent.run("ls /dev | grep -c nvidia")).output == "0\n"
        finally:
            await plain.destroy()
