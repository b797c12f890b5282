"""What becomes of a box after a restart, whatever it says of itself."""

from dataclasses import replace
from typing import Any

import pytest

from sandbox_server.runtime.agent import BoxState, CommandSummary
from sandbox_server.sessions.found import Discard, Resume, Warm, decide
from sandbox_server.sessions.ledger import Entry, Ledger
from sandbox_server.sessions.live import state_of
from sandbox_server.sessions.registry import Record, Status

KNOWN = Record(
    tenant="t", thread_id="conv", generation=3, session_id="s", box_id="b", status=Status.LIVE,
    created_at=5.0, worker="w", epoch=1,
)  # fmt: skip
STATE = state_of(KNOWN, idle_timeout_s=77.0, environment="strict")
WARM = Entry(build="now")
GIVEN = Entry(build="now", state=STATE)
BEGUN = replace(GIVEN, begun=True)
RUNNING = CommandSummary(
    command_id="c", idempotency_key=None, running=True, exit_code=None, age_s=1, output_bytes=0,
    late_bytes=0,
)  # fmt: skip
IDENTITY = [{"tenant": "x"}, {"thread_id": "x"}, {"generation": 4}, {"session_id": "x"}]


def says(state: dict[str, Any], **about: Any) -> BoxState:
    base: dict[str, Any] = {
        "version": 1, "box": "b", "boot": "x", "epoch": 1, "uptime_s": 1.0, "idle_s": 1.0,
        "ran": 0, "cwd": "/workspace", "commands": [],
    }  # fmt: skip
    return BoxState(**{**base, "state": state, **about})


def decided(
    entry: Entry | None, known: Record | None, told: BoxState | None
) -> Warm | Resume | Discard:
    return decide(entry, known, told, build="now", idle_timeout_s=600.0)


def test_a_warm_box_is_warm() -> None:
    assert decided(WARM, None, says({})) == Warm()


@pytest.mark.parametrize(
    ("entry", "known", "told"),
    [
        (None, None, says({})),
        (None, None, says(STATE)),
        (WARM, None, None),
        (WARM, None, says(STATE)),
        (WARM, None, says({}, ran=1)),
        (WARM, None, says({}, commands=[RUNNING])),
        (WARM, KNOWN, says({})),
        (replace(WARM, build="before"), None, says({})),
        (GIVEN, None, says({})),
        (GIVEN, None, says(STATE)),
        (GIVEN, None, None),
        (BEGUN, None, says({})),
        (BEGUN, KNOWN, says({})),
        (None, KNOWN, says({})),
    ],
)
def test_what_is_nobodys_goes(
    entry: Entry | None, known: Record | None, told: BoxState | None
) -> None:
    assert isinstance(decided(entry, known, told), Discard)


@pytest.mark.parametrize("entry", [BEGUN, None], ids=["with the ledger", "of an older server"])
@pytest.mark.parametrize("lie", IDENTITY, ids=str)
def test_another_identity_is_a_loss(entry: Entry | None, lie: dict[str, Any]) -> None:
    assert isinstance(decided(entry, KNOWN, says({**STATE, **lie})), Discard)


@pytest.mark.parametrize("known", [KNOWN, None])
@pytest.mark.parametrize(
    "lie",
    [{"environment": None}, {"idle_timeout_s": 1e300}, {"created_at": "?"}, {"more": [1]}],
    ids=str,
)
def test_the_ledger_has_the_last_word(known: Record | None, lie: dict[str, Any]) -> None:
    assert decided(BEGUN, known, says({**STATE, **lie})) == Resume(STATE, met=True)


def test_one_that_does_not_answer_is_not_lost() -> None:
    assert decided(BEGUN, None, None) == Resume(STATE, met=False)
    assert decided(GIVEN, KNOWN, None) == Resume(STATE, met=False)
    unsaid = state_of(KNOWN, idle_timeout_s=600.0, environment=None)
    assert decided(None, KNOWN, None) == Resume(unsaid, met=False)


def test_a_session_of_a_server_without_a_ledger_goes_on() -> None:
    """Versions before it have left these two in the box alone."""
    assert decided(None, KNOWN, says(STATE)) == Resume(STATE, met=True)
    for nonsense in (0, -1, 1e300, "x", None, float("nan")):
        found = decided(None, KNOWN, says({**STATE, "idle_timeout_s": nonsense}))
        assert found == Resume({**STATE, "idle_timeout_s": 600.0}, met=True)


def test_a_ledger() -> None:
    ledger = Ledger()
    ledger.keep_warm("a", build="now")
    ledger.give("b", STATE, build="now")
    ledger.give("c", STATE, build="now")
    ledger.begin("c")
    ledger.keep_warm("c", build="now")
    assert ledger.entries() == {"a": WARM, "b": GIVEN, "c": BEGUN}
    ledger.give("c", STATE, build="now")
    ledger.keep_only(["b", "c"])
    assert ledger.entries() == {"b": GIVEN, "c": GIVEN}
    ledger.forget("b")
    ledger.forget("unknown")
    assert list(ledger.entries()) == ["c"]
