"""Limits as an operator writes them."""

import pytest

from sandbox_server.settings.limit_rules import Allowance, LimitRules


def test_the_most_specific_rule_holds() -> None:
    rules = LimitRules.parse(
        "acme: requests=50/s, burst=60, commands=20 ; *: requests=0.5,sessions=3,"
        "sessions_per_hour=9; key *: requests=5, sessions=1; key 0123: commands=2;"
    )
    assert rules
    assert rules.of_tenant("acme") == Allowance(requests=50, burst=60, commands=20)
    other = rules.of_tenant("other")
    assert other == Allowance(requests=0.5, sessions=3, sessions_per_hour=9)
    assert (other.at_once, rules.of_tenant("acme").at_once) == (1, 60)
    assert rules.of_key("0123") == Allowance(commands=2)
    assert rules.of_key("4567") == Allowance(requests=5, sessions=1)
    assert rules.of_key("") == Allowance()


def test_whose_limits_a_call_counts_in() -> None:
    rules = LimitRules.parse("acme: requests=50; key *: commands=1")
    found = rules.of("acme", "sub")
    assert [each.name for each in found] == ["key acme/sub", "acme"]  # The key is asked first.
    assert [each.name for each in rules.of("acme", "")] == ["acme"]
    assert [each.name for each in rules.of("other", "sub")] == ["key other/sub"]


def test_none() -> None:
    for text in ("", " ; ;"):
        rules = LimitRules.parse(text)
        assert not rules
        assert rules.of_tenant("acme") == Allowance()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("acme", "not of the form"),
        (": requests=1", "not of the form"),
        ("key : requests=1", "not of the form"),
        ("a: requests=1; a: burst=2", "twice"),
        ("a: speed=1", "'speed' is no limit: there is requests"),
        ("a: ", "'' is no limit"),
        ("a: requests=fast", "is not a number"),
        ("a: commands=1.5", "is not a number"),
        ("a: requests=0", "not above 0"),
        ("a: requests=nan", "not above 0"),
        ("a: sessions=-1", "not above 0"),
    ],
)
def test_what_cannot_be_read(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LimitRules.parse(text)
