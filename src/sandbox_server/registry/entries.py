"""Registry: everything that the files declare, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sandbox_sdk.nearest import nearest
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.registry.agents import Agent, KeptTool, Prompt, SessionAgent, Tool
from sandbox_server.registry.environments import Declared, Environment

KINDS: Mapping[str, type[Declared]] = {
    "environments": Environment,
    "tools": Tool,
    "prompts": Prompt,
    "agents": Agent,
}
"""By the name of their folder."""

_Entry = TypeVar("_Entry", bound=Declared)


@dataclass(frozen=True, order=True)
class Problem:
    """Something wrong with a file, in one line."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class RegistryError(ValueError):
    """A registry that cannot be used, with all its problems."""

    def __init__(self, problems: Collection[Problem]) -> None:
        self.problems = sorted(problems)
        super().__init__(self.summary())

    def summary(self) -> str:
        """The first problem, and how many more there are."""
        more = len(self.problems) - 1
        rest = f" (and {more} more: `sandbox registry check` lists them)" if more else ""
        return f"{self.problems[0]}{rest}"


def near(name: str, known: Collection[str]) -> str:
    """` (nearest: python)`, or nothing."""
    found = nearest(name, known)
    return f" (nearest: {', '.join(found)})" if found else ""


@dataclass(frozen=True)
class Registry:
    """Entries by name, checked: every name that one of them uses is there."""

    environments: Mapping[str, Environment] = field(default_factory=dict)
    tools: Mapping[str, Tool] = field(default_factory=dict)
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(found)} {kind}" for kind, found in self.by_kind())
        return f"<Registry {counts}>"

    def by_kind(self) -> Iterator[tuple[str, Mapping[str, Declared]]]:
        for kind in KINDS:
            yield kind, getattr(self, kind)

    def agents_of(self, tenant: str) -> dict[str, Agent]:
        return {name: each for name, each in self.agents.items() if _may(each, tenant)}

    def tools_of(self, tenant: str) -> dict[str, Tool]:
        return {name: each for name, each in self.tools.items() if _may(each, tenant)}

    def agent(self, name: str, tenant: str) -> Agent:
        """Raises InvalidRequest: the same for one of another tenant as for none at all."""
        return known(name, self.agents_of(tenant), "agent")

    def for_session(self, agent: Agent, environment: str | None) -> SessionAgent:
        """An agent with everything it names. environment: the one that its session has."""
        prompt = self.prompts[agent.prompt].text if agent.prompt is not None else None
        declared = [self.tools[name] for name in agent.tools if name in self.tools]
        about = self.environments.get(environment or "")
        return SessionAgent(
            name=agent.name,
            prompt=prompt,
            environment=environment,
            about_environment=about.description if about else "",
            tools=agent.tools,
            declared=tuple(KeptTool.model_validate(dict(tool)) for tool in declared),
        )


def known(name: str, entries: Mapping[str, _Entry], kind: str) -> _Entry:
    """Raises InvalidRequest with the nearest name and all that there are."""
    if name in entries:
        return entries[name]
    names = sorted(entries)
    there_are = f"there are: {', '.join(names)}" if names else "there is none"
    raise InvalidRequest(f"no {kind} {name!r}{near(name, names)}; {there_are}", known=names)


def _may(entry: Agent | Tool, tenant: str) -> bool:
    return not entry.tenants or tenant in entry.tenants
