"""Settings of pods that do not depend on the box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox_server.runtime.base import Limits

StreamWay = Literal["auto", "exec", "tcp"]
"""How streams reach wardens: TCP where that works, else exec; exec alone; TCP or not at all."""


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    runtime_class: str | None = None
    """gVisor's or Kata's, where the cluster has one."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    priority_class: str | None = None
    pull_secret: str | None = None
    service_account: str | None = None
    requests: float = 0.25
    """The part of its limits that a pod requests: nodes are filled up by requests."""
    warm_pool: int = 0
    """Pods that each warm pool of kubernetes-sigs/agent-sandbox has; 0 for a cluster without it."""
    warm_limits: Limits | None = None
    """The limits of boxes that come from these."""
    placement_s: float = 15.0
    """How long a pod may wait for a node: an autoscaler sees only pods that wait."""
    shared: bool = False
    """Whether other servers can take its pods over."""
    eviction_s: float = 30.0
    """How long a pod lives on that somebody evicts or deletes."""
    stream: StreamWay = "auto"

    @property
    def gvisor(self) -> bool:
        name = self.runtime_class or ""
        return "gvisor" in name or "runsc" in name
