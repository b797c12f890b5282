"""How well the built-in sets do: ordinary commands, and blocked ones in disguise."""

import re
from collections import Counter
from pathlib import Path

import pytest

from sandbox_server.policy.policy import Policy
from tests.unit.policy.corpus import ordinary
from tests.unit.policy.disguises import BLOCKED, FAMILIES, mutants

DOCS = Path(__file__).parents[3] / "docs" / "policy.md"
DEFAULT = Policy.read("default")
STRICT = Policy.read("strict")


def test_default_rejects_no_ordinary_command() -> None:
    commands = ordinary()
    assert len(commands) >= 500
    wrong = {
        command: ruling.rejection.rule
        for command in commands
        if (ruling := DEFAULT.judge(command)).rejection
    }
    assert wrong == {}


@pytest.mark.parametrize("command", BLOCKED)
def test_blocked_as_they_are(command: str) -> None:
    assert not DEFAULT.judge(command).allowed
    assert not STRICT.judge(command).allowed


def test_no_disguise_passes_strict() -> None:
    found = list(mutants())
    assert len(found) >= 2000
    assert [made for _, _, made in found if STRICT.judge(made).allowed] == []


def test_disguises_that_pass_default_are_published() -> None:
    """The table in docs/policy.md says what is so."""
    total: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for family, _, made in mutants():
        total[family] += 1
        passed[family] += DEFAULT.judge(made).allowed
    published = {
        family: (int(count), int(passing))
        for family, count, passing in re.findall(
            r"^\| (\w+)[^|]*\| [^|]* \| (\d+) \| (\d+) \|", DOCS.read_text(), re.M
        )
    }
    assert published == {family: (total[family], passed[family]) for family in total}
    assert set(total) == {*FAMILIES, "combined"}


@pytest.mark.parametrize(
    "command",
    [
        "ls -la /workspace",
        "cat a.txt | sort | uniq -c | head",
        "grep -rn TODO src | cut -d: -f1",
        "mkdir -p out && cp a.txt out/",
        "find . -name '*.py' -exec wc -l {} +",
        'for f in *.txt; do wc -l "$f"; done',
        "x=3; echo $((x * 2))",
        "timeout 5 sort big.txt > sorted.txt",
        "if [ -f a ]; then cat a; else echo none; fi",
        "bash -c 'ls | wc -l'",
        "rm -rf build",
        "cat > notes.md <<'EOF'\nrm -rf / is bad\nEOF",
        'n=$(ls | wc -l); echo "$n files"',
        "sed -i.bak -e 's/[^/]*$/x/g;/^#/d' file",
        r"sed -n '/start/,/end/{s#a#b#gp;p}' file",
        "awk -F: '$3 > 5 && /x|y/ { n += $3 / 2 } END { print n }' /etc/passwd",
        "tar xzf a.tar.gz -C out",
        'tar czf "$name.tgz" src',
        "find . -name '*.txt' -delete",
        "find . -name '*.tmp' -print0 | xargs -0 rm -rf",
        "find . -type f -exec chmod 644 {} +",
        "find . -name '*.o' -execdir rm -f {} +",
        "find /tmp -name '*.log' -delete",
        "find . -name '* *' -execdir rename 's/ /_/' {} ;",
        "env -C /tmp ls",
        "for i in $(seq 1 3); do touch f$i; done",
        'find "$dir" -name "*.log" | head -5 | xargs wc -l',
        "find . -name '*.md' | while IFS= read -r f; do sed -i s/a/b/ \"$f\"; done",
        'rm "$file"',
        "rm -f *.pyc",
        'rm -rf "$PWD/build"',
        "ls | grep -v keep | xargs rm -r",
        "kill -1 4711",
        "sudo chown -R www-data ./site",
        "ls -1 | perl -pe 's/\\n$/,/'",
        "rename 's/ /_/g' *.txt",
        'for f in *.txt; do mv "$f" "${f%.txt}.md"; done',
        'while read -r f; do cp "$f" "$f.bak"; done < list',
        'cat > "$name.txt" <<< x',
        "{ ls; } 2>&1 | cat",
        "{ ls; } > out.txt",
        "git_dir=x; more app.log",
        "jq .name package.json",
    ],
)
def test_strict_allows_everyday_work(command: str) -> None:
    ruling = STRICT.judge(command)
    assert ruling.allowed, ruling.rejection


