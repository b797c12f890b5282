"""Effects of builtins on variables and the working directory."""

from __future__ import annotations

import posixpath
import re

from sandbox_server.policy.fields import HOLE, NAME, SPLIT, certain, known
from sandbox_server.policy.inner import Options
from sandbox_server.policy.streams import output
from sandbox_server.policy.variables import MAX_VALUES, UNKNOWN, Values, Variables

DECLARING = frozenset({"declare", "typeset", "local", "readonly", "export"})
_SETS_NAMES = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "printf", "wait"})
MAX_READ = 256
_READ_VALUED = "adinNptuC"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def assigned_names(name: str, argv: list[str]) -> list[str]:
    """Names of the variables a builtin assigns; HOLE for one that is unknown."""
    if name in DECLARING:
        words = [word for word in argv[1:] if word[:1] not in ("-", "+")]
        return [_target(word.partition("=")[0]) for word in words]
    if name == "printf":
        return [_target(argv[2])] if argv[1:2] == ["-v"] and len(argv) > 2 else []
    if name in ("read", "mapfile", "readarray"):
        options = Options(argv[1:], valued=_READ_VALUED, long_valued=())
        named = [value for option, value in options.found if option == "-a"]
        return [_target(word) for word in [*named, *options.rest]]
    if name == "getopts":
        return [_target(word) for word in argv[2:3]]
    if name == "unset":
        return [_target(word) for word in argv[1:] if word[:1] != "-"]
    return []


def affect(name: str, argv: list[str], stdin: str | None, variables: Variables) -> None:
    """Apply a builtin's effect to `variables`. `stdin` is None if unknown."""
    if name == "cd":
        variables.move(_moved(argv, variables.cwd))
    elif name in ("pushd", "popd"):
        variables.move(None)
    elif name in DECLARING:
        for word in argv[1:]:
            target, equals, value = word.partition("=")
            if not _NAME.fullmatch(target):
                continue
            if equals:
                variables.assign(target, Values((value.replace(SPLIT, HOLE),), complete=True))
            elif name not in ("export", "readonly"):
                variables.forget(target)
    elif name == "set" and "--" in argv:
        bind(argv[argv.index("--") + 1 :], variables)
    elif name == "printf" and argv[1:2] == ["-v"] and len(argv) > 3:
        made = output(["printf", *argv[3:]], None)
        variables.assign(argv[2], UNKNOWN if made is None else Values((made,)))
    elif name == "read":
        _read(argv, stdin, variables)
    elif name in _SETS_NAMES:
        sure = all(known(word) for word in argv)
        variables.functions = variables.functions - set(argv) if sure else frozenset()
        for target in assigned_names(name, argv):
            variables.forget(target)


def _target(word: str) -> str:
    found = _NAME.match(word)
    return found[0] if found and known(word) else HOLE


def _moved(argv: list[str], cwd: str | None) -> str | None:
    words = [word for word in argv[1:] if word == "-" or word[:1] != "-"]
    target = certain(words[0]) if words else "~"
    if target is None or target == "-":
        return None
    if target[:1] in ("/", "~"):
        return posixpath.normpath(target)
    return posixpath.normpath(posixpath.join(cwd, target)) if cwd else None


def bind(words: list[str], variables: Variables) -> None:
    """Set the positional parameters."""
    variables.set_array("@", tuple(words))
    if any(SPLIT in word for word in words):
        words = []
        for number in range(1, 10):
            variables.assign(str(number), UNKNOWN)
    for number, word in enumerate(words[:9], 1):
        variables.assign(str(number), Values((word,)))


def _read(argv: list[str], stdin: str | None, variables: Variables) -> None:
    options = Options(argv[1:], valued=_READ_VALUED, long_valued=())
    names = options.rest or ["REPLY"]
    array = options.value("-a")
    line = None if stdin is None else stdin.partition("\n")[0]
    if array and line is not None:
        variables.set_array(array, (*line.split(None, MAX_READ)[:MAX_READ], SPLIT))
    if stdin is not None and NAME in stdin and len(names) == 1 and _NAME.fullmatch(names[0]):
        lines = dict.fromkeys([*stdin.split("\n", MAX_VALUES), ""])  # Empty at end of input.
        variables.assign(names[0], Values(tuple(lines), complete=len(lines) <= MAX_VALUES))
        return
    if line is None:
        for name in names:
            variables.forget(name)
        return
    words = line.split(None, len(names) - 1)
    for index, name in enumerate(names):
        value = words[index].rstrip() if index < len(words) else ""
        if _NAME.fullmatch(name):
            variables.assign(name, Values((value,)))
