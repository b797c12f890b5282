"""serve, health, doctor, config, image, and errors in general."""

import json
import os
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
NAMES = (*CLIENT, "serve", "doctor", "config", "image")


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


def test_serve_and_what_it_says(alone: Program) -> None:
    """Everything it says to try works when pasted, in the folder it was started in."""
    command = [SANDBOX, "serve", "--port", "0", "--destroy-on-exit"]
    server = subprocess.Popen(
        command, env=alone.env, cwd=alone.folder, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        said: list[str] = []
        while not said or "are warm" not in said[-1]:
            said.append(server.stderr.readline())
            assert said[-1], said
        text = "".join(said)
        assert "512 MiB of memory, 0.5 CPU, 256 processes" in text
        assert "bubblewrap, as configured" in text
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
        terminal.expect("are warm")
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


def test_doctor(alone: Program, sandbox: Program) -> None:
    told = alone.json("doctor")
    states = {each["name"]: each["state"] for each in told["findings"]}
    assert told["ok"]
    assert states["bubblewrap"] == states["python"] == states["disk"] == "ok"
    assert "server" not in states
    assert "redis" not in states
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
        assert "--json" in sandbox.output(name, *(["build"] if name == "image" else []), "--help")
    assert "125" in text
    assert sandbox.output("--version").startswith("0.")