@pytest.mark.parametrize(
    "command",
    [
        "python3 -c 'print(1)'", "git status", "vim f", "./ls", "tar xf a -I ./x", "tar xFf ./x a",
        "tar xf a $x", "awk '{print > \"f\"}' f", "awk -f x", "awk \"$x\"", "awk 'BEGIN{a|b}'",
        "awk '@load \"x\"'", "gawk -i x 1", "sed p $x", 'sed p "$x"', "sed -f x", 'sed "s/a/$x/" f',
        "sed 's/a/b/w f' x", "sed -n 'w f' x", "sed 'y/a/b/e' x", "rename 'unlink' x", "perl x.pl",
        "perl -pe s/a/b/ *", "perl -pe 's/a/(?{unlink})/'", "less f", "more '+!ls' f",
        "find . $x", "find $x -name y", 'find / "$x"', 'find "$x" ls ";"', 'find "$x" -delete',
        "find / -name x | xargs rm -rf", "find / -name x -exec rm -rf {} +",
        "find / -type f -delete", "tar *",
        'rm "$a" "$b"', "rm $x", "ls -l | xargs rm -r", "cat f | xargs rm", 'kill -9 "$x"',
        'rm -rf "$(find . -name x)/"', "rm -rf $(date +/)", "sudo -i", "sudo -s ls",
        "nice -n $x ls",
        "xargs -n $x ls", 'rm -rf "/tmp/$x"', 'rm -rf "$x/"', 'rm -rf "$x"/*', 'rm -rf "$x/.."',
        'cat f > "$x"', "bind -x '\"a\":ls'", "shopt -s expand_aliases",
        "rm $(date '+-rf%n/')", "rm $(seq -f '-rf' 1) /", "rm $(seq -s ' -rf / ' 1 2)",
        "printf '%s\\n' -- -rf / $(ls) | grep -v ^--$ | xargs rm", "find / ! -name x -delete",
        "sudo -D / rm -rf etc", "sudo --chroot=/x rm -rf etc",
        "find / -name home -execdir rm -rf etc ;", "find . -execdir rm -rf etc {} ;",
        "GREP=./x zgrep a f", "DIFF=./x zdiff a b", "CMP=./x zcmp a b",
        "PERL5OPT=-Mx perl -pe s/a/b/", "ZIPOPT='-T -TT x' zip a b", "SUDO_ASKPASS=x sudo ls",
        "LIBMOUNT_FSTAB=x mount y", "nm --plugin x f",
        "find -files0-from f -exec rm -rf {} +", "TAPE=host:x tar c f", "MORE=+!ls more f",
        "PATH=/tmp ls", "IFS=x; ls", "export LD_PRELOAD=x", "declare -n x=PATH", "x=1; $x",
        "ls() { :; }", "alias ls=cat", "source f", "sort --compress-program=x f", "hash -p x ls",
        "shopt -s extglob", "cat f | xargs sort", 'rm -rf "$x"', "sed 1e f",
        "echo $((x))",
        "enable -f x y", "split --filter=x f", "mapfile -C x -c 1 y", "readonly x=/", "bash -i",
        "bash -O extglob -c ls", "trap 'X=/' DEBUG; X=b; rm -rf \"$X\"", "jobs -x reboot",
        "bash - x.sh", "xargs --replace reboot", "split --f=x f", "sed -f --sandbox f",
        "sed -f x -- --sandbox", "find . -exec {} ;", "getopts x 'a[$(ls)]'", "bash --init-file x",
        'X=; rm -rf "/${X-tmp}"', "X=/etc; rm -rf ${X/\\/etc/&}",
        "X='/etc*'; rm -rf \"${X%\"*\"}\"",
        'X=abcdefgh/etc; rm -rf "${X:010}"', 'export x={/tmp,/etc}; rm -rf "$x"',
        "echo x > /dev/nvme$((0))n1", "cd /; rm -rf e*", 'cd "$(cat f)"; rm -rf *',
        "cd /; cd /nope; rm -rf *", "rm -rf $'\\x{0000002f}etc'", "kill -n 9 -1",
        'select x in etc; do rm -rf "/$x"; done', 'x=tmp; f() { local x; rm -rf "/$x"; }; f',
        'declare -l x=/ETC; rm -rf "$x"', "PS4='$(ls)'; set -x", "X=tmp; bash -c 'rm -rf /$X'",
        "A=1 cd /; rm -rf *", "env -C / rm -rf etc", "capsh() { ls; }; unset -f $x; capsh",
        'x=/etc; if ls; then x=b; fi; export y="$x"; rm -rf "$y"',
        "if false; then capsh() { ls; }; fi; capsh", "capsh() { ls; }; command capsh",
    ],
)  # fmt: skip
def test_strict_rejects_what_would_void_it(command: str) -> None:
    assert not STRICT.judge(command).allowed


def test_strict_minds_the_environment_of_the_request() -> None:
    assert not STRICT.judge("ls", env={"LD_PRELOAD": "/workspace/x.so"}).allowed
    assert STRICT.judge("ls", env={"NAME": "x"}).allowed
    assert not STRICT.judge("bash", stdin="reboot").allowed
    assert STRICT.judge("bash", stdin="ls").allowed
    assert not STRICT.judge("bash", open_stdin=True).allowed
