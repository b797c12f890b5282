"""The placeholders of prompts, and what they stand for in one session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from sandbox_sdk.integrations.presenting import limits_text, network_text, system_prompt
from sandbox_sdk.protocol.models import USER, WORKSPACE, Limits, ToolInfo
from sandbox_server.registry.agents import SessionAgent

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")
_Said = Callable[[SessionAgent, Limits, Sequence[ToolInfo]], str]


def _environment(agent: SessionAgent, _limits: Limits, _tools: Sequence[ToolInfo]) -> str:
    name = agent.environment or "the default one"
    about = agent.about_environment.strip().rstrip(".")
    return f"{name} ({about})" if about else name


def _tools(_agent: SessionAgent, _limits: Limits, tools: Sequence[ToolInfo]) -> str:
    return "\n".join(f"- {tool.name}: {tool.description.splitlines()[0]}" for tool in tools)


PLACEHOLDERS: dict[str, _Said] = {
    "agent": lambda agent, _limits, _tools: agent.name,
    "environment": _environment,
    "limits": lambda _agent, limits, _tools: limits_text(limits),
    "network": lambda _agent, limits, _tools: network_text(limits),
    "sandbox": lambda _agent, limits, _tools: system_prompt(limits),
    "tools": _tools,
    "user": lambda _agent, _limits, _tools: USER,
    "workspace": lambda _agent, _limits, _tools: WORKSPACE,
}


def placeholders(text: str) -> Iterator[tuple[int, str]]:
    """Offset and name of each; `{{` is a brace."""
    return ((found.start(), found[1]) for found in _PLACEHOLDER.finditer(text) if found[1])


def prompt_of(agent: SessionAgent, limits: Limits, tools: Sequence[ToolInfo]) -> str:
    """The prompt of an agent; without one of its own, what every model is told."""
    if agent.prompt is None:
        return system_prompt(limits)

    def said(found: re.Match[str]) -> str:
        name = found[1]
        # The records of a session may be of a version that knew more placeholders.
        known = PLACEHOLDERS.get(name or "")
        return known(agent, limits, tools) if known else found[0] if name else found[0][0]

    return _PLACEHOLDER.sub(said, agent.prompt).strip()
