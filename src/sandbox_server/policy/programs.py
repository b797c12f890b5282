"""Programs in arguments: whether an awk program, a sed script or a flag of tar could run a command.

Each is parsed only as far as needed. What is not plain is Unread, which a whitelist rejects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandbox_server.policy.fields import NUMBER, SPLIT, known, may_be_flag
from sandbox_server.policy.inner import Inner, Options, Unread

MAX_PROGRAM = 10_000
_BEHIND = "an argument set at run time may be an option that runs a command; put -- before it"


class _Arguments:
    """Options and operands in any order, as GNU programs accept them."""

    def __init__(self, words: list[str], *, valued: str, long_valued: tuple[str, ...] = ()) -> None:
        self.options: list[tuple[str, str]] = []
        self.operands: list[str] = []
        self.unknown = False
        """Whether an operand may turn out to be an option."""
        end = words.index("--") if "--" in words else len(words)
        rest = words[:end]
        while rest:
            read = Options(rest, valued=valued, long_valued=long_valued)
            self.options += read.found
            self.operands += read.rest[:1]
            self.unknown |= read.unsure or any(map(may_be_flag, read.rest[:1]))
            self.unknown |= any(may_be_flag(name) for name, _ in read.found)
            rest = read.rest[1:]
        self.operands += words[end + 1 :]

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.options if name in names]

    def only(self, pattern: str) -> bool:
        """Whether there are no options besides those in `pattern`."""
        return all(re.fullmatch(pattern, name) for name, _ in self.options)


# awk

_AWK_TOKEN = re.compile(
    r"""\s+ | \#[^\n]* | \\\n | "(?:[^"\\\n]|\\.)*" | [A-Za-z_]\w* | [0-9.]+
    | \|\| | \+\+ | -- | .""",
    re.VERBOSE | re.DOTALL,
)
_AWK_REGEX = re.compile(r"/(?:\[\^?\]?[^]/\\\n]*\]|[^/\\\n\[]|\\.)*/")
_AWK_BEFORE_REGEX = frozenset({"print", "printf", "return", "else", "do", "case"})
_AWK_OPERATORS = frozenset({"||", *"{};(,!~&|?:=<>"})
_AWK_OPTIONS = "-[FvcPrnNSO]+|--(?:field-separator|assign|posix|traditional|re-interval|sandbox)"


def unwrap_awk(argv: list[str], _: str | None) -> Iterator[Inner]:
    """An awk program may call system(), write to a file or pipe, or be read from a file."""
    options = Options(argv[1:], valued="fFvieElD", long_valued=("--field-separator", "--assign"))
    plain = all(re.fullmatch(_AWK_OPTIONS, name) for name, _ in options.found)
    if (
        not plain
        or options.unsure
        or not options.rest
        or not known(options.rest[0].replace(NUMBER, ""))
    ):
        yield Unread("the awk program is in a file or only known at run time")
    elif not _is_plain_awk(options.rest[0]):
        yield Unread("the awk program may run commands or write files, or is not supported")


def _is_plain_awk(program: str) -> bool:
    """No system(), no pipe, nothing printed to a file, nothing loaded."""
    position, last, printing, nesting = 0, "\n", False, 0
    while position < len(program) <= MAX_PROGRAM:
        found = _AWK_TOKEN.match(program, position)
        if program[position] == "/" and _starts_regex(last):
            found = _AWK_REGEX.match(program, position)
        elif program[position] == "/" and not _divides(last, program, position):
            return False
        if found is None or found[0] in ("system", "|", "@", '"', "\\"):
            return False
        position, token = found.end(), found[0]
        if token == ">" and printing and not nesting:
            return False
        if token[0] in "#\\" or (token.isspace() and "\n" not in token):
            continue
        nesting = max(nesting + (token in ("(", "[")) - (token in (")", "]")), 0)
        ends = token in (";", "}") or token.isspace()
        printing = token in ("print", "printf") or (printing and not ends)
        last = token
    return position >= len(program)


def _starts_regex(last: str) -> bool:
    """Whether a slash starts a regex: after an operator or at the start of a statement."""
    return last in _AWK_BEFORE_REGEX or last.isspace() or last in _AWK_OPERATORS


def _divides(last: str, program: str, position: int) -> bool:
    """After `)`, `++` or `length` a slash may be either; without a second one, it divides."""
    sure = bool(re.fullmatch(r'\w+|[0-9.]+|\]|".*"', last, re.DOTALL)) and last != "length"
    return sure or "/" not in program[position + 1 :]


# sed

_BRACKET = r"\[\^?+\]?+(?>\[[:.=][^]]*+\]|[^]\n])*+\]"
_ADDRESS = rf"(?>[0-9]+(?:~[0-9]+)?|[+~][0-9]+|\$|/(?>{_BRACKET}|[^/\\\n\[]|\\.)*+/[IM]*)"
_END = r"(?=[\s;}#]|$)"
_SED_STEP = re.compile(
    rf"""(?>[\s;]*(?:{_ADDRESS}(?:\s*,\s*{_ADDRESS})?+)?+\s*!*\s*)(?:
        [=dDgGhHnNpPxzF]{_END} | [{{}}] | [qQlL][ \t]*+[0-9]*+{_END} | [:btT][ \t]*+[\w.-]*+{_END}
      | [aic](?:\\\n|\\|[ \t])(?>[^\\\n]|\\.)*+ | [rR][ \t][^\n]* | \#[^\n]*
      | w[ \t]*/dev/std(?:out|err)[ \t]*(?=\n|$)
      | [sy](?P<mark>[^\\\n\w\s])(?>{_BRACKET}|(?!(?P=mark))[^\\\n\[]|\\.)*+(?P=mark)
        (?>(?!(?P=mark))[^\\]|\\.)*+(?P=mark)[gpiIMm0-9]*{_END}
      | $
    )""",
    re.VERBOSE | re.DOTALL,
)
_SED_OPTIONS = (
    "-[neErsziub]+|--(?:expression|quiet|silent|regexp-extended|null-data|separate|in-place|posix"
    "|sandbox|debug)"
)


def unwrap_sed(argv: list[str], _: str | None) -> Iterator[Inner]:
    """`e` runs commands and `w` writes files, as commands and as flags of `s`."""
    words = [re.sub(r"^(-[nErszub]*i).+", r"\1", word, flags=re.DOTALL) for word in argv[1:]]
    given = _Arguments(words, valued="efl", long_valued=("--expression", "--file"))
    if not given.only(_SED_OPTIONS):
        yield Unread("the sed script is in a file, or an option of sed is not supported")
    elif given.unknown:
        yield Unread(_BEHIND)
    else:
        scripts = given.values("-e", "--expression") or given.operands[:1]
        if not all(_is_plain_sed(script.replace(NUMBER, "0")) for script in scripts):
            yield Unread("the sed script may run commands or write files, or is not supported")


def _is_plain_sed(script: str) -> bool:
    """Whether no command of the script runs or writes anything."""
    # sed versions disagree on whether `\]` ends a bracket expression.
    if not known(script) or len(script) > MAX_PROGRAM or re.search(r"\[.*\\\]", script, re.DOTALL):
        return False
    return _all_steps(_SED_STEP, script)


def _all_steps(step: re.Pattern[str], program: str) -> bool:
    """Whether the program consists of such steps only."""
    position = 0
    while position < len(program):
        found = step.match(program, position)
        if found is None or found.end() == position:
            return False
        position = found.end()
    return True


# perl and rename

# Interpolation runs code (`@{[…]}`, `$x[…]`), and so do `(?{…})`, `(*{…})` and the flag e.
_PERL_CODE = r"\((?:\?\??|\*)\{"
_PERL_VALUE = r"\$(?=[0-9](?![\[{])|[)|\s]|(?P=mark))"
_PERL_TEXT = rf"(?>(?!(?P=mark)|{_PERL_CODE})[^\\$@]|\\.|{_PERL_VALUE})*+"
_SUBSTITUTIONS = re.compile(
    rf"""(?>\s*(?:s|tr|y)(?P<mark>[^\\\n\w\s(<\[{{'])){_PERL_TEXT}(?P=mark){_PERL_TEXT}(?P=mark)
    [gimsxr]*\s*;?\s*""",
    re.VERBOSE | re.DOTALL,
)


def unwrap_perl(argv: list[str], _: str | None) -> Iterator[Inner]:
    """Only substitutions on standard input: perl runs a file name like `x|` as a command."""
    match argv[1:]:
        case [options, program] if re.fullmatch("-[lnp0-7]*[np][l0-7]*e", options):
            plain = _is_substitution(program)
        case _:
            plain = False
    if not plain:
        yield Unread(
            "a perl program can run anything; only s/…/…/ on standard input can be checked"
        )


def unwrap_rename(argv: list[str], _: str | None) -> Iterator[Inner]:
    """rename's expression is a perl program."""
    given = _Arguments(argv[1:], valued="e", long_valued=("--expr",))
    if (
        not given.only("-[nvf]+")
        or given.unknown
        or not any(map(_is_substitution, given.operands[:1]))
    ):
        yield Unread("the expression of rename can run anything; only s/…/…/ can be checked")


def _is_substitution(program: str) -> bool:
    return known(program) and len(program) < MAX_PROGRAM and _all_steps(_SUBSTITUTIONS, program)


# tar, pagers

_TAR_VALUED = "fCbNTXVgKHIFL"
_TAR_RUNS = (
    "--to-command", "--checkpoint-action", "--use-compress-program", "--rsh-command",
    "--rmt-command", "--info-script", "--new-volume-script", "--files-from",
)  # fmt: skip


def unwrap_tar(argv: list[str], _: str | None) -> Iterator[Inner]:
    """Some options of tar run a program, or read more options from a file."""
    words, letters = argv[1:], ""
    if words and words[0][:1] != "-":
        letters = words[0] if known(words[0]) else "I"
        values = sum(letter in _TAR_VALUED for letter in letters)
        words = words[1 + values :] if SPLIT not in "".join(words[: 1 + values]) else [SPLIT]
    given = _Arguments(
        words, valued=_TAR_VALUED, long_valued=("--file", "--directory", "--exclude-from")
    )
    names = [name for name, _ in given.options]
    if (
        set(letters) & set("IFT")
        or any(name in ("-I", "-F", "-T") for name in names)
        or any(len(name) > 2 and runs.startswith(name) for name in names for runs in _TAR_RUNS)
    ):
        yield Unread("an option of tar may run a program, or read more options from a file")
    elif given.unknown:
        yield Unread(_BEHIND)


_PAGER_ARGUMENT = re.compile(
    r"-[FRSXNniIeEMmsKqQGgwcdflpu0-9]+|\+\+?(?:[FGg]|[0-9]*|/[^!|\n]*)|[^-+].*"
)


def unwrap_pager(argv: list[str], _: str | None) -> Iterator[Inner]:
    """less and more accept commands as arguments: `+!reboot`."""
    if not all(_PAGER_ARGUMENT.fullmatch(word) and not may_be_flag(word) for word in argv[1:]):
        yield Unread("an argument of the pager may run a command")
