"""Rules and the files they come in."""

from pathlib import Path

import pytest

from sandbox_server.policy.policy import Policy
from sandbox_server.policy.rulefile import PolicyError, built_in, parse_rules


def policy(text: str) -> Policy:
    return Policy(parse_rules(text, name="test", file="test.yaml"))


def deny(conditions: str, mode: str = "blacklist") -> Policy:
    return policy(f"mode: {mode}\nrules:\n  - id: r\n    deny: {{{conditions}}}\n    reason: no\n")


def rejected(made: Policy, *commands: str) -> list[bool]:
    return [not made.judge(command).allowed for command in commands]


def test_command_by_name_prefix_and_pattern() -> None:
    made = deny('command: [reboot, git push, "mkfs*"]')
    assert rejected(made, "reboot", "/sbin/reboot now", "git push", "git -v push", "mkfs.ext4") == [
        True, True, True, True, True,
    ]  # fmt: skip
    assert rejected(made, "./reboot", "git pull push", "echo mkfs", "git") == [False] * 4


def test_flags() -> None:
    made = deny('command: rm, flags: ["-r|-R|--recursive", "-f|--force"]')
    assert rejected(made, "rm -rf x", "rm -f -R x", "rm --recurs --force x") == [True] * 3
    assert rejected(made, "rm -r x", "rm -- -rf", "rm x") == [False] * 3
    made = deny("command: find, flags: [-delete], without: [-name]")
    assert rejected(made, "find . -delete", "find . -name x -delete") == [True, False]


def test_paths_in_their_plainest_form() -> None:
    made = deny('command: cat, paths: ["/etc", "/etc/**"]')
    assert (
        rejected(
            made, "cat /etc/passwd", "cat //etc/./passwd", "cat /usr/../etc/x", "cd /etc; cat x"
        )
        == [True] * 4
    )
    assert rejected(made, "cat etc/passwd", "cat /tmp/etc", "cd /tmp; cat x") == [False] * 3


def test_writes_args_and_assignments() -> None:
    assert rejected(deny('writes: ["/dev/sd*"]'), "echo > /dev/sda", "cat < /dev/sda") == [
        True,
        False,
    ]
    assert rejected(deny('args: ["*://*"]'), "wget http://x", "wget x") == [True, False]
    made = deny('assigns: ["LD_*"]')
    assert (
        rejected(
            made,
            "LD_PRELOAD=x ls",
            "export LD_X=1",
            "env LD_X=1 ls",
            "read LD_X",
            "for LD_X in 1; do :; done",
        )
        == [True] * 5
    )
    assert rejected(made, "X=1 ls", "echo LD_X=1") == [False, False]


def test_blacklist_rejects_what_is_certain_and_whitelist_what_is_possible() -> None:
    conditions = 'command: rm, paths: ["/"]'
    allow = "\n  - id: a\n    allow: [rm, echo]\n"
    strict = policy(
        f"mode: whitelist\nrules:\n  - id: r\n    deny: {{{conditions}}}\n    reason: no{allow}"
    )
    for command in ('rm "$x"', "rm $x", "rm /$x", "rm $(cat f)"):
        assert rejected(deny(conditions), command) == [False], command
        assert rejected(strict, command) == [True], command
    assert (
        rejected(strict, "rm a", 'x=a; rm "$x"', "for f in a b; do rm $f; done", "rm *")
        == [False] * 4
    )
    assert rejected(strict, "ls", "$x", "./rm a", "echo a | sh") == [True] * 4


def test_whitelist_knows_what_a_function_is() -> None:
    made = policy("mode: whitelist\nrules:\n  - id: a\n    allow: [ls, command, unset, '(']\n")
    assert rejected(made, "f() { ls; }; f") == [False]
    assert (
        rejected(
            made,
            "ls() { :; }",
            "f() { reboot; }",
            "command f",
            "(f() { ls; }); f",
            "false && f() { ls; }; f",
            "f() { ls; }; unset -f f; f",
            "f() { ls; }; command f",
            "f() { ls; }; bash -c f",
        )
        == [True] * 8
    )


def test_deny_beats_allow() -> None:
    made = policy(
        "mode: whitelist\nrules:\n  - id: a\n    allow: rm\n"
        "  - id: d\n    deny: {command: rm, flags: [-r]}\n    reason: no\n"
    )
    assert rejected(made, "rm a", "rm -r a") == [False, True]


def test_a_file_that_extends_another(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: default\nrules:\n  - id: x\n    deny: curl\n    reason: no network\n")
    made = Policy.read(str(file))
    assert rejected(made, "curl x", "rm -rf /", "ls") == [True, True, False]
    assert made.name == "mine"
    other = tmp_path / "other.yaml"
    other.write_text("extends: mine.yaml\nmode: allow-all\n")
    assert rejected(Policy.read(str(other)), "curl x") == [False]


RULES = "mode: blacklist\nrules:\n"
RULE = f"{RULES} - id: a\n   deny: x\n   reason: r\n"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "empty"),
        ("mode: blocklist", 1, "unknown mode"),
        ("rules: []", 1, "the mode is missing"),
        ("mode: blacklist\nrule: []", 2, "unknown field 'rule'"),
        ("mode: blacklist\nmode: whitelist", 2, "duplicate field 'mode'"),
        ("mode: blacklist\nrules: {}", 2, "expected a list"),
        ("mode: [", 1, "expected"),
        (f"{RULES} - deny: x\n", 3, "without an id"),
        (f"{RULES} - id: A b\n   deny: x\n", 3, "lower-case"),
        (f"{RULES} - id: a\n   reason: x\n", 3, "exactly one of"),
        (f"{RULES} - id: a\n   deny: x\n", 3, "without a reason"),
        (f"{RULES} - id: a\n   reason: r\n   deny:\n    commands: x\n", 6, "'commands'"),
        (f"{RULES} - id: a\n   deny: {{}}\n   reason: x\n", 4, "conditions"),
        (f"{RULE}   match:\n    - x\n    - y\n", 8, "`y` is not matched"),
        (f"{RULE}   no_match: x\n", 6, "`x` is matched"),
        (f"{RULE} - {{id: a, deny: y, reason: r}}\n", 6, "two rules have the id a"),
        (RULE.replace("blacklist", "allow-all"), 3, "no rule has an effect"),
    ],
)  # fmt: skip
def test_mistakes_have_a_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(PolicyError) as caught:
        Policy.read(str(file))
    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: "), message
    assert what in message
    assert "\n" not in message


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot be read .*default, open, strict"):
        Policy.read(str(tmp_path / "none.yaml"))
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="not UTF-8"):
        Policy.read(str(tmp_path / "x.yaml"))
    (tmp_path / "self.yaml").write_text("extends: self.yaml\n")
    with pytest.raises(PolicyError, match="extends itself"):
        Policy.read(str(tmp_path / "self.yaml"))


def test_built_in_sets() -> None:
    assert built_in() == ["default", "open", "strict"]
    assert rejected(Policy.read("open"), "rm -rf /") == [False]
