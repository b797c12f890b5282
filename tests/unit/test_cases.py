"""Every hostile case has tests; docs/security.md tells of all, and of none that is gone."""

import re

import pytest

from tests.hostile.cases import CASES, Case, exists
from tests.hostile.report import END, MACHINE, PAGE, PODS, Outcomes, as_markdown, shown_by


def test_all_are_there() -> None:
    assert [case.number for case in CASES] == list(range(1, len(CASES) + 1))
    assert len(CASES) >= 46


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.number))
def test_each_is_shown_by_tests_that_exist(case: Case) -> None:
    assert case.tests
    assert [test for test in case.tests if not exists(test)] == []


def test_the_page_lists_all_and_no_test_that_is_gone() -> None:
    all_cases = {str(case.number): shown_by(case) for case in CASES}
    of_machine, of_pods = (
        PAGE.read_text().partition(table.begin)[2].partition(END)[0] for table in (MACHINE, PODS)
    )
    assert rows_of(of_machine) == all_cases
    assert of_pods
    assert rows_of(of_pods).items() <= all_cases.items()
    assert "**FAILS**" not in of_machine + of_pods


def rows_of(table: str) -> dict[str, str]:
    return dict(re.findall(r"^\| (\d+) \| .* \| ([^|]+) \|$", table, re.M))


def test_outcomes_become_cells() -> None:
    case = Case(1, "t", ("a.py::test_x", "b.py"))
    made = Outcomes()
    made.add("tests/a.py::test_x[docker]", "passed")
    made.add("tests/a.py::test_x[bubblewrap-1]", "failed")
    assert made.cell(case, "docker") == ("holds", [])
    assert made.cell(case, "gvisor") == ("as docker", [])
    assert made.cell(case, "bubblewrap") == ("**FAILS**", [])
    made.add("tests/b.py::test_y[service-docker]", "open", "shared")
    assert made.cell(case, "docker") == ("open", ["shared"])
    every = Outcomes()
    every.add("tests/b.py::test_z", "passed")
    assert {every.cell(case, name)[0] for name in ("docker", "gvisor", "bubblewrap")} == {"holds"}
    assert Outcomes().cell(case, "docker") == ("not tried", [])


def test_notes_are_numbered() -> None:
    made = Outcomes()
    for runtime in ("docker", "bubblewrap"):
        test = CASES[8].tests[0]
        made.add(f"tests/{test}[{runtime}]", "open", "all boxes share them")
    text = as_markdown(made, MACHINE, stamp="Run on a machine.")
    assert "| open (" in text
    assert text.count("All boxes share them.") == 1


def test_pods_have_a_table_of_what_was_tried() -> None:
    made = Outcomes()
    assert not made.has(PODS)
    first, second = CASES[0], CASES[1]
    made.add(f"tests/{first.tests[0]}[docker]", "passed")
    made.add(f"tests/{second.tests[0]}[kubernetes_gvisor]", "passed")
    assert made.has(PODS)
    text = as_markdown(made, PODS, stamp="Run on a cluster.")
    assert first.title not in text
    assert f"| {second.title} | not tried | holds |" in text
