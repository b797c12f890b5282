"""What a box costs a computation on a GPU: a matrix product inside of one and outside, in turns.

python -m bench.gpus FOLDER

FOLDER has torch, for the python3 of boxes: it is a layer of the box, as `packages: {pip: [torch]}`
of an environment would make one, and on PYTHONPATH outside. Writes docs/benchmarks/gpus.md.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

from bench import machine
from bench.measure import percentile
from sandbox_server import logs
from sandbox_server.runtime.base import BoxSpec, GpuRequest
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.layers import PYTHON_PACKAGES
from sandbox_server.runtime.warden.client import WardenBox

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "gpus.md"
ROUNDS = 5
SIZE = 8192
PROGRAM = f"""
import json, os, time
began = time.perf_counter()
import torch
imported = time.perf_counter()
one = torch.randn({SIZE}, {SIZE}, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
first = time.perf_counter()
for _ in range(20):
    one @ one
torch.cuda.synchronize()
start = time.perf_counter()
for _ in range(200):
    one @ one
torch.cuda.synchronize()
product_s = (time.perf_counter() - start) / 200
host = torch.empty(256 << 20, dtype=torch.uint8)
start = time.perf_counter()
for _ in range(8):
    host.to("cuda")
torch.cuda.synchronize()
copy_s = (time.perf_counter() - start) / 8
print(json.dumps({{
    "TFLOP/s": 2 * {SIZE}**3 / product_s / 1e12,
    "GB/s to the GPU": (256 << 20) / copy_s / 1e9,
    "seconds to the first tensor": first - imported,
    "torch": torch.__version__, "gpu": torch.cuda.get_device_name(0),
    "gpus": torch.cuda.device_count(), "user": os.getuid(),
}}))
"""
MEASURED = ("TFLOP/s", "GB/s to the GPU", "seconds to the first tensor")
Seen = dict[str, float | str | int]


async def main(folder: Path) -> None:
    outside, inside = await _measured(folder)
    page = _page(outside, inside)
    print(page)
    PAGE.write_text(page)


async def _measured(folder: Path) -> tuple[list[Seen], list[Seen]]:
    spec = BoxSpec(owner=f"bench-gpus-{uuid.uuid4().hex[:8]}", gpus=GpuRequest(count=1))
    limits = replace(spec.limits, memory_bytes=32 << 30, cpus=4, pids=1024, disk_bytes=4 << 30)
    spec = replace(spec, limits=limits, layers={PYTHON_PACKAGES: str(folder)})
    outside, inside = [], []
    with tempfile.TemporaryDirectory(prefix="bench-gpus-") as state:
        os.chmod(state, 0o711)
        async with BubblewrapRuntime(state_dir=Path(state)) as runtime:
            box = await runtime.create(spec)
            try:
                assert isinstance(box, WardenBox)
                for _ in range(ROUNDS):
                    outside.append(await _outside(folder))
                    inside.append(await _inside(box))
            finally:
                await box.destroy()
    return outside, inside


async def _outside(folder: Path) -> Seen:
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/python3", "-c", PROGRAM, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    output, _ = await process.communicate()
    found: Seen = json.loads(output)
    return found


async def _inside(box: WardenBox) -> Seen:
    async with box.agent() as agent:
        command = f"PYTHONPATH={PYTHON_PACKAGES} python3 -"
        done = await agent.run(command, stdin=PROGRAM.encode(), timeout_s=300)
    if done.exit_code:
        raise SystemExit(done.output)
    found: Seen = json.loads(done.output.splitlines()[-1])
    return found


def _page(outside: list[Seen], inside: list[Seen]) -> str:
    rows = []
    for name in MEASURED:
        out, box = (percentile([float(s[name]) for s in each], 50) for each in (outside, inside))
        rows.append(f"| {name} | {out:.2f} | {box:.2f} | {box / out:.3f} |")
    about = machine.host() | {"GPU": str(inside[0]["gpu"]), "torch": str(inside[0]["torch"])}
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return "\n".join([
        "# What a box costs a computation on a GPU",
        "",
        f"Measured on {today} by `python -m bench.gpus`;"
        " [environments.md](../boxes/environments.md)"
        " says how a box gets a GPU.",
        "",
        f"A product of two matrices of {SIZE} by {SIZE} (bfloat16, torch), 200 times, and copies of"
        f" 256 MiB from ordinary memory, outside and inside of an embedded box in turns, medians of"
        f" {ROUNDS} rounds. The box has one GPU, runs as user {inside[0]['user']} and sees"
        f" {inside[0]['gpus']} GPU.",
        "",
        "|  | outside | in a box | ratio |",
        "| --- | ---: | ---: | ---: |",
        *rows,
        "",
        *machine.table(about),
    ])  # fmt: skip


if __name__ == "__main__":
    logs.configure(form="auto", level="error")
    asyncio.run(main(Path(sys.argv[1]).resolve()))
