"""The agents and declared tools of a fake backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox_sdk.integrations.arguments import ALL, USUAL, our_tool
from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import AgentEntry, AgentInfo, RegistryList, ToolAnswer, ToolInfo

ToolAnswering = Callable[[Mapping[str, Any]], ToolAnswer | str]
"""What a declared tool answers to its arguments."""


@dataclass(frozen=True)
class FakeTool:
    info: ToolInfo
    answering: ToolAnswering


class FakeRegistry:
    """Begins with the agents that every server has."""

    def __init__(self) -> None:
        self.tools: dict[str, FakeTool] = {}
        self._agents: dict[str, AgentInfo] = {}
        self.add_agent("code_executor", tools=USUAL)
        self.add_agent("shell", tools=("bash",))

    def add_agent(self, name: str, *, prompt: str = "", tools: Sequence[str] = USUAL) -> None:
        infos = [our_tool(n) if n in ALL else self.tools[n].info for n in tools]
        self._agents[name] = AgentInfo(name=name, prompt=prompt or f"You are {name}.", tools=infos)

    def agent(self, name: str) -> AgentInfo:
        """Raises InvalidRequest."""
        if name not in self._agents:
            near = did_you_mean(name, self._agents)
            there_are = ", ".join(sorted(self._agents))
            raise InvalidRequest(f"no agent {name!r}; {near} there are: {there_are}")
        return self._agents[name]

    def listed(self) -> RegistryList:
        return RegistryList(
            agents=[
                AgentEntry(name=agent.name, description=agent.prompt, tools=agent.tools)
                for agent in self._agents.values()
            ],
            tools=[tool.info for tool in self.tools.values()],
            environments=[],
        )

    def tool(self, name: str, agent: AgentInfo | None) -> FakeTool | None:
        """None for one of ours. Raises InvalidRequest."""
        names = [tool.name for tool in agent.tools] if agent else [*ALL, *self.tools]
        if name not in names:
            raise InvalidRequest(f"there is no tool {name!r}, only {', '.join(names)}")
        return self.tools.get(name)
