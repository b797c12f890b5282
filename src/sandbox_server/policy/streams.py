"""What commands read, print and write, as far as it is known before running."""

from __future__ import annotations

import dataclasses
import re

from sandbox_server.policy.analysis import Record, Scope
from sandbox_server.policy.bash import syntax
from sandbox_server.policy.bash.escapes import echoed
from sandbox_server.policy.bash.source import BY_HAND, CHARACTERS, Effort
from sandbox_server.policy.expand import expand, expand_one, product
from sandbox_server.policy.fields import HOLE, NAME, NUMBER, SPLIT
from sandbox_server.policy.inner import names_found
from sandbox_server.policy.variables import UNKNOWN, Values

MAX_OUTPUT = 65536
NO_INPUT = frozenset({"echo", "printf", "find", "ls", "whoami", "hostname", "which", "mktemp",
                      "seq", "date"})  # fmt: skip
"""Their output does not depend on their input."""
_PLAIN_FLAGS = {
    **dict.fromkeys(("grep", "egrep", "fgrep"), re.compile("-[viEFPwxasy]+")),
    **dict.fromkeys(("head", "tail"), re.compile("-[0-9]+|-?n?[+-]?[0-9]*")),
    "sort": re.compile("-[rnuVfhbdMR]+"),
    "uniq": re.compile("-[iud]"),
    "tac": re.compile("(?!)"),
    "shuf": re.compile("-?n?[0-9]*"),
}
"""For programs that print a selection of their input lines: arguments that keep it so."""
_NAMES_ONLY = re.compile("-[1aAtrSdcuUvX]+")
_NUMERIC = re.compile(f"[-+]?[0-9.{NUMBER}]+")
_DIRECTIVE = re.compile(r"%(?:%|[-0-9.]*([sbqdcxi]))")
PROCESSES = 0xE100
"""First of the private-use characters that number process substitutions."""
MAX_PROCESSES = 1000


def cost(argv: list[str], stdin: str | None) -> int:
    """Steps needed to compute the output."""
    marks = [word.count("\\") + word.count("%") for word in argv]
    rounds = _rounds(argv[1:]) if argv[0].endswith("printf") else 1
    characters = sum(map(len, argv)) + rounds * max(map(len, argv)) + len(stdin or "")
    by_hand = sum(marks) + rounds * (1 + max(marks)) + (stdin or "").count("\n")
    return characters // CHARACTERS + 2 * by_hand // BY_HAND


def output(argv: list[str], stdin: str | None) -> str | None:
    """The output, or None if unknown. Placeholders in the fields are kept; a line with NAME stands
    for any number of such lines."""
    made = _output(argv, stdin)
    return None if made is None or len(made) > MAX_OUTPUT else made


def _output(argv: list[str], stdin: str | None) -> str | None:
    name, *arguments = argv
    name = name.rpartition("/")[2]
    if name == "echo":
        return _echo(arguments)
    if name == "printf":
        return _printf(arguments)
    if name == "find":
        return names_found(argv)
    if name == "ls":
        return _listed(arguments)
    if name in ("whoami", "hostname") and not arguments:
        return f"{NAME}\n"
    if name == "mktemp" and arguments in ([], ["-d"]):
        return f"/tmp/{NAME}\n"
    if name == "which":
        return f"/{NAME}\n"
    if name == "seq" and all(_NUMERIC.fullmatch(argument) for argument in arguments):
        return f"{NUMBER}\n"
    if name == "date":
        return _date(arguments)
    if stdin is None:
        return None
    if name == "cat":
        return stdin if all(argument.startswith("-") for argument in arguments) else None
    if (NAME in stdin or NUMBER in stdin) and (plain := _PLAIN_FLAGS.get(name)):
        others = [argument for argument in arguments if not plain.fullmatch(argument)]
        patterns = 1 if "grep" in name else 0
        flags = re.search("^-", stdin, re.MULTILINE)  # Without some of them others count.
        return stdin if len(others) == patterns and not flags else None
    return None


def _date(arguments: list[str]) -> str | None:
    """Format directives become NUMBER or NAME; the text between them is printed as is."""
    formats = [argument for argument in arguments if argument[:1] == "+"]
    if len(formats) != 1 or any(SPLIT in argument for argument in arguments):
        return None
    text = re.sub("%-?[sdmYyHMSjuwNeI]", NUMBER, formats[0][1:])
    text = re.sub("%-?[abABFTDRZpP]", NAME, text)
    return None if "%" in text else text + "\n"


