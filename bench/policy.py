"""What a verdict costs, how many ordinary commands are rejected, and how many disguises pass."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from bench.measure import Summary
from sandbox_server.policy.policy import Policy
from tests.unit.policy.corpus import ordinary
from tests.unit.policy.disguises import mutants

SHORT = 200
"""Commands under so many characters are measured."""
GOAL_MS = 0.5
SETS = ("default", "strict")


@dataclass
class PolicyRun:
    """What was found, by the name of the rule set."""

    verdict_ms: dict[str, Summary] = field(default_factory=dict)
    commands: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    disguises: Counter[str] = field(default_factory=Counter)
    passed: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return all(summary.p50 <= GOAL_MS for summary in self.verdict_ms.values())


def measure_policy(*, rounds: int) -> PolicyRun:
    """Rule sets take turns, command by command, so that a noisy moment hits all alike."""
    run = PolicyRun()
    policies = {name: Policy.read(name) for name in SETS}
    commands = [command for command in ordinary() if len(command) < SHORT]
    samples: dict[str, list[float]] = {name: [] for name in SETS}
    for number in range(1 + rounds):
        for command in commands:
            for name, policy in policies.items():
                took_ms = _verdict_ms(policy, command)
                if number:  # The first round warms up.
                    samples[name].append(took_ms)
    run.verdict_ms = {name: Summary.of(taken) for name, taken in samples.items()}
    _judge_all(run, policies)
    return run


def _verdict_ms(policy: Policy, command: str) -> float:
    """Processor time: a verdict waits for nothing, so it is what others wait for, too."""
    start = time.thread_time()
    policy.explain(command)  # Not one that is remembered.
    return 1000 * (time.thread_time() - start)


def _judge_all(run: PolicyRun, policies: dict[str, Policy]) -> None:
    run.commands = len(ordinary())
    for name, policy in policies.items():
        run.rejected[name] = sum(not policy.judge(command).allowed for command in ordinary())
        run.passed[name] = Counter()
    for family, _, command in mutants():
        run.disguises[family] += 1
        for name, policy in policies.items():
            run.passed[name][family] += policy.judge(command).allowed


def as_markdown(run: PolicyRun, *, date: str, machine: dict[str, str]) -> str:
    blocks = [
        "# What the command policy costs, and what it is worth",
        f"Measured on {date} by `python -m bench --only policy`;"
        " [policy.md](../policy.md) says what it means.",
        as_table(run),
        "Judged are the ordinary commands of the tests and the disguises that their generator"
        " makes, in turns. A verdict is everything between the text of a command and the answer:"
        " parsing, expansion, unwrapping and rules, in Python, in the process of the server."
        " Times are processor time.",
        "\n".join(
            ["| machine | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in machine.items())]
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def as_table(run: PolicyRun) -> str:
    """The findings, a column a rule set; readable as it is, and Markdown too."""
    rows = [["", *SETS], ["---", *("---:" for _ in SETS)]]
    for title, value in (("p50", "p50"), ("p95", "p95"), ("most", "most")):
        figures = [f"{getattr(run.verdict_ms[name], value):.3f}" for name in SETS]
        rows.append([f"verdict on a command under {SHORT} characters, ms, {title}", *figures])
    goal = "met" if run.met else "NOT MET"
    rows.append([f"goal: p50 at most {GOAL_MS} ms", goal, goal])
    rejected = [f"{run.rejected[name]}" for name in SETS]
    rows.append([f"ordinary commands rejected, of {run.commands}", *rejected])
    for family, count in run.disguises.items():
        passed = [f"{run.passed[name][family]}" for name in SETS]
        rows.append([f"disguises that pass, {family}, of {count}", *passed])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
