"""Whatever it is given, the analysis ends, within its budget, and never raises."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandbox_server.policy.analyse import MAX_LENGTH, analyse
from sandbox_server.policy.analysis import Doubt
from sandbox_server.policy.bash.source import MAX_WORK
from sandbox_server.policy.policy import Policy

STRICT = Policy.read("strict")
PIECES = st.sampled_from(
    [
        "rm", "-rf", "/", "echo", "x", "$x", "${x:-y}", "$(", ")", "`", "'", '"', "\\", "\n", " ",
        ";", "|", "&", "&&", "||", "(", "((", "))", "{", "}", "[[", "]]", "if", "then", "else",
        "fi", "for", "in", "do", "done", "while", "case", "esac", ";;", "<<E", "\nE\n", "<<<", ">",
        "<(", "x=", "a=(", "$((", "f()", "function", "bash -c", "eval", "xargs", "find . -exec",
        "env -S",
        "{a,b}", "{1..9}", "*", "?", "[a]", "~", "#", "$'\\x41'", "!", "coproc", "time", "trap",
        "alias x=", "set --", '"$@"', "${!x}", "${x@P}", "\0", "\r", "\ue000", "\udc80", "é",
        "${a[²]}", "{1..9999}", "${x:²}", "${x##*}", "${x//a/bb}", "| xargs -I{} ", "| tr a-z",
        "\\\n", "<<-E", "\t", "9" * 5000, "/bin/*?", "x+=$x", "x=$x$x",
        "declare -a", "read", "printf", "| sh", "| base64 -d", "select", "until", "${", "[", "]",
    ]
)  # fmt: skip


def check(source: str) -> None:
    found = analyse(source)
    assert found.work <= MAX_WORK or Doubt.TOO_MUCH in {doubt for doubt, _, _ in found.doubts}
    assert len(found.calls) <= 2 * MAX_WORK
    ruling = STRICT.judge(source, stdin=source)
    assert ruling.allowed or ruling.rejection


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    check(data.decode("latin-1"))
    check(data.decode("utf-8", "surrogateescape"))


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=40), st.sampled_from(["", " "]))
@example(["rm", "&&", "set --"], "")  # Arguments that may have been emptied.
def test_random_bash(pieces: list[str], between: str) -> None:
    check(between.join(pieces))


@settings(max_examples=30, deadline=None)
@given(PIECES, PIECES, st.integers(100, 600))
def test_much_of_the_same(piece: str, other: str, count: int) -> None:
    check(f"{piece} {other} " * count)
    check(f"{piece}{other}" * count)


def test_longer_than_is_looked_at() -> None:
    found = analyse("true;" * MAX_LENGTH + "rm -rf /")
    assert [doubt.value for doubt, _, _ in found.doubts] == ["too-much"]


def test_values_that_double_stay_small() -> None:
    check("".join(f"x{i}=$x{i - 1}$x{i - 1};" for i in range(1, 3000)))
