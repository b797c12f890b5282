"""Agents and tools of the registry, as callers see them."""

from __future__ import annotations

from sandbox_sdk.integrations.arguments import ALL as OUR_TOOLS
from sandbox_sdk.integrations.arguments import Undo, our_tool
from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.registry.agents import Agent, SessionAgent, Tool
from sandbox_server.registry.entries import Registry
from sandbox_server.registry.environments import BoxLimits
from sandbox_server.registry.parameters import schema_of
from sandbox_server.registry.prompts import prompt_of
from sandbox_server.sessions.making import SessionOptions
from sandbox_server.sessions.registry import Record, Status
from sandbox_server.sessions.rules import given_limits

_NOT_KEPT = {"thread_id", "env", "checkpoint_id"}
"""Fields of a request that the next session of the thread does not have."""


def session_options(
    request: models.CreateSessionRequest, registry: Registry, tenant: str, *, session_id: str | None
) -> SessionOptions:
    """What a new session is to have: what the request says, then its agent, then its environment.
    Raises InvalidRequest for an unknown agent."""
    agent = None if request.agent is None else registry.agent(request.agent, tenant)
    environment = request.environment or (agent.environment if agent else None)
    declared = registry.environments.get(environment or "")
    if declared is not None and declared.persist:
        request = request.model_copy(update={"persist": True})
    if agent is not None and Undo.name in agent.tools:
        request = request.model_copy(update={"history": True})
    sources = [each for each in (agent, declared) if each]
    of_agent = agent.limits if agent is not None else BoxLimits()
    return SessionOptions(
        environment=environment,
        env=request.env,
        idle_timeout_s=request.idle_timeout_s or of_agent.idle_timeout,
        lifetime_s=request.lifetime_s,
        provider=request.provider or (agent.provider if agent else None),
        limits={**given_limits(of_agent), **request.limits.given()},
        network=request.network,
        egress_rules=request.egress_rules,
        session_id=session_id,
        made_for=None if agent is None else registry.for_session(agent, environment),
        policy=next((each.policy for each in sources if each.policy), None),
        asked=request.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_KEPT),
        volumes=request.volumes,
    )


def options_as_before(before: Record | None, registry: Registry, tenant: str) -> SessionOptions:
    """For a session that begins by itself: those of the one that its thread lost. After a cleanup
    there is nothing to go on with. Raises InvalidRequest if what it had is no longer there."""
    if before is None or before.status == Status.CLEANED or not before.asked:
        return SessionOptions()
    try:
        request = models.checked(models.CreateSessionRequest, **before.asked)
        return session_options(request, registry, tenant, session_id=None)
    except InvalidRequest as exc:
        raise InvalidRequest(
            f"the last session of thread {before.thread_id!r} cannot be made again: {exc.message};"
            " call create_session with what it shall have"
        ) from None


def agent_info(agent: SessionAgent, limits: models.Limits) -> models.AgentInfo:
    tools = [tool_info(name, agent.tool(name)) for name in agent.tools if _is_there(agent, name)]
    return models.AgentInfo(name=agent.name, prompt=prompt_of(agent, limits, tools), tools=tools)


def _is_there(agent: SessionAgent, name: str) -> bool:
    """A later version may have given it a tool of ours that this one does not know."""
    return name in OUR_TOOLS or agent.tool(name) is not None


def tool_info(name: str, declared: Tool | None) -> models.ToolInfo:
    """declared: None for one of ours."""
    if declared is None:
        return our_tool(name)
    return models.ToolInfo(
        name=name, description=declared.description, parameters=schema_of(declared)
    )


def registry_list(registry: Registry, tenant: str) -> models.RegistryList:
    return models.RegistryList(
        agents=[_agent_entry(agent, registry) for agent in registry.agents_of(tenant).values()],
        tools=[tool_info(name, tool) for name, tool in registry.tools_of(tenant).items()],
        environments=[
            models.EnvironmentEntry(name=name, description=each.description)
            for name, each in registry.environments.items()
        ],
    )


def _agent_entry(agent: Agent, registry: Registry) -> models.AgentEntry:
    return models.AgentEntry(
        name=agent.name,
        description=agent.description,
        environment=agent.environment,
        tools=[tool_info(name, registry.tools.get(name)) for name in agent.tools],
    )
