"""Hints: the messages of real programs in real boxes, and what is told of them."""

import pytest

from sandbox_sdk.protocol.models import Limits
from sandbox_server.runtime.agent import CommandResult
from sandbox_server.service.hints import hint_for

LIMITS = Limits(
    memory_bytes=512 << 20, cpus=0.5, pids=256, disk_bytes=1 << 30, command_timeout_s=30,
    output_limit_bytes=1 << 20, upload_limit_bytes=1 << 20, network="none",
)  # fmt: skip
ONLINE = LIMITS.model_copy(update={"network": "bridge"})

NETWORK, PIP, NPM = "no network. Upload", "--no-index --find-links", "npm install ./NAME.tgz"
VENV, PACKAGES, ROOT = "python3 -m venv", "system packages cannot be", "Run it without sudo or su"
DOCKER, SERVICES, READ_ONLY = "no containers", "no service manager", "only /workspace, /tmp"
PIDS, MEMORY, DISK = "limit of 256 processes", "limit of 512 MiB", "/workspace has 1 GiB; /tmp"

OFFLINE = [
    ("curl: (6) Could not resolve host: example.com", 6, NETWORK),
    ("curl: (7) Failed to connect to 1.1.1.1 port 80 after 0 ms: Couldn't connect", 7, NETWORK),
    ("wget: unable to resolve host address 'example.com'", 4, NETWORK),
    ("fatal: unable to access 'https://x/': Could not resolve host: github.com", 128, NETWORK),
    ("ssh: Could not resolve hostname github.com: Name or service not known", 128, NETWORK),
    ("error: cannot run ssh: No such file or directory\nfatal: unable to fork", 128, NETWORK),
    ("<urlopen error [Errno -3] Temporary failure in name resolution>", 1, NETWORK),
    ("OSError: [Errno 101] Network is unreachable", 1, NETWORK),
    ("  cause: Error: getaddrinfo EAI_AGAIN example.com", 1, NETWORK),
    ("  [cause]: Error: getaddrinfo ENOTFOUND example.com", 1, NETWORK),
    ("bash: line 1: ping: command not found", 127, NETWORK),
    ("bash: line 1: wget: command not found", 127, NETWORK),
    ("sh: 1: nslookup: not found", 127, NETWORK),
    ("ERROR: No matching distribution found for requests", 1, PIP),
    ("npm ERR! code EAI_AGAIN\nnpm ERR! syscall getaddrinfo", 1, NPM),
    ("npm error code ENOTFOUND\nnpm error syscall getaddrinfo", 1, NPM),
]
ALWAYS = [
    ("error: externally-managed-environment\n\nThis environment is externally managed", 1, VENV),
    ("/usr/bin/python3: No module named pip", 1, VENV),
    ("bash: line 1: pip: command not found", 127, VENV),
    ("bash: line 1: uv: command not found", 127, VENV),
    ("E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: …)", 100, PACKAGES),
    ("E: List directory /var/lib/apt/lists/partial is missing. - Acquire (30: Read-only file"
     " system)", 100, PACKAGES),
    ("dpkg: error: requested operation requires superuser privilege", 2, PACKAGES),
    ("bash: line 1: apk: command not found", 127, PACKAGES),
    ("bash: line 1: sudo: command not found", 127, ROOT),
    ("Password: su: Authentication failure", 1, ROOT),
    ("su: Critical error - immediate abort", 1, ROOT),
    ("mount: /mnt: must be superuser to use mount.", 32, ROOT),
    ("chown: changing ownership of '/workspace': Operation not permitted", 1, ROOT),
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", 1, DOCKER),
    ("bash: line 1: docker: command not found", 127, DOCKER),
    ("System has not been booted with systemd as init system (PID 1).", 1, SERVICES),
    ("bash: line 1: systemctl: command not found", 127, SERVICES),
    ("nginx: unrecognized service", 1, SERVICES),
    ("touch: cannot touch '/etc/x': Read-only file system", 1, READ_ONLY),
    ("bash: fork: retry: Resource temporarily unavailable", 124, PIDS),
    ("bash: fork: Resource temporarily unavailable", 254, PIDS),
    ("self.pid = _fork_exec(\n  ^^^\nBlockingIOError: [Errno 11] Resource temporarily unavailable",
     1, PIDS),
    ("RuntimeError: can't start new thread", 1, PIDS),
    ("Traceback …\nMemoryError", 1, MEMORY),
    ("head: error writing 'standard output': No space left on device", 1, DISK),
]  # fmt: skip
NOTHING = [
    ("curl: (7) Failed to connect to localhost port 8080 after 0 ms: Couldn't connect", 7),
    ("curl: (7) Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect", 7),
    ("bash: line 1: gti: command not found", 127),
    ("1 failed, 3 passed", 1),
    ("", 1),
]


