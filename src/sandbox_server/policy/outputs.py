"""What a few programs print, where that follows from their arguments and input alone."""

from __future__ import annotations

import base64
import binascii
import re

from sandbox_server.policy.bash.effort import BY_HAND, CHARACTERS
from sandbox_server.policy.bash.escapes import echoed
from sandbox_server.policy.fields import HOLE

MAX_OUTPUT = 65536
MAX_SET = 256
SURE = frozenset({"echo", "printf", "cat"})
"""What they print is not only likely, but certain."""
_DIRECTIVE = re.compile(r"%(?:%|[-0-9.]*([sbqdcxi]))")


def cost(argv: list[str], stdin: str | None) -> int:
    """The steps that it takes to tell."""
    marks = [word.count("\\") + word.count("%") for word in argv]
    rounds = _rounds(argv[1:]) if argv[0].endswith("printf") else 1
    characters = sum(map(len, argv)) + rounds * max(map(len, argv)) + len(stdin or "")
    by_hand = sum(marks) + rounds * (1 + max(marks)) + (stdin or "").count("\n")
    return characters // CHARACTERS + 2 * by_hand // BY_HAND


def output(argv: list[str], stdin: str | None) -> str | None:
    """None where it cannot be told. The fields may have holes, and then so has the output."""
    made = _output(argv, stdin)
    return None if made is None or len(made) > MAX_OUTPUT else made


def _output(argv: list[str], stdin: str | None) -> str | None:
    name, *arguments = argv
    name = name.rpartition("/")[2]
    if name == "echo":
        return _echo(arguments)
    if name == "printf":
        return _printf(arguments)
    if stdin is None:
        return None
    flags = [argument for argument in arguments if argument.startswith("-")]
    if name in ("cat", "tee"):
        return stdin if flags == arguments else None
    if HOLE in stdin:
        return None
    if name == "rev" and not arguments:
        return "".join(line[::-1] + "\n" for line in stdin.splitlines())
    if name in ("base64", "base32") and flags and flags[0] in ("-d", "-D", "--decode", "-di"):
        return _decoded(stdin, base64.b64decode if name == "base64" else base64.b32decode)
    if name == "xxd" and "-r" in "".join(flags) and "p" in "".join(flags):
        return _decoded(stdin, bytes.fromhex)
    if name == "tr" and len(arguments) == 2:
        return _translated(stdin, *arguments)
    return None


def _echo(arguments: list[str]) -> str:
    newline, escapes = "\n", False
    while arguments and re.fullmatch("-[neE]+", arguments[0]):
        option = arguments[0]
        newline = "" if "n" in option else newline
        escapes = "e" in option or (escapes and "E" not in option)
        arguments = arguments[1:]
    text = " ".join(arguments)
    return (echoed(text) if escapes else text) + newline


def _printf(arguments: list[str]) -> str | None:
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        return None
    template, *values = arguments
    rounds, supply = _rounds(arguments), iter(values)

    def filled(found: re.Match[str]) -> str:
        value = next(supply, "") if found[1] else "%"
        return echoed(value) if found[1] == "b" else value

    made = ""
    for _ in range(rounds):
        last = 0
        for found in _DIRECTIVE.finditer(template):
            made += echoed(template[last : found.start()]) + filled(found)
            last = found.end()
        made += echoed(template[last:])
    return made


def _rounds(arguments: list[str]) -> int:
    """How often printf goes through its format, until it has used up the values."""
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments:
        return 1
    wanted = sum(1 for found in _DIRECTIVE.finditer(arguments[0]) if found[1])
    return max(1, -(-(len(arguments) - 1) // wanted)) if wanted else 1


def _decoded(text: str, decode: object) -> str | None:
    try:
        return decode("".join(text.split())).decode("utf-8", "replace")  # type: ignore[operator,no-any-return]
    except (binascii.Error, ValueError):
        return None


def _translated(text: str, source: str, target: str) -> str | None:
    if source == "-d":
        gone = _set(target)
        return None if gone is None else text.translate(dict.fromkeys(map(ord, gone)))
    before, after = _set(source), _set(target)
    if not before or not after:
        return None
    after = after.ljust(len(before), after[-1])
    return text.translate({ord(b): a for b, a in zip(before, after, strict=False)})


def _set(text: str) -> str | None:
    """`a-z` and the like; classes are not known."""
    if "[:" in text or len(text) > MAX_SET:
        return None
    text = echoed(text)
    made, index = "", 0
    while index < len(text):
        if text[index + 1 : index + 2] == "-" and index + 2 < len(text):
            low, high = ord(text[index]), ord(text[index + 2])
            made += "".join(map(chr, range(low, min(high, low + 255) + 1)))
            index += 3
        else:
            made += text[index]
            index += 1
    return made
