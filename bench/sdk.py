"""What the SDK itself costs: its import, and a command through a client on top of the service."""

from __future__ import annotations

import sys
import time

from bench import processes
from bench import results as r
from bench.measure import time_ms
from bench.results import Results
from bench.stage import Stage
from sandbox_sdk import AsyncSandboxClient, LocalBackend, SandboxClient

_IMPORTS = {
    r.IMPORT_CLIENTS: "import sandbox_sdk",
    r.IMPORT_REMOTE: "from sandbox_sdk import RemoteBackend",
}
# As who only installs the SDK has it: httpx imports click and rich where they are installed.
_TIMED = (
    "import sys, time; sys.modules['click'] = None;"
    " t = time.perf_counter(); {}; print(1000 * (time.perf_counter() - t))"
)
_WARM_UP = 3


async def measure_sdk(stage: Stage, found: Results, *, imports: int, commands: int) -> None:
    for _ in range(imports + 1):
        for name, line in _IMPORTS.items():
            found.add(r.IMPORT, name, await _import_ms(line))
    for samples in found.samples[r.IMPORT.key].values():
        samples.pop(0)  # The first of all reads its files from disk.
    if r.BUBBLEWRAP in stage.runtimes:
        await _measure_clients(stage, found, count=commands)


async def _import_ms(line: str) -> float:
    async with processes.started(sys.executable, "-c", _TIMED.format(line)) as process:
        out, _ = await process.communicate()
    return float(out)


async def _measure_clients(stage: Stage, found: Results, *, count: int) -> None:
    backend = LocalBackend(runtime="bubblewrap", state_dir=stage.state_dir / "local")
    async with AsyncSandboxClient(backend=backend) as sandbox:
        for number in range(_WARM_UP + count):
            took_ms = await time_ms(lambda: sandbox.execute("echo hi"))
            if number >= _WARM_UP:
                found.add(r.CLIENT, "AsyncSandboxClient", took_ms)
        with SandboxClient(sandbox.thread_id, backend=backend) as twin:
            for _ in range(count):
                start = time.perf_counter()
                twin.execute("echo hi")
                found.add(r.CLIENT, "SandboxClient", 1000 * (time.perf_counter() - start))
