"""Sandboxes through e2b's SDK: made, found, listed, prolonged and ended."""

from datetime import UTC, datetime, timedelta
from typing import Any

import e2b
import httpx
import pytest
from e2b import (
    AuthenticationException,
    NotFoundException,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from tests.e2b.servers import KEY, OTHER_KEY, Served
from tests.e2b.waiting import eventually


def test_a_sandbox_lives_until_it_is_killed(box: Any, options: dict[str, Any]) -> None:
    assert box.is_running()
    assert box.kill()
    assert not box.is_running()
    assert box.kill() is False
    with pytest.raises(TimeoutException, match="was not found"):
        box.commands.run("echo")
    with pytest.raises(TimeoutException):
        box.files.read("x")
    with pytest.raises(SandboxNotFoundException):
        box.get_info()
    with pytest.raises(SandboxNotFoundException):
        box.set_timeout(10)
    with pytest.raises(NotFoundException):
        e2b.Sandbox.connect(box.sandbox_id, **options)


def test_what_it_is_told_of(sandbox_type: Any, options: dict[str, Any], made: list[str]) -> None:
    before = datetime.now(UTC)
    box = sandbox_type.create(
        timeout=200, metadata={"user": "a b&c=d"}, envs={"COLOUR": "blue"}, **options
    )
    made.append(box.sandbox_id)
    assert box.commands.run("echo $COLOUR").stdout == "blue\n"
    info = box.get_info()
    assert (info.sandbox_id, info.template_id) == (box.sandbox_id, "base")
    assert info.metadata == {"user": "a b&c=d"}
    assert info.state == SandboxState.RUNNING
    assert info.cpu_count >= 1
    assert info.memory_mb == 512
    lasts = info.end_at - info.started_at
    assert timedelta(seconds=199) < lasts < timedelta(seconds=230)
    assert info.started_at > before - timedelta(seconds=60)


def test_its_time_is_not_prolonged_by_use(
    sandbox_type: Any, options: dict[str, Any], made: list[str]
) -> None:
    box = sandbox_type.create(timeout=6, **options)
    made.append(box.sandbox_id)

    def is_gone() -> bool:
        try:
            box.commands.run("true")
        except TimeoutException:
            return True
        return False

    eventually(is_gone)
    assert not box.is_running()


def test_its_time_is_set(box: Any, options: dict[str, Any]) -> None:
    box.set_timeout(1000)
    assert _left(box) > timedelta(seconds=900)
    box.connect(timeout=100)
    assert _left(box) > timedelta(seconds=900), "connecting does not shorten it"
    box.connect(timeout=2000)
    assert _left(box) > timedelta(seconds=1900)
    box.set_timeout(50)
    assert _left(box) < timedelta(seconds=60)


def _left(box: Any) -> timedelta:
    left: timedelta = box.get_info().end_at - datetime.now(UTC)
    return left


def test_it_is_found_by_its_id(
    box: Any, sandbox_type: Any, served: Served, made: list[str]
) -> None:
    """Also at another coordinator, which has never heard of it."""
    box.files.write("here.txt", "yes")
    again = sandbox_type.connect(box.sandbox_id, **served.options(at=1))
    assert again.files.read("here.txt") == "yes"
    assert again.commands.run("cat here.txt").stdout == "yes"


def test_lists(sandbox_type: Any, options: dict[str, Any], made: list[str]) -> None:
    first, second = (
        sandbox_type.create(timeout=300, metadata={"run": "list me", "n": n}, **options)
        for n in "12"
    )
    made += [first.sandbox_id, second.sandbox_id]

    def listed(**more: Any) -> list[str]:
        query = SandboxQuery(metadata={"run": "list me"})
        found, pages = [], sandbox_type.list(query=query, **more, **options)
        while pages.has_next:
            found += [each.sandbox_id for each in pages.next_items()]
        return found

    ids = [first.sandbox_id, second.sandbox_id]
    assert listed(order="asc") == ids
    assert listed() == ids[::-1]
    assert listed(order="asc", limit=1) == ids
    one = sandbox_type.list(query=SandboxQuery(metadata={"n": "2"}), **options).next_items()
    assert [each.sandbox_id for each in one] == [second.sandbox_id]
    paused = sandbox_type.list(query=SandboxQuery(state=[SandboxState.PAUSED]), **options)
    assert paused.next_items() == []


def test_metrics(box: Any) -> None:
    (point,) = box.get_metrics()
    assert point.mem_total == 512 << 20
    assert 0 < point.mem_used < point.mem_total


def test_a_repeated_create_makes_one(
    sandbox_type: Any, options: dict[str, Any], made: list[str]
) -> None:
    key = f"key-{datetime.now(UTC).timestamp()}".replace(".", "-")
    found = [
        sandbox_type.create(timeout=60, idempotency_key=key, **options).sandbox_id for _ in "12"
    ]
    made += found
    assert len(set(found)) == 1


def test_pause(box: Any, sandbox_type: Any, options: dict[str, Any]) -> None:
    """What runs stands still, and goes on when it is connected to."""
    handle = box.commands.run(
        "for i in $(seq 1000); do echo $i > count; sleep 0.05; done", background=True
    )
    eventually(lambda: box.files.exists("count"))
    assert box.pause()
    assert not box.is_running()
    assert box.get_info().state == SandboxState.PAUSED
    query = SandboxQuery(state=[SandboxState.PAUSED])
    listed = sandbox_type.list(query=query, **options).next_items()
    assert box.sandbox_id in [each.sandbox_id for each in listed]
    again = sandbox_type.connect(box.sandbox_id, timeout=100, **options)
    assert again.is_running()
    assert _left(again) < timedelta(seconds=110)
    before = again.files.read("count")
    eventually(lambda: again.files.read("count") not in (before, ""))
    assert handle.kill()


def test_keys(served: Served, box: Any) -> None:
    with pytest.raises(AuthenticationException):
        e2b.Sandbox.create(**served.options(key="e2b_00"))
    other = served.options(key=OTHER_KEY)
    with pytest.raises(SandboxNotFoundException):
        e2b.Sandbox.get_info(box.sandbox_id, **other)
    assert e2b.Sandbox.kill(box.sandbox_id, **other) is False
    assert box.is_running()


def test_a_key_in_the_form_of_theirs(served: Served) -> None:
    """As older versions of the SDK insist on it."""
    key = f"e2b_{KEY.encode().hex()}"
    assert e2b.Sandbox.list(**served.options(key=key)).next_items() is not None


def test_tokens(served: Served, box: Any, sandbox_type: Any, made: list[str]) -> None:
    """Each opens the sandbox it was made for, and nothing without one."""
    other = e2b.Sandbox.create(timeout=60, **served.options())
    made.append(other.sandbox_id)
    token = box._envd_access_token
    others = other._envd_access_token or ""
    for sent in ("", "nonsense", "ü", token[:-1], others, "a.b." + "0" * 64):
        answer = _list(served, box.sandbox_id, sent)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), sent
    assert _list(served, box.sandbox_id, token).status_code == 200
    assert _list(served, "", token).status_code == 401


