"""Boxes as containers of a Docker engine, run by runc or by gVisor."""

from sandbox_server.runtime.docker.runtime import DISK_FOLDER, DockerBox, DockerRuntime
from sandbox_server.runtime.registry import RuntimeOptions

__all__ = ["DISK_FOLDER", "DockerBox", "DockerRuntime", "make"]


def make(options: RuntimeOptions) -> DockerRuntime:
    """Entry point in the group agent_sandbox.runtimes."""
    return DockerRuntime(
        options.docker_url,
        engine_runtime=options.engine_runtime,
        disk_folder=options.disk_folder or DISK_FOLDER,
        state_dir=options.state_dir,
        metrics=options.metrics,
    )
