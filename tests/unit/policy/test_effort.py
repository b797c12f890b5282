"""What a command can make the policy do: counted steps, and memory that is given back."""

import asyncio
import contextlib
import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from sandbox_sdk.protocol.models import ExecuteRequest
from sandbox_server.policy.analyse import MAX_LENGTH, analyse
from sandbox_server.policy.analysis import Doubt
from sandbox_server.policy.bash.source import MAX_WORK, QUICK_WORK
from sandbox_server.policy.bash.syntax import TooMuch
from sandbox_server.policy.policy import KEPT, KEPT_LENGTH, Policy
from sandbox_server.service.gate import Gate, verdict_of
from tests.unit.policy.corpus import ordinary

DEFAULT = Policy.read("default")
STRICT = Policy.read("strict")
LINES_A_STEP = 80
"""Lines of Python that a step may take, at most."""
MIB = 1 << 20
MAX_PEAK = 16 * MIB


def doubling(times: int, then: str) -> str:
    assigned = "".join(f"x{i}=$x{i - 1}$x{i - 1};" for i in range(1, times))
    return f"x0={'a' * 500};{assigned}{then}"


NASTY = {
    "commands": "a;" * 2000,
    "different commands": "".join(f"a{i};" for i in range(20_000)),
    "one pipeline": "a|" * 5000 + "a",
    "background": "a&" * 5000,
    "arguments": "rm -r " + "/x " * 20_000,
    "unknown arguments": "rm -r " + "/$x " * 10_000,
    "values that double": doubling(3000, ""),
    "one value many times": doubling(8, "echo $x7 " * 40),
    "array that doubles": "a=(x);" + 'a=("${a[@]}" "${a[@]}");' * 500,
    "array of one word many times": doubling(8, "a=(" + "$x7 " * 500 + ")"),
    "appended": "x=a;" + "x+=$x;" * 1000,
    "assignments": ";".join(f"a{i}=1" for i in range(4000)),
    "assignments that may fail": "&&".join(f"a{i}=1" for i in range(3000)),
    "assignments before a command": " ".join(f"a{i}=1" for i in range(4000)) + " ls",
    "braces": "echo " + "{a,b}" * 6 + " {a,b}{a,b}{a,b}{a,b}{a,b}{a,b}" * 600,
    "braces in a long word": "echo " + "{a,b}" * 6 + "x" * 60_000,
    "braces that nest": "echo " + "{a," * 12 + "b" + "}" * 12 * 100,
    "a range without end": "echo {1.." + "9" * 5000 + "}",
    "a range of nothing": "echo {a..b}" * 5000,
    "substitutions in depth": "$(echo " * 25 + ")" * 25,
    "substitutions beside": "echo " + "$(echo a)" * 3000,
    "parentheses": "(" * 40 + "a;" * 30_000,
    "expressions or subshells": "$((" * 20 + "a;" * 3000,
    "backticks in backticks": "`" + "\\`" * 3000 + "`",
    "loops in loops": "for i in 1 2; do " * 25 + "a=$a$i;" + "done;" * 25,
    "functions of functions": "f(){ :; };" + "".join(
        f"f{i}(){{ {'f%s;' % (i - 1 if i else '') * 8} }};" for i in range(8)) + "f7",
    "functions in functions": "f(){ " * 25 + ":;" + "};" * 25,
    "aliases of aliases": "alias a0=ls;" + "".join(
        f"alias a{i}='a{i - 1};a{i - 1}';" for i in range(1, 25)) + "\na24",
    "folders": "cd a&&" * 1000 + "rm -r *",
    "a folder with a long name": f"cd {'a/' * 1500};" * 30 + "rm -r x",
    "case": "case a in " + "a) b;; " * 3000 + "esac",
    "tests": "[[ " + "a == b && " * 5000 + "a == b ]]",
    "arithmetic": "echo $((" + "+".join(f"a{i}" for i in range(8000)) + "))",
    "arithmetic of spaces": "echo $((" + " " * 60_000 + "a" * 60_000 + "))",
    "an index": "a=(x); echo ${a[" + "9" * 5000 + "]} ${a[²]}",
    "an offset": "x=a; echo ${x:" + "9" * 5000 + "}",
    "a pattern to trim": f"x={'a' * 10_000}; echo ${{x##*b*b*b*b*b}} ${{x%%*b*b*b}}",
    "a long pattern to trim": f"x={'a' * 1000}; echo ${{x##{'*b' * 500}}}",
    "a replacement": f"x={'a' * 10_000}; echo ${{x//a/{'b' * 10_000}}}",
    "a pattern for a name": "/bin/" + "*?" * 100 + "x",
    "a pattern for a path": "rm -r /" + "*" * 20_000 + "a",
    "patterns for a path": "rm -r " + ("/" + "$x*" * 50 + "z ") * 300,
    "escapes": "echo " + "\\a" * 30_000,
    "escapes in quotes": 'echo "' + "x" * 60_000 + "\\a" * 30_000 + '"',
    "empty quotes": "echo " + "''" * 30_000,
    "escapes of C": "echo $'" + "\\x41" * 15_000 + "'",
    "a long word": "echo " + "a" * 200_000,
    "blanks": ("a" + " " * 5000 + ";") * 40,
    "a comment": "#" + "a" * 200_000,
    "heredocs": "".join(f"cat <<E{i}\nx\nE{i}\n" for i in range(3000)),
    "heredocs in heredocs": "".join(f"sh <<E{i}\n" for i in range(40)),
    "a heredoc that goes on": "cat <<E\n" + "a\\\n" * 30_000 + "E\n",
    "a heredoc of variables": "cat <<E\n" + "$x ${y:-z}\n" * 10_000 + "E\n",
    "a heredoc without an end": "cat <<'E'\n" + "Ex\n" * 50_000,
    "base64 of base64": "echo " + "QUFB" * 10_000 + " | base64 -d" * 25 + " | sh",
    "tr": "echo " + "a" * 60_000 + " | tr -d " + "bc" * 20_000 + "| tr a-z b-z" * 25 + " | sh",
    "rev": "printf '" + "a\\n" * 20_000 + "' | rev | rev | sh",
    "printf": "printf '" + "\\x41" * 1000 + "%s' " + "a " * 300 + "| sh",
    "a format of percents": "printf '" + "%%" * 20_000 + "' | sh",
    "xargs": "echo " + "a " * 20_000 + "| xargs rm",
    "xargs for each line": "printf '" + "b\\n" * 300 + "' | xargs -I b echo " + "b " * 1000,
    "xargs that fills in": f"echo {'b' * 20_000} | xargs -I a echo {'a' * 20_000}",
    "find that fills in": f"find {'b' * 10_000} -exec echo {'{}' * 10_000} ;",
    "parallel": f"parallel echo {'{}' * 5000} ::: " + ("b" * 100 + " ") * 200,
    "env": "env " + "a=1 " * 5000 + "ls",
    "commands that run commands": "nohup nice " * 2000 + "ls",
    "a shell in a shell": "bash -c " * 2000 + "ls",
    "not bash, in pieces": ") ; " + "a;" * 20_000,
    "not bash, in shells": "bash -c ') a;b;c';" * 1000,
    "read": "read -a x <<< '" + "a " * 60_000 + "'; echo ${x[@]}",
    "set": "set -- " + "a " * 3000 + ";" + 'set -- "$@" "$@";' * 50,
    "nul": "\0" * 100_000,
    "private characters": "\ue000\ue007\ue006" * 30_000,
    "longer than is looked at": "a;" * MAX_LENGTH,
}  # fmt: skip


