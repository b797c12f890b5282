"""What entries name, and whether it is there; and what a schema of one entry cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sandbox_sdk.integrations.arguments import ALL as OUR_TOOLS
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S
from sandbox_sdk.units import seconds, size_bytes
from sandbox_server.policy.rulefile import PolicyError, built_in, read_rules
from sandbox_server.registry.agents import Agent, Prompt, Tool
from sandbox_server.registry.entries import Problem, near
from sandbox_server.registry.environments import BoxLimits, Environment
from sandbox_server.registry.folder import Found, ReadEntry
from sandbox_server.registry.parameters import wrong_schema
from sandbox_server.registry.prompts import PLACEHOLDERS, placeholders
from sandbox_server.registry.templates import misplaced
from sandbox_server.registry.templates import placeholders as parameters_in

_UNITS: dict[str, Callable[[str], float]] = {
    "memory": size_bytes,
    "disk": size_bytes,
    "command_timeout": seconds,
    "idle_timeout": seconds,
}
_MADE_OF = ("image", "dockerfile", "template")


def wrong_references(found: Found) -> Iterator[Problem]:
    for entries in found.entries.values():
        for entry in entries.values():
            match entry.value:
                case Environment():
                    yield from _environment(entry, entry.value)
                case Tool():
                    yield from _tool(entry, entry.value)
                case Prompt():
                    yield from _prompt(entry, entry.value)
                case Agent():
                    yield from _agent(entry, entry.value, found)


def _environment(entry: ReadEntry, value: Environment) -> Iterator[Problem]:
    made_of = [name for name in _MADE_OF if getattr(value, name) is not None]
    if len(made_of) > 1:
        yield entry.problem(
            (made_of[1],), f"{made_of[1]}: there is {made_of[0]} too; give one of them"
        )
    if value.dockerfile is not None and not Path(value.dockerfile).is_file():
        yield entry.problem(("dockerfile",), f'dockerfile: no file "{value.dockerfile}"')
    if value.allow is not None and value.network not in ("allowlist", "open"):
        yield entry.problem(("allow",), "allow: has an effect with `network: allowlist` alone")
    yield from _limits(entry, value.limits)
    yield from _policy(entry, value.policy)


def _limits(entry: ReadEntry, limits: BoxLimits) -> Iterator[Problem]:
    for name, read in _UNITS.items():
        given = getattr(limits, name)
        try:
            wrong = given is not None and (read(given) if isinstance(given, str) else given) <= 0
            why = "more than 0 is needed" if wrong else ""
        except ValueError as exc:
            why = str(exc)
        if why:
            yield entry.problem(("limits", name), f"limits.{name}: {why}")


def _policy(entry: ReadEntry, policy: str | None) -> Iterator[Problem]:
    if policy is None:
        return
    try:
        read_rules(policy)
    except PolicyError as exc:
        given = entry.located.value["policy"]
        known = near(given, built_in())
        yield entry.problem(("policy",), f'policy: no policy "{given}"{known}; {exc}')


def _tool(entry: ReadEntry, tool: Tool) -> Iterator[Problem]:
    if tool.name in OUR_TOOLS:
        yield entry.problem(("name",), f'name: "{tool.name}" is one of our own tools')
    if (tool.command is None) == (tool.code is None):
        yield entry.problem((), "a tool has a command or code: give one of them")
    if (tool.code is None) != (tool.language is None):
        yield entry.problem(("language",), "language: code needs one, a command has none")
    if tool.stdin is not None and tool.command is None:
        yield entry.problem(("stdin",), "stdin: only a command has one")
    yield from _timeout(entry, tool.timeout)
    if wrong := wrong_schema(tool.parameters):
        path, what = wrong
        where = ".".join(map(str, ("parameters", *path)))
        yield entry.problem(("parameters", *path), f"{where}: {what}")
    properties = tool.parameters.get("properties", {})
    yield from _template(entry, tool, properties if isinstance(properties, dict) else {})


def _timeout(entry: ReadEntry, timeout: str | float | None) -> Iterator[Problem]:
    try:
        given = seconds(timeout) if isinstance(timeout, str) else timeout
    except ValueError as exc:
        yield entry.problem(("timeout",), f"timeout: {exc}")
        return
    if given is not None and not 0 < given <= MAX_TIMEOUT_S:
        yield entry.problem(
            ("timeout",), f"timeout: more than 0 and at most {MAX_TIMEOUT_S:g} seconds"
        )


def _template(entry: ReadEntry, tool: Tool, properties: dict[str, Any]) -> Iterator[Problem]:
    for wrong in misplaced(tool.command or "", properties):
        name = re.search(r'no parameter "(.*)"', wrong.what)
        hint = near(name[1], properties) if name else ""
        place = {"text": tool.command or "", "offset": wrong.offset}
        yield entry.problem(("command",), f"command: {wrong.what}{hint}", **place)  # type: ignore[arg-type]
    for offset, named in parameters_in(tool.stdin or ""):
        if named not in properties:
            what = f'stdin: no parameter "{named}"{near(named, properties)}'
            yield entry.problem(("stdin",), what, text=tool.stdin or "", offset=offset)


def _prompt(entry: ReadEntry, prompt: Prompt) -> Iterator[Problem]:
    for offset, name in placeholders(prompt.text):
        if name not in PLACEHOLDERS:
            what = (
                f'text: no placeholder "{{{name}}}"{near(name, PLACEHOLDERS)}; write {{{{ for a'
                " brace"
            )
            yield entry.problem(("text",), what, text=prompt.text, offset=offset)


def _agent(entry: ReadEntry, agent: Agent, found: Found) -> Iterator[Problem]:
    for at, name in enumerate(agent.tools):
        if name not in OUR_TOOLS and not found.has("tools", name):
            known = near(name, [*OUR_TOOLS, *found.entries["tools"]])
            yield entry.problem(("tools", at), f'tools: no tool "{name}"{known}')
        elif name in agent.tools[:at]:
            yield entry.problem(("tools", at), f'tools: "{name}" stands here twice')
    for field, kind in (("environment", "environments"), ("prompt", "prompts")):
        name = getattr(agent, field)
        if name is not None and not found.has(kind, name):
            known = near(name, found.entries[kind])
            yield entry.problem((field,), f'{field}: no {field} "{name}"{known}')
    yield from _limits(entry, agent.limits)
    yield from _policy(entry, agent.policy)
