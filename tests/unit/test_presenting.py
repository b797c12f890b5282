"""What a model sees."""

import pytest

from sandbox_sdk import errors
from sandbox_sdk.integrations.presenting import (
    Presenting,
    clean,
    explain,
    present,
    shorten,
    system_prompt,
)
from sandbox_sdk.integrations.showing_code import images_of, present_code
from sandbox_sdk.protocol.models import CodeError, CodeResult, ExecuteResult, Limits, Result

LIMITS = Limits(
    memory_bytes=512 << 20,
    cpus=0.5,
    pids=256,
    disk_bytes=1 << 30,
    command_timeout_s=30,
    output_limit_bytes=1 << 20,
    upload_limit_bytes=100 << 20,
    network="none",
)


def result(output: str = "", **fields) -> ExecuteResult:
    known = {
        "exit_code": 0,
        "output": output,
        "stdout": output,
        "stderr": "",
        "command_id": "c1",
        "duration_ms": 12.0,
        "timed_out": False,
        "truncated": False,
        "output_bytes": len(output),
        "cwd": "/workspace",
        "session_id": "s",
        "generation": 1,
        "session_state": "live",
    }
    return ExecuteResult(**{**known, **fields})


def code_result(**fields) -> CodeResult:
    known = {
        "stdout": "",
        "stderr": "",
        "results": [],
        "error": CodeError(name="ValueError", value="no", traceback=["ValueError: no"]),
        "command_id": "c1",
        "context_id": "python",
        "language": "python",
        "context_state": "live",
        "duration_ms": 12.0,
        "truncated": False,
        "output_bytes": 0,
        "session_id": "s",
        "generation": 1,
        "session_state": "live",
    }
    return CodeResult(**{**known, **fields})


def test_code_is_shown_with_its_results_and_images():
    shown = Result(data={"text/plain": "<Figure>", "image/png": "aGk="})
    value = Result(data={"text/plain": "3", "text/html": "<b>3</b>"}, is_main_result=True)
    result = code_result(stdout="out\n", results=[shown, value])
    assert present_code(result) == "out\n[an image: <Figure>]\n3\nValueError: no"
    assert images_of(result)[0].url == "data:image/png;base64,aGk="
    assert present_code(code_result(error=None)) == "(no output)"
    told = present_code(code_result(context_state="lost", reason="oom"))
    assert "out of memory" in told
    assert "variables and imports are gone" in told
    assert "lost" in present_code(code_result(context_state="restarted"))


def test_output_and_exit_code():
    assert present(result("hello\n")) == "hello\n[exit code 0]"


def test_empty_output_is_said():
    assert present(result(exit_code=1)) == "(no output)\n[exit code 1]"
    hinted = result("no host\n", exit_code=6, hint="there is no network")
    assert present(hinted) == "no host\n[hint: there is no network]\n[exit code 6]"
    assert present(result("\x1b[0m\n")) == "(no output)\n[exit code 0]"


def test_escapes_go_and_progress_bars_keep_their_last_state():
    text = " 10%\r 50%\r100%\n\x1b[31mred\x1b[0m \x1b]0;title\x07b\x08bold\r\n"
    assert clean(text, Presenting()) == "100%\nred bold\n"
    kept = Presenting(strip_ansi=False, collapse_progress=False)
    assert clean(text, kept) == text


@pytest.mark.parametrize(
    "text", ["\x1b[" * 50_000, "\x1b]" * 50_000, "\x1bP" * 50_000, "\r" * 10**5]
)
def test_hostile_output_is_cleaned_in_no_time(text):
    assert "\x1b" not in clean(text, Presenting())


def test_long_output_is_shortened_to_whole_lines_at_both_ends():
    lines = [f"line {n}\n" for n in range(1, 1001)]
    cut = shorten("".join(lines), 200)
    assert cut is not None
    first, last = cut.left_out
    assert cut.head == "".join(lines[: first - 1])
    assert cut.tail == "".join(lines[last:])
    assert len(cut.head) + len(cut.tail) <= 200
    assert cut.lines == 1000


