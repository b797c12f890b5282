"""Blocked commands, disguised: what a policy has to see through, and what it cannot."""

import base64
import random
import shlex
from collections.abc import Callable, Iterator

BLOCKED = [
    "rm -rf /",
    "rm -fr /*",
    "rm -r --no-preserve-root /",
    "rm -rf /etc /usr",
    "shutdown -h now",
    "reboot",
    "systemctl poweroff",
    "mkfs.ext4 /dev/sda1",
    "dd if=/dev/zero of=/dev/sda",
    "chmod -R 777 /",
    "nsenter -t 1 -m sh",
    "kill -9 -1",
    "insmod evil.ko",
    "mount /dev/sda1 /mnt",
    "chroot /host sh",
    "xmrig -o pool:3333",
]

Disguise = Callable[[str], str]
q = shlex.quote


def words(command: str) -> list[str]:
    return command.split()


def first(command: str, change: Callable[[str], str]) -> str:
    name, _, rest = command.partition(" ")
    return f"{change(name)} {rest}".rstrip()


def each(command: str, change: Callable[[str], str]) -> str:
    return " ".join(change(word) for word in words(command))


def hexed(text: str) -> str:
    return "".join(f"\\x{ord(c):02x}" for c in text)


def octal(text: str) -> str:
    return "".join(f"\\{ord(c):03o}" for c in text)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def split_in_two(word: str) -> tuple[str, str]:
    middle = max(1, len(word) // 2)
    return word[:middle], word[middle:]


def plain_star(word: str) -> str:
    """A star has to stay outside of quotes."""
    return word if "*" in word else q(word) if q(word) != word else f"'{word}'"


# Words written in another way: a parser sees the same words.
SPELLED: dict[str, Disguise] = {
    "itself": lambda c: c,
    "single quotes": lambda c: each(c, plain_star),
    "double quotes around the name": lambda c: first(c, lambda n: f'"{n}"'),
    "empty quotes inside": lambda c: first(c, lambda n: "''".join(n)),
    "empty double quotes inside": lambda c: first(c, lambda n: '""'.join(n)),
    "half quoted": lambda c: first(c, lambda n: "'{}'\"{}\"".format(*split_in_two(n))),
    "backslashes": lambda c: first(c, lambda n: "".join(f"\\{x}" for x in n)),
    "a backslash first": lambda c: "\\" + c,
    "hex": lambda c: first(c, lambda n: f"$'{hexed(n)}'"),
    "octal": lambda c: first(c, lambda n: f"$'{octal(n)}'"),
    "all words in hex": lambda c: each(c, lambda w: w if "*" in w else f"$'{hexed(w)}'"),
    "partly hex": lambda c: first(c, lambda n: f"$'\\x{ord(n[0]):x}'{n[1:]}"),
    "unicode escape": lambda c: first(c, lambda n: f"$'\\u{ord(n[0]):04x}'{n[1:]}"),
    "locale quotes": lambda c: first(c, lambda n: f'$"{n}"'),
    "brace list": lambda c: "{" + ",".join(words(c)) + "}" if " " in c else c,
    "nested braces": lambda c: (
        "{" + words(c)[0] + ",{" + ",".join(words(c)[1:]) + ",}}" if len(words(c)) > 2 else c
    ),
    "IFS": lambda c: "${IFS}".join(words(c)),
    "IFS and nothing": lambda c: "$IFS$9".join(words(c)),
    "tabs": lambda c: "\t\t".join(words(c)),
    "line continuations": lambda c: " \\\n ".join(words(c)),
    "a line continuation in the name": lambda c: first(c, lambda n: "\\\n".join(split_in_two(n))),
    "an empty expansion inside": lambda c: first(c, lambda n: "${nothing}".join(split_in_two(n))),
    "an empty substitution inside": lambda c: first(c, lambda n: "$()".join(split_in_two(n))),
    "whole path": lambda c: first(c, lambda n: f"/bin/{n}"),
    "crooked path": lambda c: first(c, lambda n: f"/usr//lib/../bin/./{n}"),
    "a redirection first": lambda c: f"</dev/null {c}",
    "an assignment first": lambda c: f"A=1 B=2 {c}",
    "carriage return": lambda c: f"{c}\r\n",
    "a comment behind": lambda c: f"{c} # echo fine",
    "a newline first": lambda c: f"\n\n{c}\n",
    "200 no-ops first": lambda c: "\n".join([*["true"] * 200, c]),
    "200 echoes first": lambda c: "; ".join([*["echo ok"] * 200, c]),
}

# Names and words that are computed.
COMPUTED: dict[str, Disguise] = {
    "variable": lambda c: first(f"X={words(c)[0]}; {c}", lambda n: n).replace(
        f"; {words(c)[0]}", "; $X", 1
    ),
    "two variables": lambda c: "a={}; b={}; $a$b {}".format(
        *split_in_two(words(c)[0]), " ".join(words(c)[1:])
    ),
    "whole command in a variable": lambda c: f"X={q(c)}; $X",
    "braced variable": lambda c: "X={}; ${{X}} {}".format(words(c)[0], " ".join(words(c)[1:])),
    "default value": lambda c: first(c, lambda n: f"${{unset_:-{n}}}"),
    "substring": lambda c: "X=xx{}; ${{X:2}} {}".format(words(c)[0], " ".join(words(c)[1:])),
    "upper case": lambda c: "X={}; ${{X,,}} {}".format(words(c)[0].upper(), " ".join(words(c)[1:])),
    "replaced": lambda c: "X=@{}; ${{X/@/}} {}".format(words(c)[0], " ".join(words(c)[1:])),
    "trimmed": lambda c: "X={}.txt; ${{X%.txt}} {}".format(words(c)[0], " ".join(words(c)[1:])),
    "indirect": lambda c: "Y={}; X=Y; ${{!X}} {}".format(words(c)[0], " ".join(words(c)[1:])),
    "array": lambda c: f'a=({c}); "${{a[@]}}"',
    "positional": lambda c: f'set -- {c}; "$@"',
    "read": lambda c: f"read x <<< {q(words(c)[0])}; $x {' '.join(words(c)[1:])}",
    "printf -v": lambda c: f"printf -v x %s {q(words(c)[0])}; $x {' '.join(words(c)[1:])}",
    "echo": lambda c: first(c, lambda n: f"$(echo {n})"),
    "backticks": lambda c: first(c, lambda n: f"`echo {n}`"),
    "printf": lambda c: first(c, lambda n: f"$(printf '{hexed(n)}')"),
    "loop variable": lambda c: f"for x in {q(c)}; do $x; done",
    "function argument": lambda c: f'run() {{ "$@"; }}; run {c}',
    "function": lambda c: f"go() {{ {c}; }}; go",
    "alias": lambda c: f"shopt -s expand_aliases; alias go={q(c)}\ngo",
    "pattern in the path": lambda c: first(c, lambda n: f"/bin/{n[:-1]}?"),
    "folder by cd": lambda c: f"cd /; {c.replace(' /', ' ./')}" if c.startswith("rm") else c,
    "appended": lambda c: "X={}; X+={}; $X {}".format(
        *split_in_two(words(c)[0]), " ".join(words(c)[1:])
    ),
}

# Commands that run commands.
WRAPPED: dict[str, Disguise] = {
    "bash -c": lambda c: f"bash -c {q(c)}",
    "sh -c in double quotes": lambda c: f'sh -c "{c}"',
    "bash -xc": lambda c: f"/bin/bash -xc {q(c)}",
    "bash -c with arguments": lambda c: f"bash -c '\"$@\"' _ {c}",
    "eval": lambda c: f"eval {c}",
    "eval of a string": lambda c: f"eval {q(c)}",
    "eval twice": lambda c: f"eval eval {q(q(c))}",
    "echo | sh": lambda c: f"echo {q(c)} | sh",
    "printf | bash -s": lambda c: f"printf '%s\\n' {q(c)} | bash -s",
    "here-string": lambda c: f"bash <<< {q(c)}",
    "heredoc": lambda c: f"bash <<EOF\n{c}\nEOF",
    "quoted heredoc": lambda c: f"sh <<'X Y'\n{c}\nX Y",
    "heredoc with tabs": lambda c: f"cat <<-EOF | sh\n\t{c}\n\tEOF",
    "source of a substitution": lambda c: f"source <(echo {q(c)})",
    "dot of stdin": lambda c: f". /dev/stdin <<< {q(c)}",
    "bash of a substitution": lambda c: f"bash <(printf %s {q(c)})",
    "env": lambda c: f"env A=1 {c}",
    "env -S": lambda c: f"env -S {q(c)}",
    "env -i with path": lambda c: f"/usr/bin/env -i {c}",
    "xargs": lambda c: (
        f"echo {' '.join(words(c)[1:])} | xargs {words(c)[0]}"
        if "*" not in c
        else f"xargs -I% {c} <<< x"
    ),
    "xargs sh": lambda c: f"echo {q(c)} | xargs -I%% sh -c %%",
    "xargs with nothing": lambda c: f"xargs {c} </dev/null",
    "find -exec": lambda c: f"find . -maxdepth 0 -exec {c} \\;",
    "find -exec sh": lambda c: f"find . -name x -exec sh -c {q(c)} {{}} +",
    "timeout": lambda c: f"timeout -k 1 10 {c}",
    "nohup": lambda c: f"nohup {c} &",
    "nice": lambda c: f"nice -n 5 ionice -c 3 {c}",
    "sudo": lambda c: f"sudo -u root -- {c}",
    "doas": lambda c: f"doas {c}",
    "command": lambda c: f"command {c}",
    "builtin command": lambda c: f"builtin command {c}",
    "exec": lambda c: f"exec -a ls {c}",
    "stdbuf": lambda c: f"stdbuf -oL {c}",
    "setsid": lambda c: f"setsid -f {c}",
    "busybox": lambda c: f"busybox {c}",
    "time": lambda c: f"time {c}",
    "usr bin time": lambda c: f"/usr/bin/time -f %e {c}",
    "watch": lambda c: f"watch -n 1 {q(c)}",
    "parallel": lambda c: f"parallel ::: {q(c)}",
    "trap": lambda c: f"trap {q(c)} EXIT",
    "coproc": lambda c: f"coproc {c}",
    "named coproc": lambda c: f"coproc NAME {{ {c}; }}",
    "flock": lambda c: f"flock /tmp/l -c {q(c)}",
    "su": lambda c: f"su root -c {q(c)}",
    "script": lambda c: f"script -qc {q(c)} /dev/null",
    "subshell": lambda c: f"( {c} )",
    "group": lambda c: f"{{ {c}; }}",
    "substitution": lambda c: f"echo $( {c} )",
    "quoted substitution": lambda c: f'echo "x $( {c} ) y"',
    "backtick substitution": lambda c: f"echo `{c}`",
    "process substitution": lambda c: f"cat <({c})",
    "in an assignment": lambda c: f"X=$( {c} )",
    "in a default": lambda c: f"echo ${{x:-$( {c} )}}",
    "in arithmetic": lambda c: f"echo $(( $( {c} ) + 1 ))",
    "in a heredoc": lambda c: f"cat <<EOF\n$({c})\nEOF",
    "in a test": lambda c: f"[[ -n $( {c} ) ]]",
    "in an array index": lambda c: f"echo ${{a[$( {c} )]}}",
    "in a redirection": lambda c: f"echo > $( {c} )",
    "in a case": lambda c: f"case $( {c} ) in x) ;; esac",
    "if": lambda c: f"if true; then {c}; fi",
    "else": lambda c: f"if false; then :; else {c}; fi",
    "condition": lambda c: f"if {c}; then :; fi",
    "while": lambda c: f"while true; do {c}; done",
    "until": lambda c: f"until {c}; do :; done",
    "for": lambda c: f"for i in 1 2; do {c}; done",
    "c-style for": lambda c: f"for ((i=0; i<1; i++)); do {c}; done",
    "case": lambda c: f"case x in x) {c};; esac",
    "and": lambda c: f"true && {c}",
    "or": lambda c: f"false || {c}",
    "pipe": lambda c: f"yes | {c}",
    "negated": lambda c: f"! {c}",
    "in the background": lambda c: f"{c} & wait",
}

# What no parser of bash sees: another language, a file, what a program prints, a late value.
HIDDEN: dict[str, Disguise] = {
    "python": lambda c: f"python3 -c {q(f'import os; os.system({c!r})')}",
    "perl": lambda c: f"perl -e {q(f'system({c!r})')}",
    "awk": lambda c: "awk {}".format(q(f'BEGIN {{ system("{c}") }}')),
    "node": lambda c: f"node -e {q(f'require(`child_process`).execSync({c!r})')}",
    "sed": lambda c: f"echo {q(c)} | sed 1e",
    "vim": lambda c: f"vim -es -c {q(f':!{c}')} -c :q",
    "git": lambda c: f"git -c alias.x={q('!' + c)} x",
    "tar": lambda c: f"tar cf /dev/null x --checkpoint=1 --checkpoint-action=exec={q(c)}",
    "make": lambda c: f"printf 'x:\\n\\t{c}\\n' | make -f -",
    "script file": lambda c: f"echo {q(c)} > x.sh; sh x.sh",
    "own program": lambda c: f"echo {q(c)} > x; chmod +x x; ./x",
    "unknown variable": lambda c: first(c, lambda n: "$COMMAND_FROM_BEFORE"),
    "gzip": lambda c: "echo H4sIAAAAAAAA | base64 -d | gunzip | sh",
    "evaluated index": lambda c: f"x='a[$({c})]'; echo $((x))",
    "evaluated prompt": lambda c: f"x='$({c})'; echo ${{x@P}}",
    "evaluated declaration": lambda c: f"declare -a x='($({c}))'",
    "printed name": lambda c: first(c, lambda n: f"$(awk 'BEGIN{{print \"{n}\"}}')"),
    "late name": lambda c: f"cat > n <<< {words(c)[0]}; $(< n) {' '.join(words(c)[1:])}",
    "decoded name": lambda c: first(c, lambda n: f"$(echo {b64(n)} | base64 -d)"),
    "reversed name": lambda c: first(c, lambda n: f"$(echo {n[::-1]} | rev)"),
    "base64 | sh": lambda c: f"echo {b64(c)} | base64 -d | sh",
    "base64 here-string": lambda c: f"base64 --decode <<< {b64(c)} | bash",
    "xxd | sh": lambda c: f"echo {c.encode().hex()} | xxd -r -p | sh",
    "rev | sh": lambda c: f"echo {q(c[::-1])} | rev | sh",
    "tr | sh": lambda c: f"echo {q(c.replace('r', '%'))} | tr % r | sh",
    "decoded arguments": lambda c: (
        f"{words(c)[0]} $(echo {b64(' '.join(words(c)[1:]))} | base64 -d)"
    ),
    "quoted decoded argument": lambda c: (
        f'{" ".join(words(c)[:-1])} "$(echo {b64(words(c)[-1])} | base64 -d)"'
    ),
    "awk pipe": lambda c: "awk {}".format(q(f'BEGIN {{ print "{c}" | "sh" }}')),
    "awk getline": lambda c: "awk {}".format(q(f'BEGIN {{ "{c}" | getline x }}')),
    "awk behind a regular expression": lambda c: "awk {}".format(
        q(f'{{ print /"/; system("{c}"); print /"/ }}')
    ),
    "awk behind a division": lambda c: "awk {}".format(q(f'{{ x = (1) /2/ system("{c}") /1/ 3 }}')),
    "awk in a file": lambda c: f"echo {q(f'BEGIN {{ system({c!r}) }}')} > x; awk -f x",
    "sed e": lambda c: f"sed {q(f'1e {c}')} x",
    "sed s///e": lambda c: f"echo x | sed {q(f's|x|{c}|e')}",
    "sed behind a bracket": lambda c: f"echo / | sed {q(f's:[]:]*:g;:e;s:/:{c}:')}",
    "sed in -i's neighbour": lambda c: f"sed -i.x -e {q(f'1e {c}')} x",
    "sed option behind": lambda c: f"sed p x -e {q(f'1e {c}')}",
    "sed long option": lambda c: f"sed --expr={q(f'1e {c}')} x",
    "sed w": lambda c: f"echo {q(c)} | sed 'w x' > y; sh x",
    "perl substitution": lambda c: f"echo x | perl -pe {q(f's/x/system({c!r})/e')}",
    "perl index": lambda c: f"echo x | perl -pe {q(f's/x/$a[system({c!r})]/')}",
    "perl block": lambda c: f"echo x | perl -pe {q(f's/x/@{{[system({c!r})]}}/')}",
    "perl file": lambda c: f"perl -pe s/a/b/ {q(c + '|')}",
    "rename": lambda c: f"rename {q(f's/x/system({c!r})/e')} x",
    "tar letters": lambda c: f"tar cIf {q(c)} x y",
    "tar to command": lambda c: f"tar xf x --to-comm={q(c)}",
    "tar list": lambda c: f"echo --to-command={q(c)} > l; tar xf x -T l",
    "less": lambda c: f"less {q(f'+!{c}')} x",
    "option that is not known": lambda c: f"nice -n $x {c}",
    "flag that is not known": lambda c: f'find . "$x" {c} ";"',
    "sudo shell": lambda c: f"echo {q(c)} | sudo -s",
    "date as flags": lambda c: f"{words(c)[0]} $(date '+{' '.join(words(c)[1:])}')",
}

FAMILIES = {"spelled": SPELLED, "computed": COMPUTED, "wrapped": WRAPPED, "hidden": HIDDEN}


def mutants(seed: int = 5, combined: int = 2000) -> Iterator[tuple[str, str, str]]:
    """(family, disguise, command), each once: every disguise of every command, then disguises of
    disguises, chosen by the seed."""
    seen: set[str] = set()

    def new(command: str) -> bool:
        fresh = command not in seen
        seen.add(command)
        return fresh

    for family, disguises in FAMILIES.items():
        for name, disguise in disguises.items():
            for command in BLOCKED:
                made = disguise(command)
                if new(made):
                    yield family, name, made
    choose = random.Random(seed)
    inner = [*SPELLED.items(), *COMPUTED.items(), *WRAPPED.items()]
    outer = [(n, d) for n, d in WRAPPED.items() if n not in UNQUOTED]
    for _ in range(combined):
        (inside, disguise), (outside, wrap) = choose.choice(inner), choose.choice(outer)
        made = wrap(disguise(choose.choice(BLOCKED)))
        if new(made):
            yield "combined", f"{outside} of {inside}", made


UNQUOTED = {
    "sh -c in double quotes",
    "eval",
    "env",
    "env -i with path",
    "xargs",
    "timeout",
    "nice",
    "xargs with nothing",
    "find -exec",
    "nohup",
    "sudo",
    "doas",
    "command",
    "exec",
    "time",
    "builtin command",
    "stdbuf",
    "setsid",
    "busybox",
    "usr bin time",
    "coproc",
    "pipe",
    "bash -c with arguments",
    "heredoc",
    "heredoc with tabs",
    "quoted heredoc",
    "negated",
    "env -S",
    "backtick substitution",
    "and",
    "or",
    "in the background",
    "condition",
    "until",
    "group",
    "if",
    "else",
    "while",
    "for",
    "c-style for",
    "case",
    "named coproc",
    "watch",
    "su",
    "flock",
    "in a heredoc",
}
"""They take words, or a place on a line, and not any source: not put around everything."""
