"""What deploy/ has for Prometheus and Grafana, checked by promtool."""

import json
import re
from pathlib import Path

import yaml

from tests.metrics.page import PAGE, documented
from tests.metrics.prometheus_server import ROOT, promtool

RULES = ROOT / "deploy/prometheus"
DASHBOARD = ROOT / "deploy/grafana/dashboards/sandbox.json"
OURS = re.compile(r"\b(?:sandbox|process)_[a-z_]+\b")
BUILT_IN = {"process"}


def names_in(expression: str) -> set[str]:
    """Names of metrics, as the page tells them."""
    without_labels = re.sub(r"\{[^}]*\}|by \([^)]*\)", "", expression)
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if "_seconds_" in name else name
        for name in OURS.findall(without_labels)
    }


def test_rules_and_configuration_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", "alerts.yml", cwd=RULES)
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", cwd=RULES)


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", cwd=RULES)


def test_alerts_are_those_of_the_page_and_of_known_metrics() -> None:
    (group,) = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert names == re.findall(r"^\| `(Sandbox\w+)` \|", PAGE, re.MULTILINE)
    used = {name for rule in group["rules"] for name in names_in(rule["expr"])}
    assert used
    assert used <= documented().keys()


def test_the_scraped_services_are_those_of_the_stack() -> None:
    stack = yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())
    (job,) = yaml.safe_load((RULES / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for each in job["static_configs"] for target in each["targets"]}
    port = stack["x-fleet"]["SANDBOX_METRICS_PORT"]
    servers = [name for name in stack["services"] if re.match("worker|coordinator", name)]
    assert targets == {f"{name}:{port}" for name in servers}
    for name in ("prometheus", "grafana"):
        assert stack["services"][name]["profiles"] == ["metrics"]
        for volume in stack["services"][name]["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / "deploy" / source).is_dir()


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert {"uid", "title", "schemaVersion", "version", "panels", "templating", "time"} <= set(
        board
    )
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    names = set()
    for panel in board["panels"]:
        assert {"type", "title", "gridPos", "datasource", "targets", "fieldConfig"} <= set(panel)
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        names |= {name for target in panel["targets"] for name in names_in(target["expr"])}
    assert names <= documented().keys()
    unused = {"process_virtual_memory_bytes", "process_start_time_seconds", "process_max_fds"}
    assert documented().keys() - names == unused


def test_provisioning_names_what_the_stack_mounts() -> None:
    folder: Path = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (boards,) = yaml.safe_load((folder / "dashboards/sandbox.yml").read_text())["providers"]
    stack = yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())
    path = boards["options"]["path"]
    assert f"./grafana/dashboards:{path}:ro" in stack["services"]["grafana"]["volumes"]