def test_shortened_output_tells_what_is_left_out_and_where_it_is():
    output = "".join(f"line {n}\n" for n in range(1, 1001))
    text = present(
        result(output), options=Presenting(max_chars=200), saved_as="/tmp/outputs/c1.txt"
    )
    assert text.startswith("line 1\n")
    assert "\n[… lines 14 to 990 of 1,000 left out, 8,893 characters in all." in text
    assert "`sed -n '14,113p' /tmp/outputs/c1.txt`" in text
    assert text.endswith("line 1000\n[exit code 0]")


def test_one_long_line_is_shortened_too():
    text = present(result("x" * 1000), options=Presenting(max_chars=200), saved_as="/tmp/o")
    assert "[… the middle left out, 1,000 characters in all." in text
    assert "`tail -c +101 /tmp/o | head -c 100`" in text


def test_without_a_saved_copy_the_advice_is_to_run_it_again():
    assert "again with `> file 2>&1`" in present(result("x" * 99), options=Presenting(max_chars=9))


def test_text_within_the_budget_is_whole():
    assert shorten("x" * 200, 200) is None


def test_a_timeout_tells_what_to_try():
    text = present(result("half", exit_code=124, timed_out=True, duration_ms=30_012))
    assert "timed out after 30 s" in text
    assert "longer timeout" in text
    assert "&`" in text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"exit_code": 137, "reason": "oom", "signal": "SIGKILL"}, "out of memory"),
        ({"exit_code": 143, "signal": "SIGTERM"}, "killed by SIGTERM"),
        ({"exit_code": 126, "reason": "pids"}, "too many processes"),
        ({"exit_code": None}, "still running in the background as command c1"),
        ({"truncated": True, "output_bytes": 5_000_000}, "5,000,000 bytes"),
        ({"session_state": "recreated", "generation": 2}, "Your files from before are gone"),
    ],
)
def test_what_else_happened_is_said(fields, said):
    assert said in present(result("x", **fields))


def test_a_rejection_comes_with_its_alternative():
    error = errors.CommandRejected(
        "this command is not allowed here",
        rule="no-sudo",
        command="sudo apt install x",
        reason="there is no root in the box",
        alternative="pip install --user x",
    )
    assert explain(error).splitlines() == [
        "Not run: this command is not allowed here",
        "rule: no-sudo",
        "rejected part: sudo apt install x",
        "reason: there is no root in the box",
        "do this instead: pip install --user x",
    ]


def tree(root: type[errors.SandboxError]) -> list[type[errors.SandboxError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


@pytest.mark.parametrize("kind", tree(errors.SandboxError), ids=lambda kind: kind.__name__)
def test_every_error_says_what_happened_and_what_to_do(kind):
    of_result = {errors.CommandFailed: result(), errors.CodeFailed: code_result()}
    error = kind(of_result.get(kind, "something happened."))
    text = explain(error)
    assert error.message.rstrip(".") in text
    assert len(text.split(". ")) > 1 or text.count("\n")


def test_what_may_pass_is_tried_again():
    assert "again in 5 seconds" in explain(errors.Capacity("full", retry_after_s=5))
    assert "again in a while" in explain(errors.RuntimeUnavailable("no answer"))


def test_the_system_prompt_has_the_limits():
    text = system_prompt(LIMITS)
    for fact in ("512 MiB", "0.5 CPU", "256 processes", "1 GiB", "30 seconds", "no network"):
        assert fact in text
    assert "no network" not in system_prompt(LIMITS.model_copy(update={"network": "bridge"}))


def test_the_system_prompt_has_the_network():
    def told(network: str, *hosts: str) -> str:
        given = {"network": network, "network_allow": list(hosts)}
        return system_prompt(LIMITS.model_copy(update=given))

    two = told("allowlist", "a.test", "*.b.test")
    assert "these hosts and no others: a.test, *.b.test. pip" in two
    assert "There is no network: the operator has allowed no host." in told("allowlist")
    assert "public hosts over HTTP" in told("open")
    many = told("allowlist", *(f"host-{number}.example.com" for number in range(1000)))
    assert "more. pip" in many
    assert len(many) < 4000
