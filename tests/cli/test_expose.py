"""`sandbox expose`: ports of a sandbox for browsers."""

import json
import signal
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.cli.program import Program
from tests.cli.test_forward import SERVE

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.


def fetched(url: str) -> bytes:
    """By its token in the URL, as a program does that keeps no cookies."""
    place = urlsplit(url)
    address = f"http://127.0.0.1:{place.port}/?{place.query}"
    request = urllib.request.Request(address, headers={"host": place.netloc})
    with urllib.request.urlopen(request, timeout=60) as page:
        return bytes(page.read())


def test_expose(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, SERVE)
    url = sandbox.output("expose", thread, "8080").strip()
    assert url.startswith("http://8080-")
    assert fetched(url) == b"hello\n"
    assert sandbox.output("expose", thread, "8080").strip() == url
    (line,) = sandbox.output("expose", thread).splitlines()[1:]
    assert line.split()[:2] == ["8080", "no"]
    assert line.split()[-1] == url.partition("?")[0]
    public = json.loads(sandbox.output("expose", thread, "8080", "--public", "--json"))
    assert (public["public"], public["token"]) == (True, None)
    assert fetched(public["url"]) == b"hello\n"
    sandbox.output("expose", thread, "8080", "--stop")
    assert sandbox.output("expose", thread).splitlines()[1:] == []
    with pytest.raises(urllib.error.HTTPError, match="401"):
        fetched(url)


def test_mistakes(sandbox: Program, thread: str) -> None:
    missing = sandbox("expose", thread, "8080")
    assert (missing.returncode, "has no session" in missing.stderr) == (125, True)
    for wrong in (["0"], ["70000"], ["http"], ["--stop"], ["8080", "--stop", "--public"]):
        assert sandbox("expose", thread, *wrong).returncode == 2, wrong
    sandbox.output("run", "-t", thread, "true")
    done = sandbox("expose", thread, "8080", "--stop")
    assert (done.returncode, "is not exposed" in done.stderr) == (125, True)


def test_without_a_server_it_lasts_until_ctrl_c(alone: Program, thread: str) -> None:
    alone.output("run", "-t", thread, SERVE)
    exposing = alone.popen("expose", thread, "8080")
    assert exposing.stdout is not None
    try:
        assert fetched(exposing.stdout.readline().strip()) == b"hello\n"
    finally:
        exposing.send_signal(signal.SIGINT)
        _, said = exposing.communicate(timeout=60)
    assert (exposing.returncode, "until Ctrl-C" in said) == (130, True)
    alone.output("rm", thread)
