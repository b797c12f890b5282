"""Several commands in one sandbox, in order or all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import anyio

from sandbox_sdk.blocking import blocking
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.documented import takes_options
from sandbox_sdk.options import CommandOptions
from sandbox_sdk.protocol.models import ExecuteResult
from sandbox_sdk.sync import SandboxClient


class AsyncBatchSandboxClient(AsyncSandboxClient):
    """An AsyncSandboxClient that runs lists of commands."""

    @takes_options(without=["idempotency_key"])
    async def execute_batch(
        self,
        commands: Sequence[str],
        *,
        stop_on_error: bool = False,
        parallel: bool = False,
        **options: Unpack[CommandOptions],
    ) -> list[ExecuteResult]:
        """Run commands in one session and return their results in order.

        With stop_on_error the first exit code other than 0 is the last result. In parallel they
        run at once, each from the state as it is at its start, and all to their ends.
        """
        if stop_on_error and parallel:
            raise ValueError(
                "stop_on_error and parallel: commands that run at once cannot stop one another;"
                " choose one"
            )
        if options.get("idempotency_key") is not None:
            raise ValueError(
                "idempotency_key is for one command, and a batch has several; use execute()"
            )
        if parallel:
            return await self._at_once(commands, options)
        results = []
        for command in commands:
            results.append(await self.execute(command, **options))
            if stop_on_error and results[-1].exit_code != 0:
                break
        return results

    async def _at_once(
        self, commands: Sequence[str], options: CommandOptions
    ) -> list[ExecuteResult]:
        results: dict[int, ExecuteResult] = {}

        async def run(place: int, command: str) -> None:
            results[place] = await self.execute(command, **options)

        try:
            async with anyio.create_task_group() as group:
                for place, command in enumerate(commands):
                    group.start_soon(run, place, command)
        except* Exception as failures:
            raise failures.exceptions[0] from None
        return [results[place] for place in range(len(commands))]


class BatchSandboxClient(SandboxClient):
    """A SandboxClient that runs lists of commands.

    >>> with BatchSandboxClient() as sandbox:
    ...     results = sandbox.execute_batch(["x=20", "echo $((x+1))"])
    ...     [result.output for result in results]
    ['', '21\\n']
    """

    _kind = AsyncBatchSandboxClient

    execute_batch = blocking(AsyncBatchSandboxClient.execute_batch)
