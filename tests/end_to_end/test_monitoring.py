"""A real Prometheus scrapes a cluster, and answers each query of the Grafana board."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from detcloud.cli.monitoring.grafana_board import PANELS, Query
from tests.emulators.server import free_port, require_program
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.patience import ANSWER_SECONDS_MAX, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

POOLS = """
resource_pools:
  - pool_name: default
  - pool_name: cloud
    budget: 500
    provider:
      type: local
      min_instances: 1
      max_instances: 1
      offerings:
        - {instance_type: small, slots: 1, price_per_hour: 36}
"""
# The reports of a profiler on a machine with two GPUs.
TRAIN = """
import time
from detcloud import core

with core.init() as context:
    while not context.preempt.should_preempt():
        gpus = {"gpu_util_0": 60.0, "gpu_util_1": 20.0, "gpu_free_memory_0": 8.0}
        context.train.report_metrics("gpu", int(time.time()), gpus)
        time.sleep(2)
"""
CONFIG = """
name: gpus
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""
# The only queries without a result: no alarm is raised.
EMPTY = {"detcloud_alarm_raised == 1"}


class Prometheus:
    """A running Prometheus at an address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of a query. A query that Prometheus refuses fails the test."""
        query = urllib.parse.urlencode({"query": expression})
        with self._open(f"/api/v1/query?{query}") as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result

    def is_ready(self) -> bool:
        try:
            with self._open("/-/ready"):
                return True
        except OSError:
            return False

    def targets(self) -> list[dict[str, Any]]:
        """Return the state of each scraped cluster."""
        with self._open("/api/v1/targets") as answer:
            targets: list[dict[str, Any]] = json.load(answer)["data"]["activeTargets"]
            return targets

    def _open(self, path: str) -> Any:
        return urllib.request.urlopen(self.url + path, timeout=ANSWER_SECONDS_MAX)


@contextlib.contextmanager
def start_prometheus(folder: Path, configuration: str) -> Iterator[Prometheus]:
    """Yield a Prometheus with this configuration and a store in `folder`."""
    (folder / "prometheus.yml").write_text(configuration)
    address = f"127.0.0.1:{free_port()}"
    words = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'store'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    try:
        prometheus = Prometheus(f"http://{address}")
        wait_until(prometheus.is_ready)
        yield prometheus
    finally:
        process.terminate()
        process.wait(ANSWER_SECONDS_MAX)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    """A cluster with an instance, a budget, and a trial that reports the use of GPUs."""
    require_program("prometheus", remedy="it is in Debian's package prometheus")
    with start_cluster(tmp_path, 1, POOLS) as laptop:
        model = tmp_path / "model"
        model.mkdir()
        (model / "train.py").write_text(TRAIN)
        (tmp_path / "config.yaml").write_text(CONFIG)
        laptop.run("create", tmp_path / "config.yaml", model)
        yield laptop


def scrape_configuration(laptop: Laptop, folder: Path) -> str:
    """Return the printed configuration for Prometheus, with a scrape each second."""
    token = laptop.run("token", "create", "--role", "metrics", "--description", "prometheus")
    path = folder / "detcloud.token"
    path.write_text(token.stdout)
    printed = laptop.run("monitoring", "prometheus", "--token-file", path).stdout
    configuration = yaml.safe_load(printed)
    configuration["scrape_configs"][0] |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    return yaml.safe_dump(configuration)


def expressions() -> Iterator[tuple[str, Query]]:
    """Yield the queries of all panels for all pools, each with the title of the panel."""
    for panel in PANELS:
        for query in panel.queries:
            yield panel.title, query


def ask(prometheus: Prometheus, query: Query) -> list[dict[str, Any]]:
    return prometheus.ask(query.expression.replace("$pool", ".*"))


def test_each_query_of_the_board_has_a_result(laptop: Laptop, tmp_path: Path) -> None:
    with start_prometheus(tmp_path, scrape_configuration(laptop, tmp_path)) as prometheus:
        wait_until(lambda: prometheus.ask('up{job="detcloud"} == 1'))
        for title, query in expressions():
            if query.expression in EMPTY:
                assert query.reason_if_empty, title
                assert ask(prometheus, query) == []
            else:
                wait_until(partial(ask, prometheus, query), 60, f"a result of {title}")
        # (60 + 20) / 2 percent
        [utilization] = prometheus.ask("detcloud_gpu_utilization_ratio")
        assert utilization["value"][1] == "0.4"
        [spending] = prometheus.ask('detcloud_spending_dollars_per_hour{market="on_demand"} > 0')
        assert (spending["metric"]["pool"], spending["value"][1]) == ("cloud", "36")


def test_prometheus_without_a_valid_token_gets_nothing(laptop: Laptop, tmp_path: Path) -> None:
    configuration = scrape_configuration(laptop, tmp_path)
    (tmp_path / "detcloud.token").write_text("dct_" + "x" * 43)
    with start_prometheus(tmp_path, configuration) as prometheus:
        [target] = wait_until(
            lambda: [found for found in prometheus.targets() if found["lastError"]]
        )
        assert "401" in target["lastError"]
        assert prometheus.ask("detcloud_info") == []


def test_promtool_accepts_the_scrape_configuration(laptop: Laptop, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(scrape_configuration(laptop, tmp_path))
    words = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(words, capture_output=True, text=True, env=os.environ, check=False)
    assert checked.returncode == 0, checked
