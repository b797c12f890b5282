"""The stack of deploy/, started as users start it, on images that are made here."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import certifi
import httpx

from tests.run import run_owner

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
STAND_INS = ("python", "redis", "nginx")
NGINX = "agent-sandbox-test-nginx:latest"
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_LONGEST_S = 1200
"""A build of the images, on a machine that has none yet."""
_HEALTHY_S = 180

HERE = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
"""Tells apart the images of several checkouts that share an engine."""


def run(*argv: str, **env: str) -> str:
    """What a program writes to stdout. Fails with all it said."""
    done = subprocess.run(
        argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=_LONGEST_S
    )
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def compose() -> tuple[str, ...] | None:
    """The docker-compose of this machine, the old program or the new plugin."""
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    asked = shutil.which("docker") and subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False
    )
    return ("docker", "compose") if asked and asked.returncode == 0 else None


def build_stand_ins(*names: str) -> None:
    """What has not changed comes from the engine's cache."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "tests/deploy/Dockerfile.stand-ins", f"{folder}/Dockerfile")
        bundle = _BUNDLE if _BUNDLE.exists() else Path(certifi.where())
        shutil.copy(bundle, f"{folder}/ca-certificates.crt")
        for name in names:
            _build(f"agent-sandbox-test-{name}:latest", "--target", name, folder)


def build_images() -> dict[str, str]:
    """The variables that name the images."""
    build_stand_ins(*STAND_INS)
    server = f"agent-sandbox-test-server:{HERE}"
    recipe = ("--build-arg", "BASE=agent-sandbox-test-python:latest",
              "-f", str(ROOT / "images/Dockerfile.server"))  # fmt: skip
    # Named, the first stage can be removed when the next one takes its place.
    _build(f"agent-sandbox-test-server-build:{HERE}", *recipe, "--target", "build", str(ROOT))
    _build(server, *recipe, str(ROOT))
    return {
        "SERVER_IMAGE": server,
        "REDIS_IMAGE": "agent-sandbox-test-redis:latest",
        "NGINX_IMAGE": NGINX,
    }


def _build(tag: str, *options: str) -> None:
    before = _image_id(tag)
    # The classic builder takes a base image that only exists locally.
    run("docker", "build", "--network", "host", "-t", tag, *options, DOCKER_BUILDKIT="0")
    if before and before != _image_id(tag):
        subprocess.run(["docker", "image", "rm", before], capture_output=True, check=False)


def _image_id(tag: str) -> str:
    asked = ["docker", "image", "inspect", "-f", "{{.Id}}", tag]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


class Stack:
    """A project of docker-compose with its own name, port and keys."""

    def __init__(
        self, folder: Path, variables: Mapping[str, str], *, port: int, previews: int
    ) -> None:
        self.name = run_owner(f"sandboxtest{port}")
        self.url = f"http://127.0.0.1:{port}"
        self.api_key = "a-key-of-this-test"
        self._env_file = folder / ".env"
        socket = os.environ["DOCKER_HOST"].removeprefix("unix://")
        settings = {
            **variables,
            "FLEET_NAME": self.name,
            "LISTEN": f"127.0.0.1:{port}",
            "LISTEN_PREVIEWS": f"127.0.0.1:{previews}",
            "SANDBOX_PREVIEW_URL": f"http://localhost:{previews}",
            "DOCKER_SOCK": socket,
            "DOCKER_GID": str(os.stat(socket).st_gid),
            "SANDBOX_API_KEYS": f"default:{self.api_key}",
            "SANDBOX_FLEET_KEY": "the-fleet-key-of-this-test",
            "REDIS_PASSWORD": "the-password-of-this-test",
            "SANDBOX_POOL_SIZE": "1",
            "SANDBOX_MIN_POOL_SIZE": "0",
            "SANDBOX_MAX_POOL_SIZE": "1",
        }
        lines = (f"{name}={value}\n" for name, value in settings.items())
        self._env_file.write_text("".join(lines))

    def compose(self, *words: str, **env: str) -> str:
        program = compose()
        assert program is not None
        files = ("-f", str(DEPLOY / "docker-compose.yml"))
        return run(
            *program, "-p", self.name, "--env-file", str(self._env_file), *files, *words, **env
        )

    def up(self, **env: str) -> None:
        self.compose("up", "-d", "--no-build", **env)
        self._until_healthy()

    def _until_healthy(self) -> None:
        deadline = time.monotonic() + _HEALTHY_S
        told = ""
        while time.monotonic() < deadline:
            try:
                told = httpx.get(f"{self.url}/health").text
                checks = json.loads(told)
            except (httpx.TransportError, ValueError):
                checks = {}
            if checks.get("status") == "healthy" and len(self.workers(checks)) == 3:
                return
            time.sleep(0.2)
        raise AssertionError(f"not healthy: {told}\n{self.compose('logs', '--tail', '40')}")

    @staticmethod
    def workers(health: Mapping[str, Mapping[str, str]]) -> list[str]:
        return [name for name in health["checks"] if name.startswith("worker ")]

    def worker(self, worker_id: str) -> str:
        """The container of a worker."""
        service = worker_id.removeprefix(f"{self.name}-")
        return self.compose("ps", "-q", service).strip()

    def down(self) -> None:
        """The documented way to leave nothing behind."""
        self.up(SANDBOX_DESTROY_ON_EXIT="true")
        self.compose("down", "-v")

    def left(self) -> list[str]:
        """What there still is of it on the engine."""
        of_project = f"label=com.docker.compose.project={self.name}"
        found = [
            *run("docker", "ps", "-aq", "--filter", of_project).split(),
            *run("docker", "volume", "ls", "-q", "--filter", of_project).split(),
            *run("docker", "network", "ls", "-q", "--filter", of_project).split(),
        ]
        return found + self.boxes()

    def boxes(self) -> list[str]:
        owners = [f"label=sandbox.owner={self.name}-worker-{n}" for n in (1, 2, 3)]
        return [
            box for owner in owners for box in run("docker", "ps", "-aq", "--filter", owner).split()
        ]

    def remove(self) -> None:
        """Whatever state a test has left it in."""
        self.compose("down", "-v", "-t", "1")
        if boxes := self.boxes():
            run("docker", "rm", "-f", "-v", *boxes)
