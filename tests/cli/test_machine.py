"""serve, health, doctor, config, image, and errors in general."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cli.program import SANDBOX, Program
from tests.contract.conftest import RUNTIMES

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.

CLIENT = ("run", "shell", "ps", "cp", "logs", "rm", "kill", "health")
NAMES = (*CLIENT, "serve", "init", "doctor", "config", "image", "environments")


def test_health(sandbox: Program) -> None:
    assert sandbox.json("health")["status"] == "healthy"
    assert "bubblewrap" in sandbox.output("health")


def test_no_server(alone: Program) -> None:
    with socket.socket() as unused, ThreadPoolExecutor() as together:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        calls = (["health"], ["run", "true"], ["ps"], ["rm", "x"], ["cp", "x:y", "z"])
        list(together.map(lambda args: check_no_server(alone, *args, "--url", url), calls))


def check_no_server(alone: Program, *args: str) -> None:
    done = alone(*args)
    assert (done.stdout, done.returncode) == ("", 125), args
    assert done.stderr.startswith("sandbox: "), args
    assert done.stderr.count("\n") == 1, args
    told = json.loads(alone(*args, "--json").stdout)
    errors = [told["error"]] if "error" in told else [each["error"] for each in told["threads"]]
    assert [error["code"] for error in errors] == ["runtime_unavailable"], args


def test_wrong_usage(sandbox: Program) -> None:
    for args in (["nope"], ["run"], ["run", "true", "-e", "x"], ["run", "true", "--timeout", "x"]):
        done = sandbox(*args)
        assert (done.stdout, done.returncode) == ("", 2), args
        assert "Traceback" not in done.stderr
    for args in (
        ["run", "-t", "a/b", "true"],
        ["shell", "-t", "a/b"],
        ["logs", "a/b"],
        ["rm", "a/b"],
    ):
        done = sandbox(*args)
        assert (done.stdout, done.returncode) == ("", 125), args
        assert done.stderr.count("\n") == 1, args


def test_environments(alone: Program) -> None:
    found = alone.json("environments", "list")["environments"]
    assert {each["name"]: each["state"] for each in found} == {
        **dict.fromkeys(["Data", "Node", "Python3", "code-interpreter"], "not built"),
        "base": "nothing to build",
    }
    assert "Python with a Jupyter kernel." in alone.output("environments", "list")
    done = alone("environments", "build", "nope")
    assert (done.stdout, done.returncode) == ("", 125)
    assert (
        done.stderr == "sandbox: unknown environment 'nope': there are Data, Node, Python3, base,"
        " code-interpreter\n"
    )
    # No package can be installed: what pip says is the error.
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    done = alone("environments", "build", "python3", "--json", env=offline)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (125, "environment_failed")
    assert "No matching distribution found for ipykernel" in error["message"]
    assert "pip install ipykernel" in done.stderr, "progress"
    assert alone.json("environments", "prune") == {"freed_bytes": 0}


def test_serve_and_what_it_says(alone: Program) -> None:
    """Everything it says to try works when pasted, in the folder it was started in."""
    command = [SANDBOX, "serve", "--port", "0", "--destroy-on-exit"]
    server = subprocess.Popen(
        command, env=alone.env, cwd=alone.folder, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        said: list[str] = []
        while not said or "warm after" not in said[-1]:
            said.append(server.stderr.readline())
            assert said[-1], said
        text = "".join(said)
        assert "512 MiB of memory, 0.5 CPU, 256 processes" in text
        assert "bubblewrap, as configured" in text
        assert re.search(r"E2B_API_URL=(\S+)/e2b E2B_SANDBOX_URL=\1/e2b", text)
        steps = text.partition("Try, in another terminal:")[2].rpartition("\n  ")[0]
        pasted = subprocess.run(
            ["bash", "-ec", steps],
            stdin=subprocess.DEVNULL,
            env={**alone.env, "SANDBOX_WORKER_ID": "unused"},
            cwd=alone.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (pasted.returncode, pasted.stderr) == (0, "")
        assert json.loads(pasted.stdout.partition("}")[0] + "}")["output"] == "sandboxuser\n4\n"
        assert pasted.stdout.endswith("4\nhello\n\n")
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        server.stderr.close()


def test_serve_in_a_terminal(alone: Program) -> None:
    with alone.terminal("serve", "--port", "0", "--destroy-on-exit") as terminal:
        terminal.expect("Sandboxes at http://127.0.0.1:")
        terminal.expect("warm after")
        terminal.type("\x03")
        assert terminal.wait() == 0


def test_python_m_sandbox_server_is_the_same(alone: Program) -> None:
    command = [sys.executable, "-m", "sandbox_server", "--port", "0", "--json", "--destroy-on-exit"]
    server = subprocess.Popen(command, env=alone.env, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        told = json.loads(server.stdout.readline())
        assert told["limits"]["pids"] == 256
        with urllib.request.urlopen(f"{told['url']}/health", timeout=30) as answer:
            assert json.load(answer)["runtime"] == told["runtime"] == "bubblewrap"
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        server.stdout.close()


def test_serve_where_it_cannot(sandbox: Program, url: str) -> None:
    port = url.rpartition(":")[2]
    for args, word in (
        (["--port", port], "in use"),
        (["--host", "0.0.0.0"], "--insecure"),
        (["--host", "no.such.host.invalid"], "listen"),
    ):
        args = [*args, "--insecure"] if word == "listen" else args
        done = sandbox("serve", *args)
        assert (done.stdout, done.returncode) == ("", 125), args
        assert done.stderr.startswith("sandbox: "), args
        assert word in done.stderr, args
        assert json.loads(sandbox("serve", *args, "--json").stdout)["error"]["message"]


def test_config_hides_secrets(sandbox: Program) -> None:
    secret = {"SANDBOX_API_KEYS": "me:hush-hush", "SANDBOX_API_KEY": "hush-hush"}
    for args in (["config"], ["config", "--json"], ["serve", "--print-config"]):
        done = sandbox(*args, env=secret)
        assert done.returncode == 0
        assert "hush" not in done.stdout
        assert "*****" in done.stdout
    told = sandbox.json("config")
    assert told["client"]["url"] == sandbox.env["SANDBOX_URL"]
    assert told["server"]["pool_size"] == 1
    wrong = sandbox("config", env={"SANDBOX_PORT": "many"})
    assert wrong.returncode == 125
    assert wrong.stderr.startswith("sandbox: SANDBOX_PORT: ")


def test_config_says_what_settings_mean(alone: Program) -> None:
    env = {"SANDBOX_IDLE_TIMEOUT": "2h", "SANDBOX_MEMORY": "1g", "SANDBOX_LEASE": "5s"}
    for args in (["config"], ["serve", "--print-config"]):
        done = alone(*args, env=env)
        rows = {line.split()[0]: line.split(None, 3)[1:] for line in done.stdout.splitlines()}
        assert rows["SANDBOX_IDLE_TIMEOUT"] == [
            "2h", "environment", "How long after its last use a session ends.",
        ]  # fmt: skip
        assert rows["SANDBOX_DISK_LIMIT"][:2] == ["1g", "default"]
        assert done.stderr.splitlines() == [
            "sandbox: SANDBOX_LEASE: this server is standalone; to join a fleet, set SANDBOX_ROLE"
            " to worker or coordinator",
            "sandbox: SANDBOX_MEMORY: unknown setting; did you mean SANDBOX_MEMORY_LIMIT,"
            " SANDBOX_MAX_MEMORY or SANDBOX_TOTAL_MEMORY?",
        ]
    told = json.loads(alone("config", "--json", env=env).stdout)
    assert told["server"]["idle_timeout"] == 7200
    assert "idle_timeout" in told["set"]
    assert set(told["warnings"]) == {"SANDBOX_LEASE", "SANDBOX_MEMORY"}


def test_print_config_refuses_what_serve_refuses(alone: Program) -> None:
    for env, word in (
        ({"SANDBOX_POLICY": "/no/rules.yaml"}, "cannot be read"),
        ({"SANDBOX_NETWORK": "bridge"}, "needs the docker runtime"),
        ({"SANDBOX_IDLE_TIMEOUT": "soon"}, "for example SANDBOX_IDLE_TIMEOUT=30m"),
    ):
        done = alone("serve", "--print-config", env=env)
        assert (done.stdout, done.returncode) == ("", 125), env
        assert word in done.stderr
        assert done.stderr.count("\n") == 1
    assert alone("serve", "--port", "0", env=env).stderr == done.stderr


def test_a_typing_error_is_told_by_all(alone: Program) -> None:
    typo, told = {"SANDBOX_POOLSIZE": "1"}, "SANDBOX_POOLSIZE: unknown setting; did you mean"
    ran = alone("run", "echo hi", env=typo)
    assert (ran.stdout, ran.returncode) == ("hi\n", 0)
    assert ran.stderr == f"sandbox: {told} SANDBOX_POOL_SIZE?\n"
    assert f"warning  settings           {told}" in alone("doctor", env=typo).stdout


def test_init(alone: Program) -> None:
    done = alone("init", "etc")
    assert (done.returncode, done.stderr) == (0, "")
    settings, unit = alone.folder / "etc/sandbox.env", alone.folder / "etc/agent-sandbox.service"
    assert f"sandbox serve --settings {settings}" in done.stdout
    assert f"sudo systemctl enable --now {unit}" in done.stdout
    assert settings.stat().st_mode & 0o777 == 0o600
    assert f'EnvironmentFile={settings}\nExecStart="{SANDBOX}" serve\n' in unit.read_text()
    settings.write_text("SANDBOX_MAX_SESSIONS=7\n")
    again = alone("init", "etc")
    assert (again.stdout, again.returncode) == ("", 125)
    assert again.stderr == f"sandbox: {settings} is there already; --force replaces it\n"
    shown = alone("serve", "--settings", str(settings), "--print-config", "--json")
    assert json.loads(shown.stdout)["max_sessions"] == 7
    assert alone("init", "etc", "--force", "--json").returncode == 0
    assert "# SANDBOX_MAX_SESSIONS=500\n" in settings.read_text()
    told = alone.json("init", "fleet", "--role", "worker")
    assert told["unit"].endswith("/fleet/agent-sandbox-worker.service")
    assert "\nSANDBOX_ROLE=worker\n" in (alone.folder / "fleet/worker.env").read_text()


def test_what_a_stopped_server_leaves_and_its_end(alone: Program) -> None:
    """The last line says how to end it, and that works when pasted."""
    last = _serve_once(alone, "run", "--thread", "kept", "echo x > file")
    assert "the box of 1 session stays for the next start" in last
    end = last.rpartition("to end it now: ")[2]
    for told in ("1 session ended\n", "0 sessions ended\n"):
        done = subprocess.run(
            ["bash", "-c", end], env=alone.env, cwd=alone.folder, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.stdout, done.stderr, done.returncode) == (told, "", 0)
    assert _serve_once(alone, "rm", "--all") == "  stopped; no session and no box stays\n"


def _serve_once(alone: Program, *args: str) -> str:
    """Start a server, call it once, and stop it: the last line of the server."""
    command = [SANDBOX, "serve", "--port", "0", "--runtime", "bubblewrap"]
    server = subprocess.Popen(
        command, env=alone.env, cwd=alone.folder, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    said = ""
    while "Sandboxes at " not in said:
        said = server.stderr.readline()
    url = said.split()[2].rstrip(",")
    called = alone(*args, "--url", url)
    running = alone("serve", "--port", "0", "--end-sessions")
    server.send_signal(signal.SIGINT)
    *_, last = server.stderr
    assert (server.wait(60), called.returncode, called.stderr) == (0, 0, "")
    assert "end its sessions with `sandbox rm --all`" in running.stderr
    server.stderr.close()
    return last


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell: str, alone: Program) -> None:
    """The script is what `sandbox --show-completion` prints in that shell."""
    script = alone(env={"_SANDBOX_COMPLETE": f"source_{shell}"})
    assert (script.returncode, script.stderr) == (0, "")
    assert f"_SANDBOX_COMPLETE=complete_{shell}" in script.stdout
    if shell == "bash":
        words = (
            f"{script.stdout}\nCOMP_WORDS=(sandbox pol); COMP_CWORD=1\n"
            '_sandbox_completion sandbox; echo "${COMPREPLY[*]}"'
        )
        done = subprocess.run(
            ["bash", "-c", words], env=alone.env, capture_output=True, text=True, check=True
        )
        assert done.stdout == "policy\n"
    else:
        env = {"_SANDBOX_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "sandbox pol"}
        assert '"policy":' in alone(env=env).stdout


def test_doctor(alone: Program, sandbox: Program) -> None:
    told = alone.json("doctor")
    states = {each["name"]: each["state"] for each in told["findings"]}
    assert told["ok"]
    assert states["bubblewrap"] == states["python"] == states["disk"] == "ok"
    assert "server" not in states
    assert "redis" not in states
    words = {each["name"]: each["told"] for each in told["findings"]}
    if states["control groups"] == "ok":
        assert "CPU burst" in words["control groups"]
    if states.get("gvisor") == "ok":
        assert "platform" in words["gvisor"]
    lines = sandbox.output("doctor").splitlines()
    assert [line for line in lines if line.startswith("ok       server") and "healthy" in line]


def test_doctor_says_what_is_missing_and_the_fix(alone: Program, sandbox: Program) -> None:
    for env, name, fix in (
        (
            {"SANDBOX_RUNTIME": "docker", "DOCKER_HOST": "unix:///nowhere"},
            "docker engine",
            "DOCKER_HOST",
        ),
        ({"REDIS_URL": "redis://:hush@127.0.0.1:1/0"}, "redis", "start Redis"),
        ({"SANDBOX_URL": "http://127.0.0.1:1"}, "server", "sandbox serve"),
    ):
        done = alone("doctor", "--json", env=env)
        assert done.returncode == 1, done
        (missing,) = [x for x in json.loads(done.stdout)["findings"] if x["state"] == "missing"]
        assert missing["name"] == name
        assert fix in missing["fix"]
        assert "hush" not in done.stdout
        assert fix in alone("doctor", env=env).stdout


def test_doctor_finds_redis(alone: Program, redis_url: str) -> None:
    done = alone("doctor", "--json", env={"REDIS_URL": redis_url})
    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["name"] == "redis"]
    assert found["state"] == "ok"


@pytest.fixture
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> object:
    program = os.environ.get("SANDBOX_TEST_REDIS")
    if not program:
        pytest.skip("no redis-server here")
    place = tmp_path_factory.mktemp("redis") / "sock"
    options = ["--port", "0", "--unixsocket", str(place), "--save", "", "--daemonize", "no"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        yield f"unix://{place}"
    finally:
        server.terminate()
        server.wait(60)


def test_image_build_without_an_engine(sandbox: Program) -> None:
    done = sandbox("image", "build", env={"DOCKER_HOST": "unix:///nowhere"})
    assert (done.stdout, done.returncode) == ("", 125)
    assert done.stderr.startswith("sandbox: no Docker engine answers at unix:///nowhere")
    assert sandbox.output("image", "build", "--show").startswith("# The image of a box")


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name == "docker"])
def test_image_build(sandbox: Program, runtime: str) -> None:
    """From the layers that are there already: the image itself is built before the tests."""
    tag, host = f"sandbox-cli-test:{os.getpid()}", {"DOCKER_HOST": os.environ["DOCKER_HOST"]}
    try:
        done = sandbox("image", "build", "--tag", tag, env=host)
        assert (done.stdout, done.returncode) == (f"{tag}\n", 0), done.stderr
        assert "Step 2/" in done.stderr
        lines = sandbox("image", "build", "--tag", tag, "--json", env=host).stdout.splitlines()
        assert json.loads(lines[-1]) == {"status": "built", "image": tag}
        failed = sandbox("image", "build", "--tag", tag, "--base", "sandbox-no-such:1", env=host)
        assert failed.returncode == 125
        assert f"sandbox: image {tag} was not built: " in failed.stderr
        doctor = json.loads(sandbox("doctor", "--json", env=host).stdout)
        states = {each["name"]: each["state"] for each in doctor["findings"]}
        assert states["docker engine"] == states["image"] == "ok"
    finally:
        subprocess.run(["docker", "rmi", tag], capture_output=True, check=False)


def test_help_is_there_for_all(sandbox: Program) -> None:
    text = sandbox.output("--help")
    for name in NAMES:
        assert f"\n  {name} " in text
        one = {"image": ["build"], "environments": ["list"]}.get(name, [])
        assert "--json" in sandbox.output(name, *one, "--help")
    assert "125" in text
    assert sandbox.output("--version").startswith("0.")


def test_registry(alone: Program) -> None:
    """Checked, listed and shown without a server; all that is wrong is told, and nothing else."""
    agents = alone.folder / "registry" / "agents"
    agents.mkdir(parents=True)
    (agents / "coder.yaml").write_text("name: coder\ntools: [bash]\nprompt: shell\n")
    assert alone.output("registry", "check", "registry").endswith("3 agents: valid\n")
    rows = alone.json("registry", "list", "--folder", "registry")["entries"]
    assert {"kind": "agents", "name": "coder", "description": ""} in rows
    shown = alone.output("registry", "show", "agents/coder", "--folder", "registry")
    assert shown == "name: coder\ntools:\n- bash\nprompt: shell\n"
    assert json.loads(alone.output("registry", "schema", "agent"))["required"] == ["name"]

    (agents / "coder.yaml").write_text("name: coder\ntools: [bsah]\nprompt: shel\n")
    done = alone("registry", "check", env={"SANDBOX_REGISTRY": "registry"})
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        'registry/agents/coder.yaml:2: tools: no tool "bsah" (nearest: bash)',
        'registry/agents/coder.yaml:3: prompt: no prompt "shel" (nearest: shell)',
    ]
    (first, _) = json.loads(alone("registry", "check", "registry", "--json").stdout)["problems"]
    assert (first["file"], first["line"]) == ("registry/agents/coder.yaml", 2)
    for args, said in (
        (["list", "--folder", "registry"], "coder.yaml:2: tools: no tool"),
        (["show", "agents/shel"], "no agent 'shel' (nearest: shell); there are: code_executor"),
        (["schema", "agnets"], "no kind 'agnets' (nearest: agents)"),
    ):
        done = alone("registry", *args)
        assert (done.stdout, done.returncode) == ("", 125), args
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    (alone.folder / "settings.env").write_text("SANDBOX_POOL_SIZE=1\n")
    started = alone("serve", "--settings", "settings.env", "--print-config")
    assert started.returncode == 125
    assert "registry/agents/coder.yaml:2: tools: no tool" in started.stderr, "beside the settings"
