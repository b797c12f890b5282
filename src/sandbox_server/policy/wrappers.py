"""Commands that run other commands, and what they would run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandbox_server.policy import programs
from sandbox_server.policy.fields import HOLE, SPLIT, known
from sandbox_server.policy.inner import Inner, Options, Run, Script, Unread, filled, unwrap_find

MAX_GIVEN = 256


@dataclass(frozen=True)
class Prefix:
    """A command in front of another: `timeout -k 1 5 ls`."""

    valued: str = ""
    """Short options that take a value."""
    long_valued: tuple[str, ...] = ()
    skip: int = 0
    """Number of operands before the command."""
    assignments: bool = False
    shell: bool = False
    """The rest is joined and run by a shell."""
    scripts: bool = False
    """It accepts -c, whose value is run by a shell."""


PREFIXES = {
    "busybox": Prefix(),
    "builtin": Prefix(),
    "chroot": Prefix(skip=1),
    "chrt": Prefix(valued="pTPD", skip=1),
    "command": Prefix(),
    "dbus-run-session": Prefix(),
    "doas": Prefix(valued="uC"),
    "env": Prefix(valued="uCS", long_valued=("--unset", "--chdir", "--split-string"),
                  assignments=True),
    "exec": Prefix(valued="a"),
    "flock": Prefix(valued="wE", long_valued=("--timeout",), skip=1, scripts=True),
    "ionice": Prefix(valued="cnpPu", long_valued=("--class", "--classdata", "--pid")),
    "ltrace": Prefix(valued="eopsnuaA"),
    "nice": Prefix(valued="n", long_valued=("--adjustment",)),
    "nohup": Prefix(),
    "nsenter": Prefix(valued="tSG", long_valued=("--target",)),
    "pkexec": Prefix(long_valued=("--user",)),
    "proxychains": Prefix(valued="f"),
    "runuser": Prefix(valued="uggs", long_valued=("--user", "--group"), scripts=True),
    "script": Prefix(valued="EIOTmot", skip=99, scripts=True),
    "setarch": Prefix(skip=1),
    "setsid": Prefix(),
    "stdbuf": Prefix(valued="ioe", long_valued=("--input", "--output", "--error")),
    "strace": Prefix(valued="eopsuEaSPX"),
    "su": Prefix(valued="gGsw", skip=99, scripts=True),
    "sudo": Prefix(valued="ugpCrtThUDR", long_valued=("--user", "--group", "--prompt", "--host",
                   "--chdir", "--chroot", "--role", "--type"), assignments=True),
    "systemd-run": Prefix(valued="pEuHM"),
    "taskset": Prefix(skip=1),
    "time": Prefix(valued="fo", long_valued=("--format", "--output")),
    "timeout": Prefix(valued="ks", long_valued=("--kill-after", "--signal"), skip=1),
    "toybox": Prefix(),
    "unbuffer": Prefix(),
    "unshare": Prefix(valued="wRSGl", long_valued=("--root", "--wd", "--setuid", "--setgid")),
    "watch": Prefix(valued="nq", long_valued=("--interval", "--equexit"), shell=True),
    "xvfb-run": Prefix(valued="efnpsw"),
}  # fmt: skip
_NAMES_ONLY = {"command": ("-v", "-V", "-pv", "-pV"), "sudo": ("-l", "-v", "-k", "-K", "-V")}
_MOVES = {"env": ("-C", "--chdir"), "sudo": ("-D", "--chdir", "-R", "--chroot")}
_OPENS_SHELL = {"sudo": ("-i", "-s", "-e", "-A", "--login", "--shell", "--edit", "--askpass")}


def unwrap(name: str, argv: list[str], stdin: str | None) -> Iterable[Inner]:
    """What a command would run, if it is a wrapper. `stdin` is None if unknown.

    Lazy, because each result may be large.
    """
    if prefix := PREFIXES.get(name):
        return _prefixed(name, prefix, argv)
    special = _SPECIAL.get(name)
    return special(argv, stdin) if special else []


def _prefixed(name: str, prefix: Prefix, argv: list[str]) -> Iterable[Inner]:
    if prefix.scripts and (script := _script_option(argv[1:])) is not None:
        return [Script(script)]
    options = Options(argv[1:], valued=prefix.valued, long_valued=prefix.long_valued)
    if any(option in _NAMES_ONLY.get(name, ()) for option, _ in options.found):
        return []
    if name == "env" and (text := options.value("-S", "--split-string")) is not None:
        return [Script(" ".join([text, *options.rest]), words=True)]
    rest, assigned = options.rest, []
    if name == "env" and rest[:1] == ["-"]:
        rest = rest[1:]
    while prefix.assignments and rest and "=" in rest[0]:
        assigned.append(rest[0])
        rest = rest[1:]
    rest = _skipped(prefix, rest)
    found: list[Inner] = []
    if options.unsure:
        found.append(Unread(f"the arguments of {name} are only known at run time"))
    if any(option in _OPENS_SHELL.get(name, ()) for option, _ in options.found):
        found.append(Unread(f"{name} would start a shell or an editor"))
    if rest and prefix.shell:
        found.append(Script(" ".join(rest)))
    elif rest:
        moved = any(option in _MOVES.get(name, ()) for option, _ in options.found)
        found.append(Run(rest, assigned=assigned, elsewhere=moved))
    return found


def _script_option(words: list[str]) -> str | None:
    """The value of -c or --command, at any position."""
    for index, word in enumerate(words):
        if word == "--":
            return None
        name, equals, value = word.partition("=")
        if name == "--command" and equals:
            return value
        if name == "--command" or re.fullmatch("-[a-zA-Z]*c", word):
            return words[index + 1] if index + 1 < len(words) else SPLIT
    return None


def _skipped(prefix: Prefix, rest: list[str]) -> list[str]:
    """The words after the operands. An operand that may be several words hides the start."""
    for operand in rest[: prefix.skip]:
        if SPLIT in operand:
            return [SPLIT]
    return rest[prefix.skip :]


def _xargs(argv: list[str], stdin: str | None) -> Iterable[Inner]:
    options = Options(
        argv[1:],
        valued="InPLsdEa",
        long_valued=("--max-args", "--max-procs", "--max-chars", "--delimiter", "--arg-file"),
    )
    command = [SPLIT] if options.unsure else options.rest or ["echo"]
    mark = options.value("-I", "--replace", "-i")
    from_file = options.value("-a", "--arg-file") is not None
    if mark is not None:
        lines = [SPLIT] if stdin is None or from_file else _lines(stdin)
        return (Run(filled(command, mark or "{}", line.strip())) for line in lines)
    if stdin is None or from_file:
        return [Run([*command, SPLIT])]
    return [Run([*command, *_unquoted(stdin)])]


def _unquoted(text: str) -> list[str]:
    """Split into words as xargs does, with quotes and backslashes."""
    found = re.finditer(r"(?:[^\s'\"\\]|\\.|'[^'\n]*'|\"[^\"\n]*\")+", text, re.DOTALL)
    some = itertools.islice(found, MAX_GIVEN + 1)
    return _few([re.sub(r"\\(.)|['\"]", r"\1", word[0]) for word in some])


def _lines(text: str) -> list[str]:
    return _few(text.removesuffix("\n").split("\n", MAX_GIVEN))


def _few(texts: list[str]) -> list[str]:
    return texts if len(texts) <= MAX_GIVEN else [*texts[:MAX_GIVEN], SPLIT]


def _parallel(argv: list[str], stdin: str | None) -> Iterable[Inner]:
    """Runs the joined words in a shell, with arguments from stdin or after `:::`."""
    options = Options(argv[1:], valued="jNnILlsaSd", long_valued=("--jobs", "--max-args"))
    words = options.rest
    given: list[str] = []
    for mark in (":::", "::::", ":::+"):
        if mark in words:
            at = words.index(mark)
            words, given = words[:at], words[at + 1 :] if mark == ":::" else [SPLIT]
            break
    else:
        given = [SPLIT] if stdin is None else _lines(stdin)
    text = " ".join(words)
    if words and "{}" not in text:
        text += " {}"
    return (Script(filled([text or "{}"], "{}", line)[0]) for line in _few(given) or [""])


def _fd(argv: list[str], _: str | None) -> Iterable[Inner]:
    for mark in ("-x", "--exec", "-X", "--exec-batch"):
        if mark in argv:
            command = argv[argv.index(mark) + 1 :]
            return [Run([HOLE if word == "{}" else word for word in command])] if command else []
    return []


def _eval(argv: list[str], _: str | None) -> Iterable[Inner]:
    words = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    return [Script(" ".join(words), here=True)] if words else []


def _trap(argv: list[str], _: str | None) -> Iterable[Inner]:
    words = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if len(words) < 2 or words[0] in ("-", "", "-p", "-l"):
        return []
    return [Script(words[0], here=True, late=True)]


def _source(argv: list[str], stdin: str | None) -> Iterable[Inner]:
    """A file with unknown content, unless it is standard input."""
    words = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if not words:
        return []
    if words[0] in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        return [Script(SPLIT if stdin is None else stdin, here=True)]
    return [Script(SPLIT, here=True, file=words[0])]


def _shell(argv: list[str], stdin: str | None) -> Iterable[Inner]:
    """`bash -c text`, `bash file`, or commands from standard input."""
    words = argv[1:]
    command = from_input = False
    found: list[Inner] = []
    while words:
        if not known(words[0]) and not command:
            return [Script(SPLIT)]
        if words[0][:1] not in ("-", "+"):
            break
        option, *words = words
        if option in ("-", "--"):
            break
        if option.startswith("--"):
            if option in ("--rcfile", "--init-file", "--login"):
                found.append(Script(SPLIT))
            if option in ("--version", "--help"):
                return []
            continue
        if "i" in option or "l" in option:
            found.append(Script(SPLIT))  # It reads its start-up files first.
        command = command or (option[0] == "-" and "c" in option)
        from_input = from_input or "s" in option
        if option[-1] in "oO":
            words = words[1:]
            if "O" in option:
                found.append(Script(SPLIT))
    if command:
        return [*found, Script(words[0], arguments=tuple(words[1:]))] if words else []
    if words and not from_input and words[0] not in ("/dev/stdin", "/dev/fd/0"):
        return [*found, Script(SPLIT, file=words[0])]
    return [*found, Script(SPLIT if stdin is None else stdin)]


_SPECIAL: dict[str, Callable[[list[str], str | None], Iterable[Inner]]] = {
    **dict.fromkeys(("xargs", "gxargs"), _xargs),
    "parallel": _parallel,
    **dict.fromkeys(("find", "gfind"), unwrap_find),
    **dict.fromkeys(("fd", "fdfind"), _fd),
    "eval": _eval,
    "trap": _trap,
    **dict.fromkeys((".", "source"), _source),
    **dict.fromkeys(("sed", "gsed"), programs.unwrap_sed),
    "tar": programs.unwrap_tar,
    "perl": programs.unwrap_perl,
    **dict.fromkeys(("rename", "prename"), programs.unwrap_rename),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), programs.unwrap_awk),
    **dict.fromkeys(("less", "more"), programs.unwrap_pager),
    **dict.fromkeys(("bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "rbash"), _shell),
}
_READERS = (_xargs, _parallel, _source, _shell)
READS_INPUT = frozenset(name for name, special in _SPECIAL.items() if special in _READERS)
"""Wrappers whose stdin is, or becomes part of, what they run."""
