"""The network where nobody is root: out through the proxy, in through previews and ports."""

from tests.integration.ordinary_user import needs_a_second_user, run_as_a_user

SCRIPT = r"""
import http.server
import threading
import urllib.request
from urllib.parse import urlsplit
from sandbox_sdk import LocalBackend, NotListening, SandboxClient


class Host(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from a host")

    def log_message(self, *_):
        pass


host = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host)
threading.Thread(target=host.serve_forever, daemon=True).start()
place = f"127.0.0.1:{host.server_port}"
# NO_PROXY has the loopback: this asks the proxy for it all the same.
ask = '''
import http.client, sys
proxy = http.client.HTTPConnection("127.0.0.1", 3128)
proxy.request("GET", f"http://{sys.argv[1]}/")
answer = proxy.getresponse()
print(answer.status, answer.read().decode())
'''

with SandboxClient(backend=LocalBackend(network="allowlist", network_allow=place)) as sandbox:
    sandbox.write_text("ask.py", ask)
    assert sandbox.session().limits.network == "allowlist"
    assert sandbox.execute(f"python3 ask.py {place}").output == "200 from a host\n"
    assert sandbox.execute("python3 ask.py 127.0.0.1:1").output.startswith("403 ")

    try:
        with sandbox.connect(8080):
            raise AssertionError("nobody listens yet")
    except NotListening:
        pass
    sandbox.write_text("index.html", "from a box")
    sandbox.start("exec python3 -m http.server --bind 127.0.0.1 8080")
    sandbox.execute("until (echo > /dev/tcp/127.0.0.1/8080) 2> /dev/null; do sleep 0.05; done")
    with sandbox.forward(8080) as forward:
        assert urllib.request.urlopen(f"http://{forward.address}/").read() == b"from a box"
    url = urlsplit(sandbox.expose(8080).url)
    asked = urllib.request.Request(
        f"http://127.0.0.1:{url.port}/?{url.query}", headers={"Host": url.netloc}
    )
    assert urllib.request.urlopen(asked).read() == b"from a box"
host.shutdown()
print("fine")
"""


@needs_a_second_user
def test_network_of_a_user() -> None:
    run_as_a_user(SCRIPT)
