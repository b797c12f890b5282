"""What a model is told about its sandbox: results, errors and limits, in words it can act on.

Everything here is pure. `present` shows the result of a command, `explain` an error, and
`system_prompt` is what a model should know before its first call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox_sdk import errors
from sandbox_sdk.protocol.errors import size_text
from sandbox_sdk.protocol.models import (
    MAX_TIMEOUT_S,
    USER,
    WORKSPACE,
    ExecuteResult,
    Limits,
    Resumed,
)
from sandbox_sdk.units import duration_text

OUTPUTS = "/tmp/outputs"
"""Where the whole of a shortened output is saved: outside of the workspace."""

RECREATED = (
    "Note: your sandbox was lost or had expired, and this is a new one. Your files from before are"
    " gone, and so are variables, the working directory and background processes."
    " Make again what you need."
)
RESTARTED = (
    "The sandbox was restarted: it is empty, as new. Files, variables and processes are gone."
)

REPLAYED = "[answered from an earlier call with this id]"

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # strings for the terminal itself
    r"|\x1b[ -/]*[0-~]"
)
_OVERSTRUCK = re.compile(r"[^\n]\x08")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class Presenting:
    """How output is shown."""

    max_chars: int = 16_000
    """Longer output is shortened: its beginning and its end are shown."""
    strip_ansi: bool = True
    """Leave out colours, cursor movements and other control characters."""
    collapse_progress: bool = True
    """Of a line that was written over and over, such as a progress bar, show the last state."""


@dataclass(frozen=True)
class Shortened:
    """A text with its middle left out. Lines are counted from 1; `left_out` is (0, 0) where the
    cut is inside one line."""

    head: str
    tail: str
    chars: int
    lines: int
    left_out: tuple[int, int]


def clean(output: str, options: Presenting) -> str:
    """Output as a terminal would show it at the end. Keeps the number of lines."""
    if options.collapse_progress and "\r" in output:
        output = "\n".join(_last_state(line) for line in output.split("\n"))
    if options.strip_ansi:
        output = _CONTROLS.sub("", _OVERSTRUCK.sub("", _ESCAPES.sub("", output)))
    return output


def shorten(text: str, max_chars: int) -> Shortened | None:
    """The head and the tail of a text that is too long, whole lines where that is possible."""
    if len(text) <= max_chars:
        return None
    half = max_chars // 2
    head, tail = text[:half], text[len(text) - half :]
    if (end := head.rfind("\n") + 1) > half // 2:
        head = head[:end]
    if 0 < (start := tail.find("\n") + 1) < half // 2:
        tail = tail[start:]
    lines = _lines(text)
    first, last = head.count("\n") + 1, lines - _lines(tail)
    whole = head.endswith("\n") and last >= first
    return Shortened(head, tail, len(text), lines, (first, last) if whole else (0, 0))


def present(
    result: ExecuteResult, *, options: Presenting | None = None, saved_as: str | None = None
) -> str:
    """The result of a command. saved_as: the file in the box with the whole cleaned output, if it
    is shortened here and was saved."""
    options = options or Presenting()
    parts = [REPLAYED] if result.replayed else []
    if result.session_state == "recreated":
        parts.append(RECREATED)
    if result.resumed is not None:
        parts.append(resumed_note(result.resumed))
    parts.append(_shown(clean(result.output, options), options, saved_as) or "(no output)")
    if result.truncated:
        parts.append(
            f"[the command wrote {result.output_bytes:,} bytes, more than is kept: the middle is"
            " lost. Run it again with `> file 2>&1` to have all of it]"
        )
    if result.hint:
        parts.append(f"[hint: {result.hint}]")
    parts.append(_ending(result))
    return "\n".join(parts)


def resumed_note(resumed: Resumed) -> str:
    """What a model has to know of a sandbox that went on from a checkpoint."""
    if resumed.complete:
        return (
            "Note: your sandbox was put aside and is back: files, variables and the working"
            " directory are as they were; background processes are gone."
        )
    return (
        "Note: your sandbox was lost and goes on from a checkpoint taken"
        f" {duration_text(round(resumed.age_s))} ago. What you did after that is gone, and so are"
        " background processes: look what is there before you go on."
    )


def explain(error: errors.SandboxError) -> str:
    """What went wrong with a call, and what to do about it."""
    if isinstance(error, errors.CommandRejected):
        return _rejection(error)
    message = error.message.rstrip(".")
    return f"Error ({error.code}): {message}. {_advice(error)}".rstrip()


def system_prompt(limits: Limits, *, max_chars: int = Presenting.max_chars) -> str:
    """A paragraph about the sandbox for a system prompt."""
    return (
        "You have a Linux sandbox of your own, for this conversation alone. Commands run in bash"
        f" as {USER}, without root, and start in {WORKSPACE}; keep your files there. Files, working"
        " directory, variables and functions carry over from command to command. It has"
        f" {limits_text(limits)}. {network_text(limits)} A command is ended after"
        f" {limits.command_timeout_s:g} seconds unless you give it a longer timeout, at most"
        f" {MAX_TIMEOUT_S:g}; let servers and long work run in the background with"
        " `command > log.txt 2>&1 &`. Nothing can answer prompts: use options such as -y."
        f" Of output over {max_chars:,} characters you see the beginning and the end, and where"
        f" the rest is. Files of up to {size_text(limits.upload_limit_bytes)} can be put in. A"
        " sandbox that is not used for long is removed with its files; you will be told."
    )


def limits_text(limits: Limits) -> str:
    """What a sandbox may use, for a sentence."""
    return (
        f"{size_text(limits.memory_bytes)} of memory, {limits.cpus:g} CPU, {limits.pids} processes"
        f" and {size_text(limits.disk_bytes)} of disk"
    )


def network_text(limits: Limits) -> str:
    """Whether a sandbox has a network, as a sentence."""
    if limits.network == "none":
        return "There is no network: nothing can be downloaded or installed from the internet."
    if limits.network == "allowlist":
        return _allowlist_text(limits.network_allow)
    if limits.network == "open":
        return (
            "It can reach public hosts over HTTP, HTTPS and SOCKS5, through a proxy that the"
            " environment variables name: pip, npm, git and curl work as usual."
        )
    return "It can reach the network."


def _allowlist_text(hosts: Sequence[str]) -> str:
    if not hosts:
        return "There is no network: the operator has allowed no host."
    shown = shorter(hosts)
    return (
        f"It can reach these hosts and no others: {shown}. pip, npm, git and curl use the proxy"
        " that the environment variables name; what is refused says why."
    )


def shorter(names: Sequence[str], *, chars: int = 1500) -> str:
    """As many as fit, and how many more there are."""
    fit = list(names)
    while len(fit) > 1 and len(", ".join(fit)) > chars:
        fit.pop()
    more = len(names) - len(fit)
    return ", ".join(fit) + (f" and {more} more" if more else "")


def _last_state(line: str) -> str:
    """What a terminal shows of a line with carriage returns."""
    states = [part for part in line.split("\r") if part]
    return states[-1] if states else ""


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def _shown(text: str, options: Presenting, saved_as: str | None) -> str:
    cut = shorten(text, options.max_chars)
    if cut is None:
        return text.rstrip("\n")
    first, last = cut.left_out
    what = f"lines {first:,} to {last:,} of {cut.lines:,}" if last else "the middle"
    see = "Run the command again with `> file 2>&1` and look at parts of the file"
    if saved_as is not None:
        part = f"sed -n '{first},{min(last, first + 99)}p' {saved_as}"
        if not last:
            part = f"tail -c +{len(cut.head) + 1} {saved_as} | head -c {options.max_chars // 2}"
        see = f"The whole is in {saved_as}: use grep, or see some of it at a time, as in `{part}`"
    gap = "" if cut.head.endswith("\n") else "\n"
    note = f"[… {what} left out, {cut.chars:,} characters in all. {see} …]"
    return f"{cut.head}{gap}{note}\n{cut.tail}".rstrip("\n")


def _ending(result: ExecuteResult) -> str:
    if result.exit_code is None:
        return f"[still running in the background as command {result.command_id}]"
    if result.timed_out:
        return (
            f"[timed out after {result.duration_ms / 1000:.0f} s: the command and everything it"
            " started were ended, and the shell is as it was before. Try a longer timeout (at"
            f" most {MAX_TIMEOUT_S:g} seconds), less work at once, or the background:"
            " `command > log.txt 2>&1 &`]"
        )
    ending = f"exit code {result.exit_code}"
    if result.reason == "oom":
        ending += ": killed, out of memory. Use less at once: smaller chunks, fewer processes"
    elif result.reason in ("pids", "exhausted"):
        ending += ": there are too many processes to start another. End some (see `ps aux`)"
    elif result.signal is not None:
        ending += f": killed by {result.signal}"
    return f"[{ending}]"


def _rejection(error: errors.CommandRejected) -> str:
    lines = [f"Not run: {error.message}"]
    for name, label in (
        ("rule", "rule"),
        ("command", "rejected part"),
        ("reason", "reason"),
        ("alternative", "do this instead"),
    ):
        if (said := error.details.get(name)) and str(said) not in error.message:
            lines.append(f"{label}: {said}")
    if len(lines) == 1:
        lines.append("Do it another way; the same command will be rejected again.")
    return "\n".join(lines)


_ADVICE: list[tuple[type[errors.SandboxError], str]] = [
    (
        errors.SessionLost,
        "Your sandbox is gone with all its files. The next command gets a new, empty one",
    ),
    (errors.SessionNotFound, "There is no sandbox yet; run a command, and there will be"),
    (errors.FileMissing, f"A relative path begins in {WORKSPACE}, wherever `cd` went"),
    (
        errors.DiskFull,
        f"Delete what is not needed; `du -sh {WORKSPACE}/* | sort -h` shows what is large",
    ),
    (errors.FileTooLarge, "Split the file, or make it inside the sandbox"),
    (errors.TransferCorrupted, "Nothing was kept of it. Try again"),
    (errors.ContextLost, "Variables and imports are gone, files are not. Run again what you need"),
    (errors.ContextNotFound, "Leave the context out, or use one that there is"),
    (
        errors.KernelMissing,
        "This sandbox cannot run code in that language: write it to a file and run it with bash,"
        " if it has the program",
    ),
    (errors.IdempotencyMismatch, "This call was made before with other arguments. Call again"),
    (errors.InvalidRequest, "Correct the arguments and call again"),
    (
        errors.Unauthorized,
        "You cannot mend this: tell the user that the API key is missing or wrong",
    ),
    (errors.Forbidden, "You cannot mend this: tell the user"),
    (errors.Capacity, "Nothing is lost"),
    (errors.RateLimited, "Nothing is lost"),
    (errors.RuntimeUnavailable, "The sandbox cannot be reached, but nothing is known to be lost"),
    (errors.Unavailable, "Nothing is lost"),
]


def _advice(error: errors.SandboxError) -> str:
    said = next((text for kind, text in _ADVICE if isinstance(error, kind)), None)
    if said is None:
        return "This is a fault of the sandbox. Try once more; if it stays, tell the user."
    if isinstance(error, errors.Unavailable):
        wait = error.details.get("retry_after_s")
        when = f"in {wait:g} seconds" if isinstance(wait, int | float) else "in a while"
        return f"{said}: try the same call again {when}; if it stays, tell the user."
    return f"{said}."
