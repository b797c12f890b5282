"""What a worker needs to know of the runtimes that were opened: their boxes, limits and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sandbox_sdk.protocol import models
from sandbox_server.audit.log import AuditLog
from sandbox_server.environments.builds import Builds
from sandbox_server.environments.catalogue import pooled
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.network.egress import Subject, log_note
from sandbox_server.network.egress import facts_of as facts_of_note
from sandbox_server.network.modes import NetworkModes
from sandbox_server.network.networks import Networks
from sandbox_server.network.outbound import Note
from sandbox_server.network.presets import read_presets
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.source import Provider
from sandbox_server.registry.environments import Environment
from sandbox_server.runtime.base import Runtime
from sandbox_server.runtime.registry import ChosenRuntime
from sandbox_server.service import ServiceFacts
from sandbox_server.service.answers import network_limits
from sandbox_server.sessions.rules import SessionRules, limit_values
from sandbox_server.settings import Settings


def providers_of(
    settings: Settings,
    opened: Sequence[ChosenRuntime],
    owner: str,
    *,
    rules: SessionRules,
    environments: Mapping[str, Environment],
    builds: Mapping[str, Builds],
) -> list[Provider]:
    """Boxes of a runtime that lacks the network of the settings have none. builds: by provider."""
    spec = settings.box_spec(owner)
    return [
        Provider(
            name=each.name,
            runtime=each.runtime,
            spec=spec.on(rules.pool_network(None, each.name)),
            environments=pooled(
                environments,
                builds[each.name],
                rules.granted,
                partial(rules.pool_network, provider=each.name),
            ),
        )
        for each in opened
    ]


def pool_of(settings: Settings, runtime: Runtime) -> PoolSettings:
    """Hosted sandboxes cost money while they wait, so none is made ahead unless somebody asks."""
    asked = settings.model_fields_set & {"pool_size", "min_pool_size", "max_pool_size"}
    if runtime.has_templates and not asked:
        return PoolSettings(size=0, min_size=0, max_size=0)
    return settings.pool()


def rules_of(
    settings: Settings,
    opened: Sequence[ChosenRuntime],
    environments: Mapping[str, Environment] | None = None,
    networks: Networks | None = None,
) -> SessionRules:
    """environments: those of the registry, which may have limits, a network and a provider of their
    own."""
    return SessionRules(
        default=limit_values(settings.limits(), command_timeout_s=settings.command_timeout),
        idle_timeout_s=settings.idle_timeout,
        providers={each.name: each.enforcement for each in opened},
        most=settings.most(),
        total_memory=settings.total_memory,
        environments=environments,
        networks=networks,
    )


def networks_of(
    settings: Settings,
    opened: Sequence[ChosenRuntime] = (),
    audit: AuditLog | None = None,
    metrics: Metrics = NO_METRICS,
) -> Networks:
    """Close them. audit: has a line for every connection. Raises InvalidRequest for rules that
    cannot be read."""

    def report(subject: Subject, note: Note) -> None:
        log_note(subject, note)
        metrics.connection(note.verdict.value, bytes_in=note.bytes_in, bytes_out=note.bytes_out)
        if audit is not None:
            audit.record("connection", **facts_of_note(subject, note))

    return Networks(
        NetworkModes(
            default=settings.network,
            most=settings.max_network,
            providers={each.name: each.runtime.networks for each in opened},
        ),
        allow=settings.network_allow,
        presets=read_presets(settings.network_presets),
        limits=settings.egress_limits(),
        report=report,
    )


def facts_of(
    settings: Settings, opened: Sequence[ChosenRuntime], worker_id: str, networks: Networks
) -> ServiceFacts:
    default, *others = opened
    also = ", ".join(each.name for each in others)
    limits = {each.name: _limits(settings, each, networks) for each in opened}
    return ServiceFacts(
        worker_id=worker_id,
        runtime=default.name,
        why=f"{default.why}; sessions can ask for {also}, too" if also else default.why,
        limits=limits[default.name],
        by_provider=limits,
        endless_commands=settings.endless_commands,
    )


def _limits(settings: Settings, chosen: ChosenRuntime, networks: Networks) -> models.Limits:
    return models.Limits(
        memory_bytes=settings.memory_limit,
        cpus=settings.cpu_limit,
        pids=settings.pids_limit,
        disk_bytes=settings.disk_limit,
        command_timeout_s=settings.command_timeout,
        output_limit_bytes=settings.output_limit,
        upload_limit_bytes=settings.max_upload,
        **network_limits(networks.granted(None, None, chosen.name)),
        not_enforced=chosen.enforcement.missing(),
    )
