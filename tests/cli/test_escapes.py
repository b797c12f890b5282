"""What comes from a sandbox cannot speak to the terminal, except as the output of a command."""

import subprocess

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.

TITLE = "\x1b]0;owned\x07"
NASTY = f"{TITLE}\x9b31m\u202egnp.exe\u2066\n"
IN_BASH = r"$'\e]0;owned\a\xc2\x9b31m\u202egnp.exe\u2066\n'"


def check_quiet(text: str) -> None:
    bad = [char for char in text if not char.isprintable() and char != "\n"]
    assert not bad, text.encode()
    assert r"\x1b]0;owned\x07" in text


def told(done: subprocess.CompletedProcess[str]) -> str:
    """All that a program said, of which none may be the output of a command."""
    return done.stdout + done.stderr


def test_names_of_files(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, f"mkdir d; ln -s /etc/passwd d/{IN_BASH}")
    done = sandbox("cp", f"{thread}:d", "d")
    assert done.stderr.count("\n") == 1
    check_quiet(told(done))
    (left_out,) = sandbox.json("cp", f"{thread}:d", "e")["left_out"]
    assert left_out == NASTY, "JSON has it as it is"
    sandbox.output("run", "-t", thread, f"mkdir -p f/{IN_BASH}")
    (sandbox.folder / "f").mkdir()
    (sandbox.folder / "f" / NASTY).write_text("in the way")
    check_quiet(told(sandbox("cp", f"{thread}:f", ".")))
    check_quiet(told(sandbox("cp", f"{thread}:no-{NASTY}", ".")))
    check_quiet(told(sandbox("run", "-t", thread, "--cwd", NASTY, "true")))


def test_what_names_a_thread_or_a_command(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    for args in (
        ("rm", NASTY),
        ("logs", thread, NASTY),
        ("drain", NASTY),
        ("health", "--url", f"http://{NASTY}"),
        ("policy", "check", f"rm {NASTY}", "--policy", "open"),
    ):
        done = sandbox(*args)
        shown = [char for char in told(done) if not char.isprintable() and char != "\n"]
        assert not shown, (args, told(done))


def test_the_output_of_a_command_is_what_it_is(sandbox: Program, thread: str) -> None:
    assert sandbox.output("run", "-t", thread, f"printf %s {IN_BASH}") == NASTY
