"""What a newcomer does wrong, and all that is said to it: the same words in Python, on the command
line and by HTTP."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.first_hour.conftest import serving
from tests.first_hour.newcomer import Newcomer, newcomer_in

pytestmark = pytest.mark.timeout(900)  # The first one installs.

NO_NETWORK = "this sandbox has no network"
FIELDS = (
    "thread_id, session_id, command, timeout, cwd, env, stdin, stdin_open, pty, encoding,"
    " background, idempotency_key, dry_run, notify, artifacts"
)
ASK_FOR_KEY = (
    "this server needs an API key: pass api_key=, set SANDBOX_API_KEY, or send it as"
    " `Authorization: Bearer KEY` or `X-API-Key: KEY`"
)
WRONG_KEY = (
    "this server does not know the API key it was sent: correct api_key= or SANDBOX_API_KEY, or ask"
    " whoever runs the server for a key"
)


@dataclass(frozen=True)
class Mistake:
    """Each way as somebody would type it; "" where it cannot be made that way."""

    said: str
    python: str = ""
    """An expression; `sandbox` is a client."""
    error: str = ""
    """The class it raises."""
    shell: str = ""
    curl: str = ""
    """Path and options."""
    prefix: str = ""
    """What the command line puts before it."""


MISTAKES = [
    Mistake(
        "/workspace/nothing.txt does not exist; list its folder to see what is there",
        python="sandbox.read_text('nothing.txt')",
        error="FileMissing",
        shell="sandbox cp conv-1:nothing.txt .",
        curl="'/download_file?thread_id=conv-1&path=nothing.txt'",
        prefix="thread conv-1: ",
    ),
    Mistake(
        "thread_id 'a/b' contains '/', which is not allowed, as character 2; use 1 to 128"
        " characters out of A-Z a-z 0-9 . _ : @ + = -",
        python="SandboxClient('a/b').execute('true')",
        error="InvalidThreadId",
        shell="sandbox run --thread a/b true",
        curl="""/execute -d '{"thread_id": "a/b", "command": "true"}'""",
    ),
    Mistake(
        "big.bin is larger than an upload may be: SANDBOX_MAX_UPLOAD of the server is 1 MiB; split"
        " the file, or make it inside the sandbox",
        python="SandboxClient('conv-3').upload_file('big.bin')",
        error="FileTooLarge",
        shell="sandbox cp big.bin conv-3:",
        curl="/upload_file -F thread_id=conv-3 -F file=@big.bin",
    ),
    Mistake(
        "/workspace of the sandbox is full (it holds 29.99 MiB), so there is no room for"
        " /workspace/small.bin; delete files there; its size is SANDBOX_DISK_LIMIT of the server,"
        " 32 MiB",
        python="sandbox.upload_file('small.bin')",
        error="DiskFull",
        shell="sandbox cp small.bin conv-1:",
        curl="/upload_file -F thread_id=conv-1 -F file=@small.bin",
    ),
    Mistake(
        "rule remove-root rejects `rm -rf /`: it removes a top-level directory of the file system"
        " or the whole home directory; instead: name the directories to remove, below /workspace or"
        " /tmp",
        python="sandbox.execute('rm -rf /')",
        error="CommandRejected",
        shell="sandbox run --thread conv-1 'rm -rf /'",
        curl="""/execute -d '{"thread_id": "conv-1", "command": "rm -rf /"}'""",
    ),
    Mistake(
        "timeout: Input should be greater than or equal to 0",
        python="sandbox.execute('true', timeout=-1)",
        error="InvalidRequest",
        curl="""/execute -d '{"thread_id": "conv-1", "command": "true", "timeout": -1}'""",
    ),
    Mistake(
        f"comand: there is no such field; those there are: {FIELDS}",
        curl="""/execute -d '{"thread_id": "conv-1", "comand": "ls", "command": "ls"}'""",
    ),
    Mistake(
        "command: this field is required, but missing",
        curl="""/execute -d '{"thread_id": "conv-1"}'""",
    ),
    Mistake(
        "unknown environment 'ruby': there are Data, Node, Python3, base, code-interpreter",
        python="SandboxClient('conv-2').create_session(environment='ruby')",
        error="InvalidRequest",
        curl="""/create_session -d '{"thread_id": "conv-2", "environment": "ruby"}'""",
    ),
    Mistake(
        "thread 'nobody' has no session; the first execute, upload_file or list_files with this"
        " thread_id makes one, and so does create_session",
        python="SandboxClient('nobody').cleanup()",
        error="SessionNotFound",
        shell="sandbox rm nobody",
        curl="""/cleanup -d '{"thread_id": "nobody"}'""",
        prefix="nobody: ",
    ),
    Mistake(
        "no command nope in this session; list its commands to see those there are",
        python="sandbox.process('nope')",
        error="NotFound",
        shell="sandbox logs conv-1 nope",
        curl="'/command?thread_id=conv-1&command_id=nope'",
    ),
    Mistake(
        "the command timed out after 1 s",
        python="sandbox.execute('sleep 9', timeout=1, check=True)",
        error="CommandFailed",
    ),
    Mistake(
        "the command ended with exit code 3: bad",
        python="sandbox.execute('echo bad >&2; exit 3', check=True)",
        error="CommandFailed",
    ),
    Mistake(
        "nothing listens at http://127.0.0.1:1: start a server with `sandbox serve`, or correct"
        " SANDBOX_URL (server_url=)",
        python="SandboxClient('t', server_url='http://127.0.0.1:1').execute('true')",
        error="Unreachable",
        shell="sandbox ps --url http://127.0.0.1:1",
    ),
    Mistake(
        "'127.0.0.1:8000' is not the address of a server; use one like http://127.0.0.1:8000,"
        " https://host or unix:///path (SANDBOX_URL, server_url=)",
        python="SandboxClient('t', server_url='127.0.0.1:8000').execute('true')",
        error="InvalidRequest",
        shell="sandbox ps --url 127.0.0.1:8000",
    ),
    Mistake(
        "LocalBackend has no setting 'memory'; did you mean memory_limit, max_memory or"
        " total_memory?",
        python="LocalBackend(memory='1g')",
        error="TypeError",
    ),
    Mistake(
        "`vim` needs a terminal, and commands have none here: it would wait for keys until its"
        " timeout. Use it in `sandbox shell`, which has one, or change the file with sed -i, a"
        " here-document or `vim -es`",
        shell="sandbox run --thread conv-1 'vim a'",
    ),
]


@pytest.fixture(scope="module")
def small(
    machine: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Newcomer]]:
    """A server of a newcomer with small limits, on which conv-1 has almost filled its disk."""
    newcomer = newcomer_in(tmp_path_factory.mktemp("small"))
    (newcomer.folder / "big.bin").write_bytes(bytes(2 << 20))
    (newcomer.folder / "small.bin").write_bytes(bytes(900_000))
    limits = {"SANDBOX_DISK_LIMIT": "32m", "SANDBOX_MAX_UPLOAD": "1m"}
    with serving(newcomer, {**machine, **limits}) as url:
        client = replace(newcomer, env={**newcomer.env, "SANDBOX_URL": url})
        fill = "head -c 30000000 /dev/zero > big 2>/dev/null; cat big > rest 2>/dev/null; true"
        assert client("sandbox", "run", "--thread", "conv-1", fill).returncode == 0
        yield url, client


@pytest.mark.rest
def test_mistakes(small: tuple[str, Newcomer], subtests: pytest.Subtests) -> None:
    url, client = small
    raised = _raised(client, [mistake for mistake in MISTAKES if mistake.python])
    for mistake in MISTAKES:
        with subtests.test(mistake.python or mistake.shell or mistake.curl):
            if mistake.python:
                assert raised[mistake.python] == f"{mistake.error}: {mistake.said}"
            if mistake.shell:
                done = client("bash", "-c", mistake.shell)
                assert done.stderr == f"sandbox: {mistake.prefix}{mistake.said}\n"
                assert done.returncode == 125
            if mistake.curl:
                assert _curl(client, f"{url}{mistake.curl}")["message"] == mistake.said


WALLS = {
    "pip install no-such-package": f"{NO_NETWORK}, so pip cannot download: upload wheels and run"
    " `pip install --no-index --find-links FOLDER NAME`, or ask for a sandbox whose image has the"
    " package",
    "curl -sS http://example.com": f"{NO_NETWORK}. Upload what is needed instead of downloading it;"
    " servers that run in the sandbox itself answer at localhost",
    "sudo ls": "nobody is root in this sandbox. Run it without sudo or su; /workspace, /tmp and the"
    " home are yours, and programs can be installed into /workspace/.local",
    "docker ps": "there are no containers inside this sandbox. Run the program itself, a server in"
    " the background: `command > log.txt 2>&1 &`",
}


@pytest.mark.rest
def test_walls(remote: Newcomer, url: str, subtests: pytest.Subtests) -> None:
    told = _hints(remote, list(WALLS))
    for command, hint in WALLS.items():
        with subtests.test(command):
            assert told[command] == [hint, hint]
            body = json.dumps({"thread_id": "walls", "command": command})
            answered = remote("curl", f"{url}/execute", "-d", body).stdout
            assert json.loads(answered)["hint"] == hint
            done = remote("sandbox", "run", "--thread", "walls", command)
            assert done.stderr.endswith(f"hint: {hint}\n")
    assert remote("sandbox", "rm", "walls").returncode == 0


def test_keys(machine: dict[str, str], newcomer: Newcomer, tmp_path: Path) -> None:
    with serving(newcomer, {**machine, "SANDBOX_API_KEYS": "acme:right"}) as url:
        client = replace(newcomer, env={**newcomer.env, "SANDBOX_URL": url})
        done = client("sandbox", "ps")
        assert (done.returncode, done.stderr) == (125, f"sandbox: {ASK_FOR_KEY}\n")
        done = client("sandbox", "ps", env={"SANDBOX_API_KEY": "wrong"})
        assert (done.returncode, done.stderr) == (125, f"sandbox: {WRONG_KEY}\n")
        keyless = Mistake(ASK_FOR_KEY, python="sandbox.execute('true')", error="Unauthorized")
        wrong = "SandboxClient('t', api_key='wrong').execute('true')"
        raised = _raised(client, [keyless, Mistake(WRONG_KEY, python=wrong)])
        assert raised == {
            keyless.python: f"Unauthorized: {ASK_FOR_KEY}",
            wrong: f"Unauthorized: {WRONG_KEY}",
        }
        assert _curl(client, f"{url}/sessions")["message"] == ASK_FOR_KEY
        wrong_header = f"{url}/sessions -H 'authorization: Bearer wrong'"
        assert _curl(client, wrong_header)["message"] == WRONG_KEY
        assert client("sandbox", "ps", env={"SANDBOX_API_KEY": "right"}).returncode == 0


STARTS = {
    "SANDBOX_IDLE_TIMEOUT=soon": "SANDBOX_IDLE_TIMEOUT: 'soon' is not a duration: write 90s, 30m,"
    " 2h or 1d, or seconds; for example SANDBOX_IDLE_TIMEOUT=30m",
    "SANDBOX_MEMORY_LIMIT=lots": "SANDBOX_MEMORY_LIMIT: 'lots' is not a size: write 512m or 2g, or"
    " bytes; for example SANDBOX_MEMORY_LIMIT=512m",
    "SANDBOX_IMAGE=node:22": "SANDBOX_IMAGE needs the docker runtime: start a Docker engine"
    " (SANDBOX_RUNTIME=docker or auto), or unset it; the runtime is bubblewrap, as configured",
}


@pytest.mark.rest
def test_settings(machine: dict[str, str], newcomer: Newcomer, subtests: pytest.Subtests) -> None:
    for setting, said in STARTS.items():
        with subtests.test(setting):
            env = {**machine, **dict([setting.split("=")])}
            for words in (["serve", "--port", "0"], ["serve", "--print-config"]):
                done = newcomer("sandbox", *words, env=env)
                assert (done.returncode, done.stderr) == (125, f"sandbox: {said}\n")
    done = newcomer("sandbox", "serve", "--print-config", env={**machine, "SANDBOX_MEMORY": "1g"})
    assert "SANDBOX_MEMORY" in done.stderr
    assert "did you mean SANDBOX_MEMORY_LIMIT, SANDBOX_MAX_MEMORY or" in done.stderr


def test_tool_calls(remote: Newcomer) -> None:
    script = """
