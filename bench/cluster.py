"""A namespace of a bench's own, the operator's kubectl, and what parts of the cluster cost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import cpu, processes

CONFIG = os.environ.get("SANDBOX_TEST_CLUSTER") or os.environ.get("KUBECONFIG", "")
_PROGRAMS = {"kube-apiserver": "the API server", "kubelet": "the kubelets",
             "containerd": "containerd", "containerd-shim-runc-v2": "containerd"}  # fmt: skip
_ABOUT = re.compile(r"apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>[\d.e+]+)")
_OURS = ("pods", "configmaps", "networkpolicies")


class Namespace:
    def __init__(self, name: str) -> None:
        self.name = name

    async def kubectl(self, *words: str) -> bytes:
        """Raises ProgramFailed."""
        return await processes.output_of(
            "kubectl", "--kubeconfig", CONFIG, "--namespace", self.name, *words
        )

    async def json(self, *words: str) -> Any:
        return json.loads(await self.kubectl(*words, "-o", "json"))

    async def requests(self) -> float:
        """What the API server has been asked about objects as ours, by anybody, so far."""
        text = (await self.kubectl("get", "--raw", "/metrics")).decode()
        return sum(
            float(found["count"])
            for found in _ABOUT.finditer(text)
            if any(f'resource="{kind}"' in found["labels"] for kind in _OURS)
            and 'verb="WATCH"' not in found["labels"]
        )


@asynccontextmanager
async def namespace() -> AsyncIterator[Namespace]:
    made = Namespace(f"bench-{uuid.uuid4().hex[:8]}")
    await made.kubectl("create", "namespace", made.name)
    try:
        yield made
    finally:
        await made.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        await made.kubectl("delete", "namespace", made.name, "--wait=false")


class Costs:
    """CPU seconds of this process and of the parts of the cluster that run on this machine."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._at = dict(_spent())

    def since(self) -> tuple[float, dict[str, float]]:
        """How long, and the seconds of each part since this was made."""
        took = time.perf_counter() - self._began
        spent: dict[str, float] = {}
        for (part, pid), now in dict(_spent()).items():
            before = self._at.get((part, pid))
            if before is not None:
                spent[part] = spent.get(part, 0.0) + now - before
        return took, spent


def _spent() -> Iterator[tuple[tuple[str, int], float]]:
    yield ("this process", os.getpid()), cpu.of_process(os.getpid())
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                name = Path(os.fsdecode((folder / "cmdline").read_bytes().split(b"\0")[0])).name
                if part := _PROGRAMS.get(name):
                    yield (part, int(folder.name)), cpu.of_process(int(folder.name))
