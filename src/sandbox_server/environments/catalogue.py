"""The environments that a server knows by name, put together from its registry and its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import LimitValues
from sandbox_server.environments.builds import Builds
from sandbox_server.environments.layers import LayerStore
from sandbox_server.pool.source import PooledEnvironment
from sandbox_server.registry.environments import Environment, Kernels
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.runtime.base import Runtime
from sandbox_server.runtime.box_network import BoxNetwork

if TYPE_CHECKING:
    from sandbox_server.settings import Settings


def of_settings(
    images: Mapping[str, str], policies: Mapping[str, str], *, has_images: bool
) -> Iterator[Environment]:
    """SANDBOX_ENVIRONMENTS and SANDBOX_POLICIES: an image and a policy by name. Where boxes have no
    image, a name stands for its policy alone."""
    for name, image in images.items():
        policy = policies.get(name)
        if has_images or policy is not None:
            # Names of settings are not checked, as those in files are.
            yield Environment.model_construct(
                name=name, image=image if has_images else None, policy=policy
            )


class Catalogue(Mapping[str, Environment]):
    """Environments by name; names in another case are found too."""

    def __init__(self, environments: Iterable[Environment] = ()) -> None:
        """Of two with one name, the later counts."""
        self._known: dict[str, Environment] = {}
        self._names: dict[str, str] = {}
        for environment in environments:
            older = self._names.get(environment.name.lower())
            if older is not None:
                self._known.pop(older, None)
            self._names[environment.name.lower()] = environment.name
            self._known[environment.name] = environment

    def __repr__(self) -> str:
        return f"<Catalogue {', '.join(self) or 'empty'}>"

    def __getitem__(self, name: str) -> Environment:
        return self._known[self._names[name.lower()]]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def name_of(self, name: str) -> str:
        """The name as it is declared; an unknown one as it is."""
        return self._names.get(name.lower(), name)

    def find(self, name: str) -> Environment:
        """Raises InvalidRequest, with the names there are."""
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self)
            raise InvalidRequest(f"unknown environment {name!r}: there are {known}") from None


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