from sandbox_sdk.integrations.tools import SandboxTools
with SandboxTools() as tools:
    for name, arguments in (
        ("bash", {"comand": "ls"}), ("write_file", {"path": "a"}), ("nope", {}), ("bash", "{"),
        ("bash", {"command": "sudo ls"}), ("read_file", {"path": "missing.txt"}),
    ):
        print(tools.dispatch(name, arguments, thread_id="tools").text, end="\\n--\\n")
    for _ in range(2):
        call = {"thread_id": "tools", "tool_call_id": "1"}
        print(tools.dispatch("bash", {"command": "echo once"}, **call), end="\\n--\\n")
    tools.cleanup("tools")
"""
    done = remote("python", "-c", script)
    assert done.stdout.split("\n--\n") == [
        "Error: bash: comand: there is no such field; those there are: command, timeout, restart."
        " Correct the call and try again.",
        "Error: write_file: content: this field is required, but missing. Correct the call and try"
        " again.",
        "Error: there is no tool 'nope', only bash, run_code, read_file, write_file, edit_file,"
        " list_files, upload_file, download_file, undo. Correct the call and try again.",
        "Error: the arguments are not JSON: Expecting property name enclosed in double quotes: line"
        " 1 column 2 (char 1). Correct the call and try again.",
        f"bash: line 1: sudo: command not found\n[hint: {WALLS['sudo ls']}]\n[exit code 127]",
        "Error (file_not_found): /workspace/missing.txt does not exist; list its folder to see what"
        " is there. A relative path begins in /workspace, wherever `cd` went.",
        "once\n[exit code 0]",
        "[answered from an earlier call with this id]\nonce\n[exit code 0]",
        "",
    ], done.stderr


def _raised(client: Newcomer, mistakes: list[Mistake]) -> dict[str, str]:
    """What each of them raises, as a traceback would end."""
    script = """
