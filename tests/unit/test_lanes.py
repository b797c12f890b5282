"""Who runs what: `make test` and the rest are everything, and no slice is lost."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.stand import Way
from tests.lanes import in_lane, in_slice


class Item:
    """As far as lanes look at a test."""

    def __init__(self, test: str, *marks: str, **params: Any) -> None:
        ids = "-".join(str(value) for value in params.values())
        self.nodeid = f"tests/{test}[{ids}]" if params else f"tests/{test}"
        self.callspec = SimpleNamespace(params=params)
        self._marks = marks
        self.args: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.nodeid.removeprefix("tests/")

    def get_closest_marker(self, name: str) -> object:
        return SimpleNamespace(args=self.args) if name in self._marks else None


def over_ways(*marks: str) -> list[Item]:
    found = [Way("docker", "http"), Way("bubblewrap", "sync-local"), Way("bubblewrap", "routed")]
    return [Item("contract/a.py::t", *marks, way=way) for way in found]


def over_runtimes(*marks: str, test: str = "contract/b.py::t") -> list[Item]:
    names = ("gvisor", "docker", "bubblewrap", "kubernetes")
    return [Item(test, *marks, runtime_name=name) for name in names]


def main(items: list[Item]) -> list[str]:
    return [repr(item) for item in in_lane(items, "main")]  # type: ignore[arg-type]


def test_once_where_it_is_cheapest() -> None:
    assert main(over_ways()) == ["contract/a.py::t[sync-local-bubblewrap]"]
    assert main(over_runtimes()) == ["contract/b.py::t[bubblewrap]"]


def test_what_no_cheap_runtime_has_is_run_where_it_can_be() -> None:
    assert main(over_runtimes()[:2]) == ["contract/b.py::t[docker]"]
    assert main([Item("api/c.py::t")]) == ["api/c.py::t"]


def test_other_parameters_are_cases_of_their_own() -> None:
    cases = [Item("d.py::t", case=case, runtime_name=name) for case in "xy"
             for name in ("docker", "bubblewrap")]  # fmt: skip
    assert main(cases) == ["d.py::t[x-bubblewrap]", "d.py::t[y-bubblewrap]"]


def test_marks_ask_for_more() -> None:
    assert len(main(over_ways("seam"))) == 3
    assert main(over_runtimes("kernel")) == [
        f"contract/b.py::t[{name}]" for name in ("gvisor", "docker", "bubblewrap")
    ]
    assert main(over_ways("kernel")) == main(over_ways()), "a way says nothing of the kernel"
    assert main(over_runtimes("rest")) == []


def test_hostile_cases_are_run_on_the_runtimes_that_people_use() -> None:
    hostile = over_runtimes(test="hostile/e.py::t")
    assert main(hostile) == ["hostile/e.py::t[docker]", "hostile/e.py::t[bubblewrap]"]


@pytest.mark.parametrize("marks", [(), ("seam",), ("kernel",), ("rest",)])
def test_both_lanes_are_everything(marks: tuple[str, ...]) -> None:
    items: list[Any] = [*over_ways(*marks), *over_runtimes(*marks), Item("f.py::t", *marks)]
    halves = in_lane(items, "main"), in_lane(items, "rest")
    assert sorted(map(repr, [*halves[0], *halves[1]])) == sorted(map(repr, items))
    assert in_lane(items, "all") == items


def test_random_rounds_are_in_both() -> None:
    items: list[Any] = over_runtimes("rounds", test="chaos/g.py::t")
    assert main(items) == ["chaos/g.py::t[bubblewrap]"]
    assert in_lane(items, "rest") == items


def test_a_mark_may_be_about_some_parameters() -> None:
    items = [Item("i.py::t", "rest", how=how) for how in ("SIGINT", "SIGKILL")]
    for item in items:
        item.args = ("SIGINT",)
    assert main(items) == ["i.py::t[SIGKILL]"]


def test_slices_are_everything_once() -> None:
    items: list[Any] = [Item(f"h.py::t{number}") for number in range(100)]
    found = [item for number in range(1, 9) for item in in_slice(items, f"{number}/8")]
    assert sorted(map(repr, found)) == sorted(map(repr, items))
    assert all(in_slice(items, f"{number}/8") for number in range(1, 9))


@pytest.mark.parametrize("wrong", ["0/8", "9/8", "3", "a/b", "1/0"])
def test_a_slice_that_is_none(wrong: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"SLICE={wrong}: give one as 3/8"):
        in_slice([], wrong)
