"""Previews of a server as users run it: on its own port, over a restart, and in a browser."""

import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from sandbox_sdk import RemoteBackend
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from tests.browser import chromium, open_page
from tests.contract.conftest import RUNTIMES, state_dir
from tests.contract.preview_app import PORT, Visitor, exposed, serving, visiting
from tests.contract.test_sandboxes import run
from tests.server_process import ServerProcess, running

__all__ = ["state_dir"]

pytestmark = [
    pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here"),
    pytest.mark.timeout(300),
]
PAGE = """
<!doctype html><title>From a box</title><h1>From a box</h1><script>
const read = async (url, options) => {
  try {
    const answer = await fetch(url, options);
    return answer.type === "opaque" ? "opaque" : "read: " + (await answer.text());
  } catch (error) { return "refused"; }
};
const socket = url => new Promise(done => {
  try {
    const opened = new WebSocket(url);
    opened.onopen = () => done("open");
    opened.onerror = () => done("refused");
  } catch (error) { done("refused"); }
});
const framed = url => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.onload = () => {
    try { done("read: " + frame.contentWindow.document.body.innerText); }
    catch (error) { done("refused"); }
  };
  frame.src = url;
  document.body.append(frame);
});
</script>
"""


@pytest.fixture
async def server(state_dir: Path) -> AsyncIterator[ServerProcess]:
    async with running("bubblewrap", state_dir) as started:
        await started.ready()
        yield started


async def test_a_restart_keeps_tokens(server: ServerProcess) -> None:
    async with RemoteBackend(server.url) as sandboxes:
        await serving(sandboxes)
        first, other = await exposed(sandboxes), await exposed(sandboxes, port=9000, public=True)
        assert urlsplit(first.url).port == server.port + 1
        for number in (signal.SIGTERM, signal.SIGKILL):
            await server.stop(number)
            await server.start()
            await server.ready()
            async with visiting(first) as visitor:
                assert (await visitor.get("/x")).status_code == 200
        listed = (await sandboxes.previews(Target(thread_id="t"))).previews
        assert [each.port for each in listed] == [PORT, other.port]
        again = await exposed(sandboxes)
        assert again.created_at == first.created_at
        for preview in (first, again):  # The earlier link stays good.
            async with visiting(preview) as visitor:
                assert (await visitor.get("/x")).status_code == 200
        await sandboxes.unexpose(Target(thread_id="t"), PORT)
        for preview in (first, again):
            async with Visitor(preview) as visitor:
                assert (await visitor.get(visitor.enter)).status_code == 401
        tokens = [each.token for each in (first, again)]
        state = Path(server.settings["SANDBOX_STATE_DIR"])
        kept = b"".join(
            each.read_bytes() for each in state.glob(f"{server.name}*") if each.is_file()
        )
        for token in tokens:
            assert token is not None
            assert token.encode() not in kept, "in a file, or in the log"
        await sandboxes.cleanup(Target(thread_id="t"))


async def test_a_port_that_is_taken(state_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with running("bubblewrap", state_dir, SANDBOX_PREVIEW_PORT=port) as server:
            await server.ready()
            assert any("previews.off" in line and port in line for line in server.lines())
            async with RemoteBackend(server.url) as sandboxes:
                assert (await run(sandboxes, "t", "echo on")).output == "on\n"
                with pytest.raises(RuntimeUnavailable, match=r"has no previews: port .* is taken"):
                    await exposed(sandboxes)
                await sandboxes.cleanup(Target(thread_id="t"))


async def test_none_are_wanted(state_dir: Path) -> None:
    async with running("bubblewrap", state_dir, SANDBOX_PREVIEWS="0") as server:
        await server.ready()
        async with RemoteBackend(server.url) as sandboxes:
            await run(sandboxes, "t", "true")
            with pytest.raises(RuntimeUnavailable, match="SANDBOX_PREVIEWS is off"):
                await exposed(sandboxes)
            await sandboxes.cleanup(Target(thread_id="t"))
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient() as http:
                await http.get(f"http://127.0.0.1:{server.port + 1}/")


async def test_the_api_refuses_pages_of_previews(server: ServerProcess) -> None:
    async with RemoteBackend(server.url) as sandboxes, httpx.AsyncClient() as http:
        await run(sandboxes, "t", "true")
        preview = await exposed(sandboxes)
        origin = preview.url.partition("/?")[0]
        host = urlsplit(preview.url).hostname or ""
        body = {"thread_id": "t", "command": "true"}
        for own in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
            headers = {"host": own, "origin": origin}
            answer = await http.post(f"{server.url}/execute", json=body, headers=headers)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
        for name in (host, f"{host}:{server.port}"):  # The API is not at a preview's name.
            answer = await http.get(f"{server.url}/sessions", headers={"host": name})
            assert answer.status_code == 403
        # And a preview's port has no API.
        for path in ("/health", "/sessions", "/console", "/docs"):
            answer = await http.get(f"http://127.0.0.1:{server.port + 1}{path}")
            assert answer.status_code == 404
        await sandboxes.cleanup(Target(thread_id="t"))


@pytest.mark.skipif(chromium() is None, reason="no chromium here")
async def test_a_browser_sees_the_page_and_the_page_nothing_of_ours(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with (
        RemoteBackend(server.url) as sandboxes,
        open_page(tmp_path / "browser") as page,
    ):
        await run(sandboxes, "t", "true")
        preview = await exposed(sandboxes)
        await page.open(preview.url)
        await page.until_shows("Nothing listens at port 8080 yet")
        await run(sandboxes, "t", f"cat > /workspace/index.html <<'END'\n{PAGE}\nEND")
        await _http_server(sandboxes)
        await page.until_shows("From a box")  # It loads itself again.
        place = await page.evaluate("location.href")
        assert place == preview.url.partition("?")[0]
        assert await page.evaluate("document.cookie") == ""
        assert (await page.evaluate("read('/')")).startswith("read: ")  # So it could read.
        for api in (server.url, f"http://localhost:{server.port}"):
            await _nothing_of(page, api)
        other = await exposed(sandboxes, port=9000)
        assert await page.evaluate(f"read({other.url.partition('?')[0]!r})") == "refused"
        await sandboxes.cleanup(Target(thread_id="t"))


async def _http_server(sandboxes: Any) -> None:
    command = f"cd /workspace && exec python3 -m http.server --bind 127.0.0.1 {PORT}"
    await sandboxes.execute(ExecuteRequest(thread_id="t", command=command, background=True))


async def _nothing_of(page: Any, api: str) -> None:
    """What a page of a box finds of the API: neither answers nor effects."""
    run_it = json.dumps({"thread_id": "t", "command": "touch /workspace/owned"})
    simple = f"{{method: 'POST', body: {json.dumps(run_it)}}}"
    hidden = f"{{method: 'POST', mode: 'no-cors', body: {json.dumps(run_it)}}}"
    assert await page.evaluate(f"read('{api}/health')") == "refused"
    assert await page.evaluate(f"read('{api}/sessions')") == "refused"
    assert await page.evaluate(f"read('{api}/execute', {simple})") == "refused"
    assert await page.evaluate(f"read('{api}/execute', {hidden})") in ("opaque", "refused")
    assert await page.evaluate(f"framed('{api}/console/')") == "refused"
    socket_at = api.replace("http", "ws")
    for path in ("/ws", "/terminal", f"/connect?thread_id=t&port={PORT}"):
        assert await page.evaluate(f"socket('{socket_at}{path}')") == "refused"
    seen = await page.evaluate("read('/owned')")
    assert "404" in seen
