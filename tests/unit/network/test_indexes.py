"""The indexes of the server's own tools, out of their configuration."""

from pathlib import Path

from sandbox_server.network.hosts import Target
from sandbox_server.network.indexes import (
    ToolConfig,
    _pip_settings,
    apt_urls,
    indexes_of,
    npmrc_settings,
    read_indexes,
)
from sandbox_server.network.rules import RuleSet

PIP = "https://index.test/simple/"


def test_hosts_and_variables() -> None:
    tools = ToolConfig(
        pip=(PIP, "http://second.test:8080/simple"),
        npm=("https://npm.test/",),
        others=("http://apt.test/debian", "https://apt.test/debian"),
    )
    found = indexes_of(tools, {})
    assert found.env == {
        "PIP_INDEX_URL": PIP,
        "PIP_EXTRA_INDEX_URL": "http://second.test:8080/simple",
        "PIP_TRUSTED_HOST": "second.test:8080",
        "UV_DEFAULT_INDEX": PIP,
        "UV_INDEX": "http://second.test:8080/simple",
        "NPM_CONFIG_REGISTRY": "https://npm.test/",
    }
    assert [str(rule) for rule in found.rules] == [
        "index.test", "second.test:8080", "npm.test", "apt.test",
    ]  # fmt: skip


def test_passwords_stay_outside() -> None:
    tools = ToolConfig(
        pip=("https://me:p%40ss@index.test/simple/",),
        npm=("https://npm.test/team/",),
        npm_tokens={"//npm.test/team/": "t0ken"},
    )
    found = indexes_of(tools, {})
    assert found.env["PIP_INDEX_URL"] == "http://index.test/simple/"
    assert found.env["PIP_TRUSTED_HOST"] == "index.test"
    assert found.env["NPM_CONFIG_REGISTRY"] == "http://npm.test/team/"
    shown = repr((found, tools))
    assert "p%40ss" not in repr(found)
    assert "t0ken" not in shown
    rules = RuleSet(found.rules)
    pip = rules.request(Target("index.test", 80), "GET", "/simple/a/", https=False)
    assert (pip.https, pip.target.port) == (True, 443)
    assert pip.headers["authorization"].reveal() == b"Basic bWU6cEBzcw=="
    npm = rules.request(Target("npm.test", 80), "GET", "/team/a", https=False)
    assert npm.headers["authorization"].reveal() == b"Bearer t0ken"


def test_what_is_on_this_machine_is_left_out() -> None:
    tools = ToolConfig(
        pip=(
            "file:///srv/simple",
            "http://localhost:3141/root",
            "http://127.0.0.1/x",
            "",
            "nonsense",
        ),
        npm=("http://[::1]:4873/",),
    )
    found = indexes_of(tools, {})
    assert (found.rules, dict(found.env)) == ((), {})


def test_defaults_of_the_tools_are_not_told_to_boxes() -> None:
    tools = ToolConfig(pip=(PIP,), pip_is_set=False, npm=("https://npm.test/",), npm_is_set=False)
    found = indexes_of(tools, {})
    assert dict(found.env) == {}
    assert len(found.rules) == 2


def test_authorities(tmp_path: Path) -> None:
    own, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    own.write_text("-----BEGIN CERTIFICATE-----\n")
    key.write_text("-----BEGIN PRIVATE KEY-----\n")
    environ = {"SSL_CERT_FILE": str(own), "GIT_SSL_CAINFO": str(key), "PATH": "/bin"}
    found = indexes_of(ToolConfig(authorities={"PIP_CERT": str(own)}), environ)
    (place,) = found.files
    assert found.env == {"SSL_CERT_FILE": place, "PIP_CERT": place}
    assert found.files[place] == own.read_text()


def test_what_pip_says() -> None:
    said = (
        "global.index-url='https://global.test/simple'\n"
        "install.index-url='https://install.test/simple'\n"
        "global.extra-index-url='https://a.test/ \\nhttps://b.test/'\n"
        ":env:.cert='/ca.pem'\n"
        "nonsense\n"
    )
    found = _pip_settings(said, {})
    assert found["index-url"] == "https://install.test/simple"
    assert found["extra-index-url"].split() == ["https://a.test/", "https://b.test/"]
    assert found["cert"] == "/ca.pem"
    assert _pip_settings("", {"PIP_INDEX_URL": PIP})["index-url"] == PIP


def test_npmrc() -> None:
    text = (
        "registry = https://npm.test/\n; a comment\n# one more\n@team:registry=https://team.test/\n"
        '//npm.test/:_authToken=${NPM_TOKEN}\ncafile="/ca.pem"\n'
    )
    assert npmrc_settings(text, {"NPM_TOKEN": "t0ken"}) == {
        "registry": "https://npm.test/",
        "@team:registry": "https://team.test/",
        "//npm.test/:_authToken": "t0ken",
        "cafile": "/ca.pem",
    }


def test_apt(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://no.test/ x\ndeb [arch=amd64 signed-by=/k] http://a.test/debian stable main\n"
        "deb-src https://b.test/debian stable main\n"
    )
    more = tmp_path / "sources.list.d"
    more.mkdir()
    (more / "c.sources").write_text(
        "Types: deb\nURIs: http://c.test/debian\n https://d.test/x\nX: y\n"
    )
    assert list(apt_urls(tmp_path)) == [
        "http://a.test/debian", "https://b.test/debian", "http://c.test/debian", "https://d.test/x",
    ]  # fmt: skip
    assert list(apt_urls(tmp_path / "none")) == []


def test_those_of_this_machine_can_be_read() -> None:
    """Whatever they are."""
    found = read_indexes()
    for name, value in found.env.items():
        assert "@" not in value or not value.startswith("http"), name
