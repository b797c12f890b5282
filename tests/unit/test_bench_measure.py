"""The arithmetic of the benchmarks: what a figure means, and when a goal counts as met."""

import json

import pytest

from bench import results as r
from bench.goals import Goal
from bench.measure import Summary, orders, per_s, percentile, settled, time_ms
from bench.memory import each_mb, used_mb
from bench.pages import ENGINE, PAGES, goals
from bench.report import Run, as_json, as_markdown, as_text
from bench.results import Results


def test_percentile_interpolates_between_neighbours():
    samples = [4.0, 1.0, 3.0, 2.0]
    assert percentile(samples, 0) == 1
    assert percentile(samples, 50) == 2.5
    assert percentile(samples, 100) == 4
    assert percentile([7.0], 95) == 7


def test_no_samples_have_no_percentile():
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_a_summary_holds_the_middle_the_tail_and_the_ends():
    assert Summary.of([float(n) for n in range(101)]) == Summary(101, 50, 95, 99, 0, 100)


def test_everybody_takes_every_place():
    names = ["a", "b", "c"]
    rounds = list(orders(names, 6))
    assert all(sorted(order) == names for order in rounds)
    assert {order[0] for order in rounds} == set(names)
    assert len({tuple(order) for order in rounds}) == 6


def test_two_take_turns_to_be_first():
    assert [order[0] for order in orders(["a", "b"], 4)] == ["a", "b", "b", "a"]


def test_nobody_takes_no_turns():
    assert list(orders([], 2)) == [[], []]


async def test_an_action_runs_once_and_takes_some_time():
    calls = []

    async def action() -> None:
        calls.append(1)

    assert await time_ms(action) >= 0
    assert calls == [1]


def test_a_megabyte_is_a_million_bytes():
    assert per_s(2_000_000, 0.5) == 4


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([5.0, 1.0, 1.2, 1.1], True), ([1.0, 1.1], False), ([1.0, 1.0, 9.0], False)],
)
def test_settled_looks_at_the_last_samples(samples, expected):
    assert settled(samples, count=3, within=0.5) is expected


@pytest.mark.parametrize("name", ["total_inactive_file", "inactive_file"])
def test_file_pages_that_can_go_are_no_use_of_memory(name):
    assert used_mb({"usage": 5_000_000, "stats": {name: 2_000_000}}) == 3


def test_memory_is_shared_out_when_the_machine_came_back_to_where_it_was():
    assert each_mb(1000, 900, 1004, count=10) == pytest.approx(10.2)
    assert each_mb(1000, 900, 1050, count=10) is None
    assert each_mb(1000, None, 1000, count=10) is None


def test_a_goal_is_met_on_its_bound():
    assert Goal("slow", 3.0, 3.0, "at most", "").verdict == "met"
    assert Goal("slow", 3.1, 3.0, "at most", "").verdict == "NOT MET"
    assert Goal("fast", 15.0, 15.0, "at least", "").verdict == "met"
    assert Goal("fast", 14.9, 15.0, "at least", "").verdict == "NOT MET"
    assert Goal("what", None, 15.0, "at least", "").verdict == "not measured"


def test_goals_compare_medians():
    found = Results()
    found.add(r.TIGHT, r.HOST, 1.0, 1.0, 50.0)
    found.add(r.TIGHT, r.EXEC_API, 60.0)
    found.add(r.TIGHT, r.box(r.RUNC), 2.0)
    figures = {goal.text: goal.figure for goal in goals(found) if goal.figure is not None}
    assert list(figures.values()) == [2.0, 30.0]
    assert all(text.startswith("docker/runc: command p50, tight") for text in figures)


@pytest.fixture
def run() -> Run:
    found = Results()
    found.add(r.TIGHT, r.HOST, 1.0, 2.0)
    found.add(r.TIGHT, r.box(r.RUNC), 3.0, 4.5)
    found.add(r.MEMORY_HOST, r.box(r.RUNC), 21.0)
    return Run("2030-01-01", False, {"cores": "2"}, found)


def test_the_json_holds_every_sample(run):
    told = json.loads(as_json(run, ENGINE))
    samples = told["sections"]["command_tight"]["samples"]
    assert samples == {"host: bash -c": [1.0, 2.0], "box: docker/runc": [3.0, 4.5]}
    assert told["machine"] == {"cores": "2"}


@pytest.mark.parametrize(
    "write", [lambda run: as_text(run, PAGES), lambda run: as_markdown(run, ENGINE)]
)
def test_a_report_names_figures_ratios_and_verdicts(run, write):
    text = write(run)
    assert "3.75" in text  # The median
    assert "2.50" in text  # in terms of the host's
    assert "NOT MET" in text
    assert "not measured" in text
