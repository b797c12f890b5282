"""The environments of a server, put together from its registry and its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox_sdk.protocol.models import LimitValues
from sandbox_server.environments.builds import Builds
from sandbox_server.environments.catalogue import Catalogue, of_settings
from sandbox_server.environments.layers import LayerStore
from sandbox_server.pool import PooledEnvironment
from sandbox_server.registry.environments import Environment, Kernels
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.runtime.base import Runtime
from sandbox_server.runtime.box_network import BoxNetwork

if TYPE_CHECKING:
    from sandbox_server.settings import Settings


class LiveEnvironments(Mapping[str, Environment]):
    """The environments of the registry as it is now, and those of the settings, which count where
    both have a name."""

    def __init__(self, registry: LiveRegistry, settings: Settings, *, has_images: bool) -> None:
        self._registry = registry
        self._own = tuple(
            of_settings(settings.environments, settings.policies, has_images=has_images)
        )
        self._read = registry.current()
        self._catalogue = Catalogue([*self._read.environments.values(), *self._own])

    def __repr__(self) -> str:
        return f"<LiveEnvironments {', '.join(self)}>"

    def current(self) -> Catalogue:
        read = self._registry.current()
        if read is not self._read:
            self._catalogue = Catalogue([*read.environments.values(), *self._own])
            self._read = read
        return self._catalogue

    def __getitem__(self, name: str) -> Environment:
        return self.current()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.current())

    def __len__(self) -> int:
        return len(self.current())

    def name_of(self, name: str) -> str:
        """The name as it is declared; an unknown one as it is."""
        return self.current().name_of(name)

    def kernels_of(self, name: str | None) -> Kernels:
        """None is the usual environment."""
        found = self.get(name or "")
        return Kernels() if found is None else found.kernels


def open_builds(runtime: Runtime, state: Path) -> Builds:
    return Builds(runtime, LayerStore(state, runtime.name))


def pooled(
    environments: Mapping[str, Environment],
    builds: Builds,
    limits: Callable[[str], LimitValues | None] = lambda _: None,
    network: Callable[[str], BoxNetwork | None] = lambda _: None,
) -> Callable[[], dict[str, PooledEnvironment]]:
    """What the pools of the environments are made of, as they are declared when it is called.

    limits, network: those of an environment's boxes, where they are not the usual ones."""

    def now() -> dict[str, PooledEnvironment]:
        return {
            name: PooledEnvironment(
                declared=environment,
                ready=partial(builds.ready, environment),
                warm=environment.warm,
                limits=limits(name),
                network=network(name),
            )
            for name, environment in environments.items()
        }

    return now
