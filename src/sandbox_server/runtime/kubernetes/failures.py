"""What an API server and its pods say when something fails, as errors of ours."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sandbox_sdk.protocol.errors import Capacity, InvalidRequest, RuntimeUnavailable, SandboxError

Pod = dict[str, Any]
_CANNOT_START = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
     "ImageInspectError", "RegistryUnavailable", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError", "CrashLoopBackOff")
)  # fmt: skip
"""Reasons of a waiting container for which waiting on does not help its caller."""
_OF_THE_IMAGE = ("no such file or directory", "executable file not found")


class ApiError(Exception):
    """An answer of the API server that is no success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    @classmethod
    def of(cls, status: int, body: bytes) -> ApiError:
        try:
            about = json.loads(body)
            return cls(status, str(about.get("reason", "")), line(about.get("message", "")))
        except (ValueError, AttributeError):
            return cls(status, "", line(body.decode("utf-8", "replace")))


def line(text: object) -> str:
    return " ".join(str(text).split())[:400]


def error_for(error: ApiError, what: str, namespace: str) -> SandboxError:
    """what: a verb and a resource, such as "create pods"."""
    if error.status == 403 and "exceeded quota" in error.message:
        return Capacity(f"the quota of namespace {namespace} is used up: {error.message}")
    if error.status == 403 and "cannot" in error.message:
        return RuntimeUnavailable(
            f"this server may not {what} in namespace {namespace}: {error.message}; its role needs"
            " that rule (docs/kubernetes.md)"
        )
    if error.status == 401:
        return RuntimeUnavailable(
            f"the cluster does not know this server ({error.message or 'Unauthorized'}): check the"
            " token or certificate of its kubeconfig"
        )
    if error.status == 404 and "namespaces" in error.message:
        return RuntimeUnavailable(
            f"namespace {namespace} does not exist: create it, or set SANDBOX_KUBERNETES_NAMESPACE"
        )
    if error.status == 404 and not error.reason:
        return RuntimeUnavailable(
            f"the cluster has no {what.split()[-1]}: what declares them is not installed there, or"
            " in another version (docs/kubernetes.md)"
        )
    return RuntimeUnavailable(
        f"the cluster refused to {what} ({error.status}): {error.message or error.reason}"
    )


def _is_ready(pod: Pod) -> bool:
    """As its node reports, or as the cluster says of pods whose node does not."""
    conditions = _status(pod).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def unschedulable(pod: Pod) -> str:
    """The scheduler's reason for not placing a pod; empty if it has not given one."""
    for condition in _status(pod).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return line(condition.get("message") or condition.get("reason") or "no reason given")
    return ""


def no_room(why: str) -> Capacity:
    return Capacity(f"no node of the cluster has room for a box: {why}")


def is_running(pod: Pod) -> bool:
    """Whether its container runs: also in the last seconds of a pod that is being deleted, unless
    its node is away and nobody knows."""
    if "running" not in (_container(pod).get("state") or {}):
        return False
    at = ends_at(pod)
    return at is None or (time.time() < at and _is_ready(pod))


def ends_at(pod: Pod) -> float | None:
    """When it is killed, if somebody deletes or evicts it."""
    at = pod["metadata"].get("deletionTimestamp")
    return None if at is None else datetime.fromisoformat(str(at)).timestamp()


def age_s(pod: Pod) -> float:
    made = datetime.fromisoformat(str(pod["metadata"]["creationTimestamp"]))
    return (datetime.now(UTC) - made).total_seconds()


def address(pod: Pod) -> str:
    """Its own on the cluster's network; empty if it has none, or that of its node."""
    if pod.get("spec", {}).get("hostNetwork"):
        return ""
    return str(_status(pod).get("podIP") or "")


def why_not_started(pod: Pod, image: str) -> SandboxError | None:
    """The error of a pod that will not run; None as long as it may."""
    status, state = _status(pod), _container(pod).get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason, message = (waiting or ended).get("reason", ""), (waiting or ended).get("message", "")
    if ended or reason in _CANNOT_START:
        if any(mark in message for mark in _OF_THE_IMAGE) and "python3" in message:
            return InvalidRequest(
                f"image {image} has no python3: install Python 3.8 or newer in the image"
            )
        code = f" with code {ended['exitCode']}" if "exitCode" in ended else ""
        return RuntimeUnavailable(
            f"a pod with image {image} does not start: {reason}{code}: {line(message)}"
        )
    if status.get("phase") in ("Failed", "Succeeded"):
        return RuntimeUnavailable(
            f"a pod with image {image} has ended before it ran: {status.get('reason', '')}:"
            f" {line(status.get('message', ''))}"
        )
    if pod["metadata"].get("deletionTimestamp"):
        return RuntimeUnavailable("the pod of a new box was deleted by somebody else; try again")
    return None


def why_ended(pod: Pod) -> str:
    """What became of a pod that runs no more."""
    status, ended = _status(pod), (_container(pod).get("state") or {}).get("terminated") or {}
    why = [status.get("reason"), line(status.get("message", "")), ended.get("reason")]
    return ", ".join(dict.fromkeys(part for part in why if part))


def _status(pod: Pod) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _container(pod: Pod) -> Mapping[str, Any]:
    found = _status(pod).get("containerStatuses") or [{}]
    return dict(found[0])


def why_waiting(pod: Pod) -> str:
    state = _container(pod).get("state") or {}
    waiting = state.get("waiting") or {}
    why = [waiting.get("reason"), line(waiting.get("message", "")), _status(pod).get("phase")]
    return ": ".join(part for part in why if part) or "the cluster says nothing of it"
