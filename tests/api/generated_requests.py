"""The server keeps to its own OpenAPI document. Every operation the document lists is asked with
data of its schema and with data that is none: no 5xx, no status, type or field that is not written
there, nothing let through that should not be. Run by test_schemathesis.py."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, Response
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)

from sandbox_sdk.protocol.models import LONGEST_WAIT_S
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.limits import ApiLimits
from tests.api.fake import FakeTenants
from tests.api.serving import served
from tests.contract.conftest import RUNTIMES, state_dir
from tests.server_process import running

__all__ = ["state_dir"]

KEY = "key-of-acme"
pytestmark = pytest.mark.timeout(300)

TARGET = {"thread_id", "session_id"}
THREADS = ["conv-1", "conv-2"]

document = create_app(FakeTenants()).openapi()
schema = schemathesis.openapi.from_dict(document)
# Without the fifty cases of each operation that test_anything has already tried.
random_cases = schemathesis.openapi.from_dict(document)
random_cases.config.phases.coverage.enabled = False
options = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def fake() -> Iterator[str]:
    keys = ApiKeys.parse(f"acme:{KEY}")
    with served(keys=keys, limits=ApiLimits(keep_alive_s=0.05)) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def real(state_dir: Path) -> Iterator[str]:
    """A server as users run it, with real boxes and room for what is left of them."""
    with asyncio.Runner() as runner:
        name = next(name for name in ("bubblewrap", "docker") if name in RUNTIMES)
        server = running(name, state_dir, SANDBOX_API_KEYS=f"acme:{KEY}")
        process = runner.run(server.__aenter__())
        try:
            runner.run(process.ready())
            yield process.url
        finally:
            runner.run(server.__aexit__(None, None, None))


def ask(url: str, case: Case, *, accept: str = "*/*", exclude: Sequence[Any] = ()) -> Response:
    if case.path == "/events" and _may_wait(case.query):
        case.query = {**case.query, "wait": 0}
    if _has_null_in_form(case):
        exclude = [*exclude, negative_data_rejection]
    return case.call_and_validate(
        base_url=url,
        headers={"Authorization": f"Bearer {KEY}", "Accept": accept},
        # That exactly one of thread_id and session_id is given, the document says in words alone.
        excluded_checks=[positive_data_acceptance, *exclude],
        timeout=60,
    )


@schema.parametrize()
@settings(options, max_examples=12)
def test_anything(fake: str, case: Case) -> None:
    # A list of one text is the same as the text in a query, and one of none as nothing, where
    # nothing else is asked of it.
    searched = ("/artifacts", "/api/sessions", "/checkpoints")
    searches = case.path in searched and case.method == "GET"
    ask(fake, case, exclude=[negative_data_rejection] if searches else ())


@random_cases.parametrize()
@settings(options, max_examples=8)
def test_calls_that_have_a_target(fake: str, case: Case) -> None:
    aim(case)
    endless = case.path == "/events"  # Its stream is tried in tests/integration/test_events.py.
    for accept in ("*/*",) if endless else ("*/*", "text/event-stream"):
        ask(fake, case, accept=accept, exclude=[negative_data_rejection])


@pytest.mark.skipif(not {"bubblewrap", "docker"}.intersection(RUNTIMES), reason="no boxes here")
@random_cases.parametrize()
@settings(options, max_examples=8)
def test_real_boxes(real: str, case: Case) -> None:
    aim(case)
    answer = ask(real, case, exclude=[negative_data_rejection, ignored_auth])
    if answer.status_code == 201 and answer.json()["thread_id"] not in THREADS:
        end(real, answer.json()["session_id"])


def _has_null_in_form(case: Case) -> bool:
    """It is sent as the text `null`, which may be a thread's name."""
    if case.media_type != "multipart/form-data" or not isinstance(case.body, dict):
        return False
    return None in case.body.values()


def _may_wait(query: Mapping[str, Any] | None) -> bool:
    try:
        return 0 < float((query or {}).get("wait", 0)) <= LONGEST_WAIT_S
    except (TypeError, ValueError):
        return False


def aim(case: Case) -> None:
    """Give a call a target: random ones rarely have exactly one, and those that do would fill the
    machine with boxes. Nor should a random command keep it waiting."""
    name = THREADS[len(str(case.body)) % len(THREADS)]
    in_query = any(parameter.name == "thread_id" for parameter in case.operation.query)
    if in_query:
        case.query = {**_aimless(case.query), "thread_id": name}
    if isinstance(case.body, dict):
        case.body = {**_aimless(case.body), **({} if in_query else {"thread_id": name})}
        if case.body.keys() & {"command", "code"}:
            case.body["timeout"] = 1.0


def _aimless(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (fields or {}).items() if key not in TARGET}


def end(url: str, session_id: str) -> None:
    answer = httpx.post(
        f"{url}/cleanup", json={"session_id": session_id}, headers={"X-API-Key": KEY}
    )
    assert answer.status_code == 200
