"""What is written of a box on the box itself."""

import pytest

from sandbox_server.runtime.base import Holding
from sandbox_server.sessions.ledger import Entry, Ledger, entry_from, note_of


def test_an_entry_comes_back_from_its_note() -> None:
    for entry in (
        Entry("build 1"),
        Entry("build 1", {"tenant": "t", "created_at": 1.5}, kept={"end_at": 2.25, "policy": "p"}),
    ):
        assert entry_from(note_of(entry)) == entry


def test_whether_it_has_begun_is_for_the_registry_to_say() -> None:
    found = entry_from(note_of(Entry("build", {"a": 1}, begun=True)))
    assert found is not None
    assert not found.begun


@pytest.mark.parametrize("note", ["", "{", "[]", "{}", '{"build":"b","state":3,"kept":{}}'])
def test_what_is_no_note_is_no_entry(note: str) -> None:
    assert entry_from(note) is None


def test_a_ledger_takes_an_entry_over() -> None:
    ledger, entry = Ledger(), Entry("build", {"a": 1}, kept={"b": 2})
    ledger.keep_warm("box", build="other")
    ledger.put("box", entry)
    assert ledger.entry("box") == entry
    assert ledger.entries() == {"box": entry}
    assert ledger.entry("another") is None


def test_a_claim_counts_more_than_any_epoch() -> None:
    milliseconds = 4_000_000_000_000
    assert Holding(claims=1).fence(1) > Holding(claims=0).fence(milliseconds)
    assert Holding(claims=1).fence(2) > Holding(claims=1).fence(1)
    assert Holding(claims=10_000).fence(milliseconds) < 1 << 62
