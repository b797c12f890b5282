"""Sandboxes as e2b's control API has them: made, found, listed, prolonged and ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from pydantic import Field
from starlette.responses import Response

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import Conflict, InvalidRequest
from sandbox_server import log_fields
from sandbox_server.api.e2b.answers import Answers
from sandbox_server.api.e2b.errors import NotSupported
from sandbox_server.api.e2b.messages import Message, json_answer, parsed
from sandbox_server.api.e2b.network import Egress, Network, egress_of, in_its_words, ports_of
from sandbox_server.api.e2b.routes import ControlRoute, Door, target_of
from sandbox_server.api.e2b.templates import DEFAULT_LIFETIME_S, environment_of, from_template
from sandbox_server.api.route import Asked

_PAGE = 100


class Mount(Message):
    name: str
    path: str


class NewSandbox(Message):
    template_id: str = Field("base", alias="templateID", max_length=200)
    timeout: int = Field(DEFAULT_LIFETIME_S, ge=0)
    metadata: dict[str, str] = Field(default_factory=dict)
    env_vars: dict[str, str] = Field(default_factory=dict)
    allow_internet_access: bool | None = None
    network: Network | None = None
    volume_mounts: list[Mount] = Field(default_factory=list)
    auto_pause: bool = False
    auto_resume: dict[str, Any] | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None


class Lifetime(Message):
    timeout: int = Field(DEFAULT_LIFETIME_S, ge=0)


class Refresh(Message):
    duration: int = Field(DEFAULT_LIFETIME_S, ge=0)


class Control:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._answers = Answers(door)

    def routes(self) -> list[ControlRoute]:
        both = ("", "/v2")
        door, one = self._door, "/sandboxes/{sandbox_id}"
        return [
            *(ControlRoute(door, "POST", f"{v}/sandboxes", self.create) for v in both),
            *(ControlRoute(door, "POST", f"{v}{one}/connect", self.connect) for v in both),
            ControlRoute(door, "POST", f"{one}/resume", self.connect),
            ControlRoute(door, "DELETE", one, self.kill),
            ControlRoute(door, "POST", f"{one}/timeout", self.set_timeout),
            ControlRoute(door, "POST", f"{one}/refreshes", self.refresh),
            ControlRoute(door, "POST", f"{one}/pause", self.pause),
            ControlRoute(door, "PUT", f"{one}/network", self.update_network),
            ControlRoute(door, "GET", one, self.info, scope="read"),
            ControlRoute(door, "GET", f"{one}/metrics", self.metrics, scope="read"),
            *(ControlRoute(door, "GET", f"{v}/sandboxes", self.list, scope="read") for v in both),
        ]

    async def create(self, asked: Asked) -> Response:
        request = parsed(NewSandbox, await asked.body())
        _check_supported(request)
        with in_its_words():
            wanted = _session_request(asked, request)
            made = await asked.sandboxes.create_session(wanted)
        log_fields.bind(session=made.session_id)
        body = await self._answers.made(asked, made, template=request.template_id)
        return json_answer(body, status=201)

    async def connect(self, asked: Asked) -> Response:
        """Lets a paused one go on. One that runs never ends earlier than it would."""
        request = parsed(Lifetime, await asked.body())
        target, lifetime_s = target_of(asked), _lifetime_s(request.timeout)
        found = await asked.sandboxes.session(target)
        paused = found.state == "paused"
        if paused:
            await asked.sandboxes.unpause(target)
        await asked.sandboxes.set_lifetime(target, lifetime_s, only_longer=not paused)
        return json_answer(await self._answers.made(asked, found), status=201 if paused else 200)

    async def kill(self, asked: Asked) -> Response:
        await asked.sandboxes.cleanup(target_of(asked))
        return Response(status_code=204)

    async def set_timeout(self, asked: Asked) -> Response:
        request = parsed(Lifetime, await asked.body())
        await asked.sandboxes.set_lifetime(target_of(asked), _lifetime_s(request.timeout))
        return Response(status_code=204)

    async def refresh(self, asked: Asked) -> Response:
        request = parsed(Refresh, await asked.body())
        lifetime_s = _lifetime_s(request.duration)
        await asked.sandboxes.set_lifetime(target_of(asked), lifetime_s, only_longer=True)
        return Response(status_code=204)

    async def pause(self, asked: Asked) -> Response:
        """Its time does not go on; connecting gives it a new one."""
        target = target_of(asked)
        if (await asked.sandboxes.session(target)).state == "paused":
            raise Conflict("the sandbox is paused already")
        await asked.sandboxes.pause(target)
        await asked.sandboxes.set_lifetime(target, 0)
        return Response(status_code=204)

    async def update_network(self, asked: Asked) -> Response:
        """Replaces what was said before."""
        request = parsed(Egress, await asked.body())
        rules = egress_of(request, internet=request.allow_internet_access)
        with in_its_words():
            await asked.sandboxes.set_egress(target_of(asked), **rules)
        return Response(status_code=204)

    async def info(self, asked: Asked) -> Response:
        found = await asked.sandboxes.session(target_of(asked))
        return json_answer(await self._answers.detail(found))

    async def metrics(self, asked: Asked) -> Response:
        """One point: how it is now."""
        found = await asked.sandboxes.session(target_of(asked))
        return json_answer([self._answers.metric(found)])

    async def list(self, asked: Asked) -> Response:
        states = _wanted_states(asked.http.query_params.getlist("state"))
        template = asked.http.query_params.get("template")
        listed = await asked.sandboxes.call(op.SESSIONS, _list_request(asked, template, states))
        found = listed.sessions
        if states == {"running"}:
            found = [each for each in found if each.state != "paused"]
        headers = {"x-next-token": listed.next} if listed.next else {}
        return json_answer([self._answers.listed(each) for each in found], headers=headers)


def _check_supported(request: NewSandbox) -> None:
    """Raises NotSupported."""
    if request.mcp:
        raise NotSupported("this server starts no MCP gateway in a sandbox; leave out mcp")
    if request.iam and request.iam.get("tokens"):
        raise NotSupported("this server has no workload identity; leave out iam")


def _session_request(asked: Asked, request: NewSandbox) -> models.CreateSessionRequest:
    """Raises InvalidRequest, NotSupported."""
    network = request.network or Network()
    rules = egress_of(network, internet=request.allow_internet_access)
    mounts = [
        models.checked(models.VolumeMount, name=each.name, path=each.path)
        for each in request.volume_mounts
    ]
    return models.checked(
        models.CreateSessionRequest,
        thread_id=_thread_id(asked.http.headers.get("idempotency-key")),
        **from_template(request.template_id),
        env=request.env_vars,
        metadata=request.metadata,
        lifetime_s=_lifetime_s(request.timeout),
        pause_at_end=request.auto_pause,
        idle_timeout_s=models.MAX_IDLE_TIMEOUT_S,
        egress_rules=rules if any(rules.values()) else None,
        ports=ports_of(network, auto_resume=request.auto_resume),
        volumes=mounts,
    )


def _thread_id(idempotency_key: str | None) -> str | None:
    """A repeated call finds the session of the first by this name; nobody else uses it."""
    if not idempotency_key:
        return None
    return f"e2b:{sha256(idempotency_key.encode()).hexdigest()[:40]}"


def _lifetime_s(timeout: int) -> float:
    """Our 0 is no end at all."""
    return float(max(timeout, 1))


def _list_request(asked: Asked, template: str | None, states: set[str]) -> models.SessionsRequest:
    """Raises InvalidRequest."""
    query = asked.http.query_params
    limit = query.get("limit", "")
    return models.checked(
        models.SessionsRequest,
        metadata=_wanted_metadata(query.get("metadata", "")),
        environment=environment_of(template) if template else None,
        created_after=_at_or_after(query.get("startedAfter")),
        order="oldest" if query.get("order") == "asc" else "newest",
        limit=min(max(int(limit), 1), _PAGE) if limit.isdecimal() else _PAGE,
        after=query.get("nextToken") or None,
        state="paused" if states == {"paused"} else None,
    )


def _at_or_after(text: str | None) -> str | datetime | None:
    """As `created_after` has it, which leaves out the moment itself."""
    try:
        return datetime.fromisoformat(text) - timedelta(microseconds=1) if text else None
    except (ValueError, OverflowError):
        return text  # The request says what is wrong with it.


def _wanted_states(given: list[str]) -> set[str]:
    """Raises InvalidRequest."""
    named = {state for text in given for state in text.split(",") if state}
    if named - {"running", "paused"}:
        raise InvalidRequest("state must be running or paused")
    return named


def _wanted_metadata(text: str) -> str | None:
    """A query within the query, of which the SDK has quoted each part twice."""
    pairs = parse_qsl(text, keep_blank_values=True)
    return urlencode([(unquote(name), unquote(value)) for name, value in pairs]) or None
