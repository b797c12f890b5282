"""A short soak: what `make soak` does for minutes with 200 threads."""

import pytest

from bench.soak import Soak, as_text, soak
from bench.soak_work import WORK, Tally
from tests.contract.conftest import RUNTIMES


@pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
async def test_a_few_seconds_of_everything() -> None:
    seen = await soak("bubblewrap", threads=20, seconds=6)
    text = as_text(seen, runtime="bubblewrap", threads=20, seconds=6)
    # Whether memory is flat cannot be told in seconds.
    assert [fault for fault in seen.faults() if not fault.startswith("memory")] == [], text
    assert seen.tally.done.total() > 20
    assert set(seen.tally.done) <= {what.__name__ for what in WORK}


def test_what_is_a_fault() -> None:
    seen = Soak(Tally(), memory_mb=[80.0] * 40, before=(70, 20), after=(80, 30))
    seen.tally.errors.update({"command_rejected": 5, "session_lost": 1})
    assert seen.faults() == []
    seen.tally.errors.update({"internal": 1, "KeyError in files": 2, "capacity in command": 1})
    seen.tally.wrong.append("command: other's")
    seen.memory_mb += [200.0] * 20
    seen.after, seen.left = (80, 90), 1
    assert [fault.split()[0] for fault in seen.faults()] == [
        "wrong", "1", "2", "1", "memory", "descriptors", "1",
    ]  # fmt: skip