def _list(served: Served, sandbox_id: str, token: str) -> httpx.Response:
    headers = {"E2b-Sandbox-Id": sandbox_id, "X-Access-Token": token.encode()}
    return httpx.post(f"{served.urls[0]}/e2b/process.Process/List", headers=headers, json={})  # type: ignore[arg-type]


def test_snapshots(sandbox_type: Any, box: Any, options: dict[str, Any], made: list[str]) -> None:
    box.files.write("kept.txt", "as it was")
    snapshot = box.create_snapshot(name="mine")
    box.files.write("kept.txt", "later")
    listed = sandbox_type.list_snapshots(sandbox_id=box.sandbox_id, **options).next_items()
    assert [(each.snapshot_id, each.names) for each in listed] == [(snapshot.snapshot_id, ["mine"])]
    begun = sandbox_type.create(snapshot.snapshot_id, timeout=60, **options)
    made.append(begun.sandbox_id)
    assert begun.files.read("kept.txt") == "as it was"
    assert sandbox_type.delete_snapshot(snapshot.snapshot_id, **options)
    assert sandbox_type.delete_snapshot(snapshot.snapshot_id, **options) is False


def test_forks(box: Any, made: list[str]) -> None:
    box.files.write("both.txt", "1")
    (fork,) = box.fork(timeout=60)
    made.append(fork.sandbox_id)
    fork.files.write("both.txt", "2")
    assert box.files.read("both.txt") == "1"
    assert _left(fork) < timedelta(seconds=70)


def test_no_network(sandbox_type: Any, options: dict[str, Any], made: list[str]) -> None:
    box = sandbox_type.create(timeout=60, allow_internet_access=False, **options)
    made.append(box.sandbox_id)
    assert box.get_info().allow_internet_access is False


@pytest.mark.one_way
def test_what_there_is_not_says_so(options: dict[str, Any], made: list[str]) -> None:
    """With 501, and why."""
    box = e2b.Sandbox.create(timeout=60, **options)
    made.append(box.sandbox_id)
    wanted: list[tuple[Any, str]] = [
        (lambda: box.update_network({"dns_servers": ["1.1.1.1"]}), "dns_servers"),
        (lambda: _create(options, network={"https_ports": [8443]}), "https_ports"),
        (lambda: _create(options, network={"rules": {"a.example": []}}), "rules"),
        (
            lambda: _create(options, iam={"tokens": {"t": {"audience": "a", "token_type": "t"}}}),
            "iam",
        ),
        (lambda: e2b.Volume.create("v", **options), "POST /volumes"),
    ]
    for call, why in wanted:
        with pytest.raises(Exception, match=why) as raised:
            call()
        assert "501" in str(raised.value) or isinstance(raised.value, SandboxException)


def _create(options: dict[str, Any], **more: Any) -> Any:
    return e2b.Sandbox.create(timeout=60, **more, **options)


@pytest.mark.one_way
def test_templates(options: dict[str, Any]) -> None:
    with pytest.raises(SandboxException, match="unknown environment 'nonsense'"):
        e2b.Sandbox.create("nonsense", **options)
    assert e2b.Template.exists("base", **options)
    assert e2b.Template.exists("Python3", **options)
    assert not e2b.Template.exists("nonsense", **options)