def ended(exit_code: int | None, reason: str | None = None) -> CommandResult:
    return CommandResult(
        command_id="c", exit_code=exit_code, signal=None, reason=reason, timed_out=False,
        duration_ms=1, output_bytes=1, cwd="/", state_saved=True,
    )  # fmt: skip


@pytest.mark.parametrize(("output", "exit_code", "told"), OFFLINE + ALWAYS)
def test_a_wall_is_explained(output: str, exit_code: int, told: str) -> None:
    hint = hint_for(ended(exit_code), output, limits=LIMITS)
    assert hint is not None
    assert told in hint
    assert hint_for(ended(0), output, limits=LIMITS) is None, "it succeeded"
    assert hint_for(ended(None), output, limits=LIMITS) is None, "it runs"


@pytest.mark.parametrize(("output", "exit_code", "told"), OFFLINE)
def test_where_there_is_a_network_it_is_not_missed(output: str, exit_code: int, told: str) -> None:
    assert hint_for(ended(exit_code), output, limits=ONLINE) is None


@pytest.mark.parametrize(("output", "exit_code", "told"), ALWAYS)
def test_what_is_missing_all_the_same(output: str, exit_code: int, told: str) -> None:
    assert told in (hint_for(ended(exit_code), output, limits=ONLINE) or "")
    assert "no network" not in (hint_for(ended(exit_code), output, limits=ONLINE) or "")


@pytest.mark.parametrize(("output", "exit_code"), NOTHING)
def test_nothing_is_made_up(output: str, exit_code: int) -> None:
    assert hint_for(ended(exit_code), output, limits=LIMITS) is None


def test_a_reason_that_is_told_needs_no_hint() -> None:
    output = "sandbox: cannot start the command: fork: Resource temporarily unavailable"
    assert hint_for(ended(254, "pids"), output, limits=LIMITS) is None


def test_curl_that_says_nothing() -> None:
    silent = ended(6)
    command = "cd /tmp && /usr/bin/curl -s https://example.com > page"
    assert NETWORK in (hint_for(silent, "", limits=LIMITS, command=command) or "")
    assert hint_for(silent, "", limits=ONLINE, command=command) is None
    assert hint_for(silent, "", limits=LIMITS, command="echo curl; exit 6") is None
    assert hint_for(silent, "", limits=LIMITS) is None


ALLOWED = LIMITS.model_copy(update={"network": "allowlist", "network_allow": ["a.test", "b.test"]})
REFUSED = [
    "curl: (56) CONNECT tunnel failed, response 403",
    "curl: (56) Received HTTP code 403 from proxy after CONNECT",
    "fatal: unable to access 'https://c.test/': CONNECT tunnel failed, response 403",
    "OSError: Tunnel connection failed: 403 this sandbox may not connect to c.test:443",
    "this sandbox may not GET http://c.test:80/. Allowed are: a.test.",
    "error:0A000458:SSL routines::tlsv1 unrecognized name",
]


@pytest.mark.parametrize("output", REFUSED)
def test_what_the_network_refuses(output: str) -> None:
    assert "It can reach: a.test, b.test." in (hint_for(ended(1), output, limits=ALLOWED) or "")
    opened = LIMITS.model_copy(update={"network": "open"})
    assert "public hosts alone" in (hint_for(ended(1), output, limits=opened) or "")
    assert hint_for(ended(1), output, limits=ONLINE) is None
