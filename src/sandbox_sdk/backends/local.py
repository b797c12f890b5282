"""LocalBackend: sandboxes made by this process, without a server and without a port."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack

from sandbox_sdk import plugins
from sandbox_sdk.backends.crossing import Crossing
from sandbox_sdk.background import background
from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import NetworkMode
from sandbox_sdk.protocol.sandboxes import Sandboxes


class LocalSettings(TypedDict, total=False):
    """Settings of a local service; those left out come from SANDBOX_… in the environment. Sizes are
    bytes or "512m", durations seconds or "30m". docs/configuration.md explains each."""

    runtime: str
    providers: Sequence[str]
    image: str
    environments: dict[str, str]
    docker_runtime: str
    e2b_api_key: str
    e2b_api_url: str
    e2b_sandbox_url: str
    e2b_domain: str
    e2b_template: str
    kubernetes_kubeconfig: str
    kubernetes_namespace: str
    kubernetes_runtime_class: str
    kubernetes_node_selector: dict[str, str]
    kubernetes_tolerations: Sequence[dict[str, Any]]
    kubernetes_priority_class: str
    kubernetes_pull_secret: str
    kubernetes_requests: float
    kubernetes_placement: float | str
    kubernetes_eviction: float | str
    kubernetes_stream: str
    kubernetes_warm_pool: int
    memory_limit: int | str
    cpu_limit: float
    pids_limit: int
    disk_limit: int | str
    max_memory: int | str
    max_cpus: float
    max_pids: int
    max_disk: int | str
    network: NetworkMode
    max_network: NetworkMode
    network_allow: str | Sequence[str]
    network_presets: str | Path
    network_connections: int
    network_bytes: int | str
    network_rate: int | str
    idle_timeout: float | str
    command_timeout: float | str
    max_sessions: int
    total_memory: int | str
    output_limit: int | str
    max_upload: int | str
    policy: str
    policies: dict[str, str]
    registry: str | Path
    audit_log: str | Path
    audit_commands: Literal["text", "hash", "off"]
    audit_full: Literal["refuse", "continue"]
    audit_size: int | str
    audit_files: int
    state_dir: str | Path
    destroy_on_exit: bool
    endless_commands: bool
    pool_size: int
    min_pool_size: int
    max_pool_size: int
    artifact_quota: int | str
    artifact_retention: float | str
    checkpoints: str
    checkpoint_quota: int | str
    undo_quota: int | str
    checkpoint_retention: float | str
    volume_size: int | str
    volume_quota: int | str
    bind_folders: str | Sequence[str]
    disk_pool: bool
    usage_days: int
    usage_detail_days: int
    prices: str
    budgets: str
    history_retention: float | str
    history_sessions: int
    history_commands: int


class LocalService(Protocol):
    """This process's handle on the local service. Lives in the background loop."""

    users: int

    async def place(self) -> Sandboxes:
        """Where calls go now. Raises the error that kept the service from starting."""
        ...

    async def close(self) -> None: ...


class LocalBackend(Crossing):
    """The sandboxes of this machine's user.

    The service starts with the first client that uses it and stops with the last. All clients of a
    process share it, whatever loop or thread they are in, and so do other processes of the same
    user: one of them runs it, and when that one ends, another takes over. The sandbox of a thread
    outlives the process, until its idle timeout: a program that is run again finds its files.

    Raises RuntimeUnavailable if this machine can make no box, or the server part is not installed;
    InvalidRequest for a setting that is wrong, or that cannot have any effect here.
    """

    same_machine = True

    def __init__(self, **settings: Unpack[LocalSettings]) -> None:
        for name in settings.keys() - LocalSettings.__annotations__.keys():
            near = did_you_mean(name, LocalSettings.__annotations__)
            raise TypeError(f"LocalBackend has no setting {name!r}{near and f'; {near}'}")
        self._background = background()
        self._settings = settings
        self._shared: LocalService | None = None
        self._users = 0

    def __repr__(self) -> str:
        return f"<LocalBackend {self._shared or 'not open'}>"

    async def __aenter__(self) -> Self:
        await self._background.cross(self._enter)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._background.cross(self._leave)

    async def _enter(self) -> None:
        self._users += 1
        try:
            if self._shared is None:
                self._shared = _service(self._settings)
                self._shared.users += 1
            await self._shared.place()
        except BaseException:
            await self._leave()
            raise

    async def _leave(self) -> None:
        self._users = max(self._users - 1, 0)
        if self._users == 0 and self._shared is not None:
            shared, self._shared = self._shared, None
            shared.users -= 1
            if shared.users == 0:
                await shared.close()

    async def _place(self) -> Sandboxes:
        if self._shared is None:
            raise RuntimeError("LocalBackend is not open: pass it to a client, or use `async with`")
        return await self._shared.place()


def _service(settings: LocalSettings) -> LocalService:
    """This process's service with these settings. Raises RuntimeUnavailable, InvalidRequest."""
    try:
        host = plugins.load(plugins.LOCAL, "host")
    except (ImportError, LookupError) as exc:
        raise RuntimeUnavailable(
            f"local sandboxes need `pip install agent-sandbox[server]` ({exc}); or set SANDBOX_URL"
            " to use a server"
        ) from exc
    service: LocalService = host(**settings)
    return service
