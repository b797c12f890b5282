"""Which runtime to use on this machine."""

from __future__ import annotations

import asyncio

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.base import Runtime
from sandbox_server.runtime.registry import AUTO, RuntimeOptions, make_runtime

_ANSWER_S = 2.0


async def choose(name: str, options: RuntimeOptions) -> tuple[Runtime, str]:
    """A runtime and the reason for it, in words for a log.

    auto is docker where an engine answers, else bubblewrap; with an engine_runtime, which is wanted
    for its isolation, it is docker and nothing less. Raises InvalidRequest for an unknown name, and
    RuntimeUnavailable where docker is asked for and cannot be used from here at all.
    """
    if name != AUTO:
        return make_runtime(name, options), f"{name}, as configured"
    try:
        docker = make_runtime("docker", options)
        engine = await _answering(docker)
    except RuntimeUnavailable as exc:
        if options.engine_runtime:
            raise RuntimeUnavailable(
                f"SANDBOX_DOCKER_RUNTIME={options.engine_runtime} needs docker boxes: {exc.message}"
            ) from exc
        return make_runtime("bubblewrap", options), f"bubblewrap, because {exc.message}"
    return docker, f"docker, because an engine answers: {engine}"


async def _answering(runtime: Runtime) -> str:
    """What makes the boxes, in a few words; where it does not answer, the runtime is closed."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await runtime.about()
    except TimeoutError:
        await runtime.close()
        message = f"{runtime!r} did not answer within {_ANSWER_S:g} s"
        raise RuntimeUnavailable(message) from None
    except BaseException:
        await runtime.close()
        raise
