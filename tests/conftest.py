"""What holds for every test: nothing is left behind, and what was not tested is said aloud."""

import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import hypothesis
import pytest

from tests import lanes, preloaded, run
from tests.contract.on_kubernetes import KUBECONFIG
from tests.leftovers import Leftovers, Trace
from tests.machine import Machine
from tests.s3_server import S3Server
from tests.timing import Timing

GRACE_S = 10.0
"""Boxes end asynchronously: how long after the last test their traces may still be there."""

TERMINALS = (
    "tests/cli/", "tests/console/", "tests/contract/test_terminals.py",
    "tests/e2b/test_commands.py", "tests/integration/test_key_limits.py",
    "tests/integration/test_limits.py", "tests/integration/test_websockets.py",
    "tests/sdk/test_examples.py",
)  # fmt: skip
"""Where tests open terminals."""

LEFTOVERS = pytest.StashKey[Leftovers]()
LEFT = pytest.StashKey[list[Trace]]()
ENDED = pytest.StashKey[list[Trace]]()

# How long an example takes says something about the machine, not about what is tested.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # Tests may run in several processes.
        run.open_temporary_folder()
    config.pluginmanager.register(Timing())


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        run.remove_temporary_folder()


def pytest_collection_finish() -> None:
    """What is imported by now stays: looking through it again and again is a good part of a run."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this lane and slice."""
    kept = lanes.chosen(items)
    if len(kept) < len(items):
        known = set(map(id, kept))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in known])
        items[:] = kept
    # First, as they wait for the cluster and for each other, with nothing else to run at the end.
    items.sort(key=lambda item: "/kubernetes/" not in item.nodeid)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with _cluster(item), _terminals(item):
        return (yield)


def _cluster(item: pytest.Item) -> AbstractContextManager[None]:
    """While a test breaks parts of the cluster, no other that needs it runs."""
    if not KUBECONFIG or "kubernetes" not in item.nodeid:
        return nullcontext()
    cluster = Machine("cluster")
    return cluster.alone() if item.get_closest_marker("cluster_alone") else cluster.shared()


def _terminals(item: pytest.Item) -> AbstractContextManager[None]:
    """While a test takes all terminals of the machine, no other that needs one runs."""
    if item.get_closest_marker("machine_alone"):
        return Machine("machine").alone()
    return Machine("machine").shared() if item.nodeid.startswith(TERMINALS) else nullcontext()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        session.config.stash[LEFTOVERS] = Leftovers(factory.getbasetemp())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if boxes, mounts, processes or files of ours outlive it."""
    preloaded.stop()
    if LEFTOVERS not in session.config.stash:
        return
    leftovers = session.config.stash[LEFTOVERS]
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        session.config.stash[ENDED] = leftovers.end()
        return
    deadline = time.monotonic() + GRACE_S
    while (left := leftovers.found()) and time.monotonic() < deadline:
        time.sleep(0.2)
    session.config.stash[LEFT] = sorted(left)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.ensure_newline()
    if ended := terminalreporter.config.stash.get(ENDED, []):
        kinds = Counter(trace.kind for trace in ended)
        what = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        terminalreporter.section(f"interrupted; stopped what still ran: {what}")
    if left := terminalreporter.config.stash.get(LEFT, []):
        terminalreporter.section(f"{len(left)} left behind", red=True, bold=True)
        for trace in left:
            terminalreporter.write_line(f"  {trace}")
    missing = os.environ.get("SANDBOX_TEST_MISSING", "")
    for what in (missing, *_lacking(terminalreporter)):
        if what:
            terminalreporter.write_line(f"NOT TESTED HERE: {what}", red=True, bold=True)


def _lacking(terminalreporter: pytest.TerminalReporter) -> set[str]:
    """What tests were skipped for that only some machines have."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = (report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple))
    told = (reason.removeprefix("Skipped: ") for reason in reasons)
    lacks = ("GPUs: ", "prometheus: ", "the console's sources: ", "copies of disks: ", "cargo: ")
    return {reason for reason in told if reason.startswith(lacks)}