def peak(work: Callable[[], object]) -> int:
    """The most memory that was held at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def lines_taken(work: Callable[[], object]) -> int:
    """The lines of the policy that run: the same every time, on every machine."""
    taken = 0

    def in_function(frame: FrameType, event: str, _: object) -> Any:
        nonlocal taken
        taken += event == "line"
        return in_function

    def on_call(frame: FrameType, event: str, _: object) -> Any:
        return in_function if "sandbox_server/policy" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)
    return taken


@pytest.mark.parametrize("kind", NASTY)
def test_work_is_counted_and_bounded(kind: str) -> None:
    """No exception, no more lines than the bound allows, and no more memory."""
    command = NASTY[kind]
    assert lines_taken(lambda: STRICT.explain(command)) < LINES_A_STEP * MAX_WORK
    assert peak(lambda: DEFAULT.explain(command)) < MAX_PEAK


@pytest.mark.parametrize("kind", NASTY)
def test_an_event_loop_takes_little_of_it(kind: str) -> None:
    lines = lines_taken(lambda: quickly(STRICT, NASTY[kind]))
    assert lines < LINES_A_STEP * QUICK_WORK + 8000


def test_what_comes_along_is_counted_too() -> None:
    for given in (
        {"stdin": "a;" * MIB},
        {"stdin": "\0a" * 100_000},
        {"env": {f"X{i}": "x" for i in range(100_000)}},
        {"env": {"X": "a " * MIB}},
        {"cwd": "/a" * MIB},
    ):
        assert lines_taken(lambda: quickly(STRICT, "bash; rm -r x", **given)) < 20_000  # noqa: B023
        assert lines_taken(lambda: STRICT.explain("bash; rm -r x", **given)) < 100_000  # noqa: B023


def test_ordinary_commands_are_judged_at_once() -> None:
    """None is too much, and few have to wait for a thread."""
    found = {command: analyse(command) for command in ordinary()}
    longer = sum(each.work > QUICK_WORK for each in found.values())
    assert longer < len(found) / 100
    assert not [c for c, each in found.items() if Doubt.TOO_MUCH in {d for d, _, _ in each.doubts}]


@pytest.mark.parametrize("delimiter", ["<<'EOF'", "<<EOF", "<<-EOF", "<<-'EOF'"])
def test_long_files_can_be_written(delimiter: str) -> None:
    """What stands in a heredoc is no command, however much of it there is."""
    body = "reboot\nrm -rf / # not run\n" * 5000
    assert len(body) > 100_000
    end = "\t\tEOF" if delimiter[2] == "-" else "EOF"
    command = f"cat > f {delimiter}\n{body}\n{end}\nls"
    for policy in (DEFAULT, STRICT):
        ruling, found = policy.explain(command)
        assert (ruling.allowed, ruling.doubts) == (True, ())
        assert [call.argvs for call in found.calls] == [[["cat"]], [["ls"]]]
    assert DEFAULT.judge(f"{command}\nreboot").rejection
    assert DEFAULT.judge(command.replace("cat > f", "sh")).rejection


def test_rulings_that_are_remembered_are_small() -> None:
    """As many as are kept, whatever was looked at for them."""
    nasty = [
        doubling(8, "echo " + " ".join(f"$x7-{i}" for i in range(40))),
        doubling(8, "reboot $x7 " * 30),
        doubling(8, "nosuch $x7 $x7;"),
        "alias " + "b" * 300 + "='sudo reboot';" + "b" * 300 + " " + "c" * 200,
        "source " + "d" * 900,
        "/bin/" + "*?" * 300,
        "rm -r " + "/x* " * 200,
        "x=" + "a" * 400 + "; echo ${x##" + "*b" * 100 + "}",
        "cat <<" + "E" * 400 + "\nx\n" + "E" * 400,
    ]
    assert max(map(len, nasty)) < KEPT_LENGTH - 20
    for policy in (DEFAULT, STRICT):
        for command in nasty:  # What is made once is no growth.
            policy.judge(command)
    rounds = 20
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(rounds):
            for command in nasty:
                for policy in (DEFAULT, STRICT):
                    policy.judge(f"{command} {number}")
        gc.collect()
        retained = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert retained / (2 * rounds * len(nasty)) * KEPT < 12 * MIB


def test_what_is_told_is_small() -> None:
    """Of what a command expands to, no more than fits: in errors, in dry runs, in the audit log."""
    ruling, found = DEFAULT.explain(doubling(9, "reboot $x8; ls $x8; " + "e" * 5000))
    verdict = verdict_of(ruling, found)
    assert verdict.command is not None
    assert len(verdict.model_dump_json()) < 20_000
    assert verdict.command.argv[0] == "reboot"
    assert (verdict.command.argv[1] or "").endswith("…")
    ruling = STRICT.judge("n" * 100_000)
    assert ruling.rejection is not None
    assert len(repr(ruling)) < 5000


async def test_much_work_is_done_elsewhere_and_one_at_a_time() -> None:
    """Commands of any kind at once: the loop goes on, and there is one thread more at most."""
    gate = Gate(DEFAULT)
    before = threading.active_count()
    seen: set[str] = set()

    async def admit(command: str) -> None:
        await gate.admit(
            ExecuteRequest(thread_id="t", command=command), environment=None, tenant="acme"
        )
        seen.update(thread.name for thread in threading.enumerate())

    await asyncio.gather(*(admit(f"{NASTY['commands']} a{number}") for number in range(20)))
    assert len([name for name in seen if name.startswith("policy")]) == 1
    assert threading.active_count() <= before + 1
    gate.close()


def quickly(policy: Policy, command: str, **given: Any) -> None:
    """As far as an event loop goes."""
    with contextlib.suppress(TooMuch):
        policy.judge(command, work=QUICK_WORK, **given)