import json, sys
from sandbox_sdk import LocalBackend, SandboxClient
raised = {}
with SandboxClient("conv-1") as sandbox:
    for source in json.load(sys.stdin):
        try:
            eval(source)
        except Exception as exc:
            raised[source] = f"{type(exc).__name__}: {exc}"
print(json.dumps(raised))
"""
    sources = json.dumps([mistake.python for mistake in mistakes])
    done = client("python", "-c", script, stdin=sources)
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def _hints(client: Newcomer, commands: list[str]) -> dict[str, list[str]]:
    """The hint of each command, from execute and from the exit of a stream."""
    script = """
import json, sys
from sandbox_sdk import SandboxClient
with SandboxClient("walls") as sandbox:
    print(json.dumps({
        command: [sandbox.execute(command).hint, list(sandbox.stream(command))[-1].hint]
        for command in json.load(sys.stdin)
    }))
"""
    done = client("python", "-c", script, stdin=json.dumps(commands))
    assert done.returncode == 0, done.stderr
    told: dict[str, list[str]] = json.loads(done.stdout)
    return told


def _curl(client: Newcomer, words: str) -> dict[str, str]:
    done = client("bash", "-c", f"curl {words}")
    error: dict[str, str] = json.loads(done.stdout)["error"]
    return error
