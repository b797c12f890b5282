"""llm-sandbox from PyPI, on the same engine, with the same image and limits."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.contestants import SCRIPT, Command, WrongAnswer
from bench.stage import IMAGE, LABEL, Stage
from sandbox_server.runtime.base import Limits


def installed() -> bool:
    return importlib.util.find_spec("llm_sandbox") is not None


@asynccontextmanager
async def session(stage: Stage) -> AsyncIterator[Command]:
    """A new session; what is given runs a command in it."""
    made = _new_session(stage)
    await asyncio.to_thread(made.open)
    try:
        yield lambda: asyncio.to_thread(_run, made)
    finally:
        await asyncio.to_thread(made.close)


def _new_session(stage: Stage) -> Any:
    from llm_sandbox import SandboxSession  # type: ignore[import-untyped]

    limits = Limits()
    return SandboxSession(
        lang="python",
        image=IMAGE,
        keep_template=True,
        skip_environment_setup=True,
        workdir="/workspace",
        runtime_configs={
            "command": ["sleep", "3600"],
            "stop_signal": "SIGKILL",  # `sleep` would keep its end waiting for 10 s.
            "user": "1000",
            "network_mode": "none",
            "mem_limit": limits.memory_bytes,
            "nano_cpus": round(limits.cpus * 1e9),
            "pids_limit": limits.pids,
            "labels": {LABEL: stage.run_id},
        },
    )


def _run(made: Any) -> None:
    answer = made.execute_command(SCRIPT)
    if (answer.exit_code, answer.stdout) != (0, "hi\n"):
        raise WrongAnswer(repr(answer))
