"""Boxes as containers of a Docker engine, run by runc or by gVisor."""

from sandbox_server.runtime.docker.runtime import DockerBox, DockerRuntime

__all__ = ["DockerBox", "DockerRuntime"]
