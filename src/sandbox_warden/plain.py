"""Commands that only start programs, like `ls -l | head`: no program can change the variables,
functions or folder of the shell that starts it."""

import re

_LONGEST = 1000
_OF_THE_SHELL = (
    r"\.|alias|bg|bind|break|builtin|caller|case|cd|command|compgen|complete|compopt|continue|coproc"
    r"|declare|dirs|disown|do|done|elif|else|enable|esac|eval|exec|exit|export|fc|fg|fi|for|function"
    r"|getopts|hash|help|history|if|in|jobs|kill|let|local|logout|mapfile|popd|printf|pushd|read"
    r"|readarray|readonly|return|select|set|shift|shopt|source|suspend|test|then|time|times|trap|type"
    r"|typeset|ulimit|umask|unalias|unset|until|wait|while"
)
"""Words of bash itself, but for those that change nothing: echo, false, pwd and true."""
_NAME = r"(?!(?:%s)(?![\w./+-]))[\w./+-]+" % _OF_THE_SHELL
_VALUE = r"\$[A-Za-z_]\w*"
_WORD = r"(?:[\w./:=,@%%+*?~^\[\]-]|%s|'[^']*'|\"(?:[^\"$`\\]|%s)*\")+" % (_VALUE, _VALUE)
_REDIRECTION = r"[0-2]?(?:>>?|<)(?:&[12]|[ \t]*" + _WORD + r")"
_STARTED = r"%s(?:[ \t]+(?:%s|%s))*" % (_NAME, _REDIRECTION, _WORD)
_PLAIN = re.compile(r"\s*%s(?:[ \t]*(?:\|\|?|&&|;)[ \t]*%s)*\s*" % (_STARTED, _STARTED))


def is_plain(command: str) -> bool:
    """Whether a command changes nothing of a shell without functions, aliases and references. Of
    expansions only `$name`: those in braces and arithmetic ones may assign."""
    return len(command) <= _LONGEST and _PLAIN.fullmatch(command) is not None
