"""RemoteBackend: Sandboxes over HTTP. The only place that knows httpx."""

from sandbox_sdk.backends.remote.backend import RemoteBackend, RemoteTenants

__all__ = ["RemoteBackend", "RemoteTenants"]
