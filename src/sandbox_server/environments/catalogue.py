"""The environments that a server knows, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.registry.environments import Environment


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