def _listed(arguments: list[str]) -> str | None:
    """What ls prints: its arguments and what is in them. None if that is not just names."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    if not all(_NAMES_ONLY.fullmatch(flag) for flag in flags):
        return None
    given = [argument for argument in arguments if argument not in flags]
    return "".join(f"{name}\n" for name in [NAME, *given])


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
    """How often printf repeats its format to use up the values."""
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments:
        return 1
    wanted = sum(1 for found in _DIRECTIVE.finditer(arguments[0]) if found[1])
    return max(1, -(-(len(arguments) - 1) // wanted)) if wanted else 1


class Streams(Record):
    """Follows values through pipes, redirections and substitutions."""

    def __init__(self, effort: Effort) -> None:
        super().__init__(effort)
        self.processes: dict[str, Values] = {}
        """Output of process substitutions, by path."""

    def words(self, words: list[syntax.Word], scope: Scope) -> list[list[str]]:
        """Every possible argv that the words expand to."""
        outputs = self.outputs(scope)
        return product([expand(word, scope.variables, outputs) for word in words])

    def outputs(self, scope: Scope) -> Outputs:
        return Outputs(self, scope)

    def written(self, redirects: list[syntax.Redirect], scope: Scope) -> list[str]:
        """Files that output is redirected to, without descriptors such as `>&2`."""
        writes: list[str] = []
        for redirect in redirects:
            if redirect.operator[0] in ">&" or redirect.operator == "<>":
                values = expand_one(redirect.target, scope.variables, self.outputs(scope))
                writes.extend(values.alternatives(HOLE))
                if redirect.operator == ">&" and (writes[-1].isdigit() or writes[-1] == "-"):
                    writes.pop()
        return writes

    def input_of(self, redirects: list[syntax.Redirect], scope: Scope) -> Values:
        """The stdin after redirections."""
        stdin = scope.stdin
        for redirect in redirects:
            if redirect.operator == "<<<":
                given = expand_one(redirect.target, scope.variables, self.outputs(scope))
                stdin = Values(tuple(text + "\n" for text in given.texts), given.complete)
            elif redirect.operator in ("<<", "<<-"):
                stdin = expand_one(redirect.target, scope.variables, self.outputs(scope))
            elif redirect.operator == "<":
                stdin = self._read(redirect.target, scope)
        return stdin

    def _read(self, target: syntax.Word, scope: Scope) -> Values:
        for part in target.parts:
            if isinstance(part, syntax.Substitution) and part.process:
                return self.printed(part.body, scope)
        return UNKNOWN

    def printed(self, node: syntax.Node, scope: Scope) -> Values:
        """The output of a command, UNKNOWN if it cannot be predicted."""
        if isinstance(node, syntax.Sequence) and not node.items:
            return Values(("",), complete=True)
        if isinstance(node, syntax.Sequence) and len(node.items) == 1:
            return self.printed(node.items[0][0], scope)
        if isinstance(node, syntax.Compound) and node.kind in (
            syntax.Kind.GROUP,
            syntax.Kind.SUBSHELL,
        ):
            return self.printed(node.bodies[0], scope)
        if isinstance(node, syntax.Pipeline):
            stdin = scope.stdin
            for member in node.members:
                stdin = self.printed(member, dataclasses.replace(scope, stdin=stdin))
            return stdin
        if not isinstance(node, syntax.Simple) or not node.words:
            return UNKNOWN
        return self._printed_simple(node, scope)

    def _printed_simple(self, node: syntax.Simple, scope: Scope) -> Values:
        if any(redirect.operator[0] in ">&" for redirect in node.redirects):
            return UNKNOWN
        if node.words[0].bare() == "pwd":
            return scope.variables.folder
        with self.deeper():
            stdin = self.input_of(node.redirects, scope)
            text = stdin.texts[0] if len(stdin.texts) == 1 else None
            argvs = self.words(node.words, scope)[:4]
            made = [self._output(argv, text) for argv in argvs if argv]
        texts = tuple(each for each in made if each is not None)
        sure = len(texts) == len(argvs) == 1
        return Values(texts, sure and (stdin.complete or argvs[0][0] in NO_INPUT))

    def _output(self, argv: list[str], stdin: str | None) -> str | None:
        self.effort.spend(cost(argv, stdin))
        return output(argv, stdin)


class Outputs:
    """Outputs of substitutions in one scope, and the work that they take."""

    def __init__(self, streams: Streams, scope: Scope) -> None:
        self._streams = streams
        self._scope = scope

    def process(self, part: syntax.Substitution) -> str:
        """The path that stands for a process substitution."""
        number = len(self._streams.processes)
        if number >= MAX_PROCESSES:
            raise syntax.TooMuch(f"more than {MAX_PROCESSES} process substitutions")
        path = f"/dev/fd/{chr(PROCESSES + number)}"
        self._streams.processes[path] = self._streams.printed(part.body, self._scope)
        return path

    def spend(self, steps: int) -> None:
        self._streams.effort.spend(steps)

    def __call__(self, part: syntax.Substitution) -> Values:
        values = self._streams.printed(part.body, self._scope)
        texts = [text.rstrip("\n") for text in values.texts]
        if any(NAME in text for text in texts):
            texts.append("")  # There may be no such name.
        return Values(tuple(texts), values.complete)
