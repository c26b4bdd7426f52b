"""`detcloud monitoring`: the scrape configuration and the Grafana board."""

import json
import re
from pathlib import Path

import pytest
import yaml

from control_plane.monitoring.families import FAMILIES
from detcloud.cli.main import main
from detcloud.cli.monitoring.grafana_board import PANELS, build_board

METRIC = re.compile(r"\bdetcloud_\w+")


def run_monitoring(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["monitoring", *words]) == 0
    return capsys.readouterr().out


def test_prometheus_gets_the_place_of_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--url", "https://ada:secret@host.example:444/base/", "--token-file", "/t")
    text = run_monitoring(capsys, "prometheus", *words)
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert job == {
        "job_name": "detcloud",
        "scheme": "https",
        "metrics_path": "/base/api/v1/metrics",
        "scrape_interval": "1m",
        "scrape_timeout": "30s",
        "authorization": {"type": "Bearer", "credentials_file": "/t"},
        "static_configs": [{"targets": ["host.example:444"]}],
    }
    assert "secret" not in text


def test_prometheus_without_a_cluster_names_the_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path))
    assert main(["monitoring", "prometheus"]) != 0
    assert "--url" in capsys.readouterr().err


def test_board_is_json_with_distinct_places(capsys: pytest.CaptureFixture[str]) -> None:
    board = json.loads(run_monitoring(capsys, "grafana"))
    assert board == build_board()
    assert len({panel["id"] for panel in board["panels"]}) == len(PANELS)
    cells = [
        (x, y)
        for panel in board["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_board_shows_each_metric() -> None:
    used = {
        name
        for panel in PANELS
        for query in panel.queries
        for name in METRIC.findall(query.expression)
    }
    assert used == {family.name for family in FAMILIES}


def test_queries_select_pools_of_metrics_with_pools() -> None:
    with_pools = {family.name for family in FAMILIES if "pool" in family.labels}
    for panel in PANELS:
        for query in panel.queries:
            [name] = METRIC.findall(query.expression)
            # Alarms of the whole cluster have an empty pool.
            is_selected = '{pool=~"$pool"' in query.expression
            assert is_selected is (name in with_pools - {"detcloud_alarm_raised"}), panel.title
