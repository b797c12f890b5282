"""What the fake answers to the commands of the suite, where bash would."""

import math
import re

from sandbox_sdk.testing import FakeAnswer, FakeBackend, FakeCall


def write_script(fake: FakeBackend) -> None:
    fake.on("true")
    fake.on("pwd", lambda call: FakeAnswer(output=f"{call.cwd}\n"))
    fake.on(re.compile(r"^echo \w+$"), lambda call: FakeAnswer(output=f"{call.command[5:]}\n"))
    fake.on("echo x > file", writes={"file": "x\n"})
    fake.on("cat file", read_file)
    fake.on(re.compile(r"^sleep [\d.]+"), sleep)
    fake.on('echo "$TOKEN"', lambda call: FakeAnswer(output=f"{call.env['TOKEN']}\n"))
    fake.on(
        "cat; pwd; echo $A",
        lambda call: FakeAnswer(output=f"{call.stdin}{call.cwd}\n{call.env['A']}\n"),
    )
    fake.on("sleep 0.2; echo x >> n; wc -l < n", count)
    fake.on(
        "echo é; sleep 0.1; echo b >&2; exit 4",
        output="é\n",
        stderr="b\n",
        exit_code=4,
        takes_s=0.1,
    )
    fake.on("echo one; echo two", output="one\ntwo\n")
    fake.on("echo a; sleep 0.3; echo b", output="a\nb\n", takes_s=0.3)


def read_file(call: FakeCall) -> FakeAnswer:
    if "file" not in call.files:
        return FakeAnswer(stderr="cat: file: No such file or directory\n", exit_code=1)
    return FakeAnswer(output=call.files["file"].decode())


def sleep(call: FakeCall) -> FakeAnswer:
    """`sleep 1`, `sleep 1; echo word`"""
    match = re.fullmatch(r"sleep ([\d.]+)(?:; echo (\w+))?", call.command)
    assert match
    said = f"{match[2]}\n" if match[2] else ""
    return FakeAnswer(output=said, takes_s=float(match[1]) if match[1] else math.inf)


def count(call: FakeCall) -> FakeAnswer:
    lines = call.files.get("n", b"") + b"x\n"
    call.files["n"] = lines
    return FakeAnswer(output=f"{lines.count(b'x')}\n", takes_s=0.2)
