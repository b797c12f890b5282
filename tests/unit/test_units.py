"""Durations, sizes and names as people write them."""

import pytest

from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.units import duration_text, seconds, size_bytes, size_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90), ("0.5", 0.5), ("1e2", 100), ("500ms", 0.5), ("90s", 90), ("30m", 1800),
        ("30min", 1800), ("2h", 7200), ("1.5h", 5400), ("1d", 86400), (" 2 H ", 7200), ("-1", -1),
    ],
)  # fmt: skip
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "x", "2x", "h", "1h30m", "2 weeks", "inf", "nan", "1e400s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: write 90s, 30m, 2h") as raised:
        seconds(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("64k", 64 << 10), ("1.5g", 3 << 29), ("512MiB", 512 << 20), ("1GB", 1 << 30),
     ("1t", 1 << 40), ("100b", 100)],
)  # fmt: skip
def test_sizes(text: str, value: int) -> None:
    assert size_bytes(text) == value


@pytest.mark.parametrize("text", ["", "m", "much", "1x", "1e400g", "5 apples"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size: write 512m or 2g") as raised:
        size_bytes(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize("value", [0, 0.3, 1, 1.5, 30, 60, 90, 1800, 3600, 5400, 86400, 172800])
def test_durations_there_and_back(value: float) -> None:
    assert seconds(duration_text(value)) == value


def test_the_shortest_text() -> None:
    assert [duration_text(s) for s in (1800, 90, 7200, 86400, 0.5)] == [
        "30m", "90s", "2h", "1d", "500ms",
    ]  # fmt: skip
    assert [size_text(n) for n in (512 << 20, 1 << 30, 1000, 1536 << 10)] == [
        "512m", "1g", "1000", "1536k",
    ]  # fmt: skip


def test_the_nearest_name() -> None:
    known = ["memory_limit", "idle_timeout", "command_timeout", "pool_size", "api_keys"]
    assert did_you_mean("memory", known) == "did you mean memory_limit?"
    assert did_you_mean("timeout", known) == "did you mean idle_timeout or command_timeout?"
    assert did_you_mean("poolsize", known) == "did you mean pool_size?"
    assert did_you_mean("something", known) == ""
