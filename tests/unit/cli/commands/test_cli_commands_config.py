"""`detcloud config check` with a cluster, without a cluster and with `--offline`."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster, Refusal

VALID = (
    "name: digits\nentrypoint: python3 x.py\n"
    "searcher: {name: single, metric: loss, max_length: {batches: 3}}\n"
)


@pytest.fixture
def valid(tmp_path: Path) -> str:
    path = tmp_path / "valid.yaml"
    path.write_text(VALID)
    return str(path)


def _refuse_checks(fake: FakeCluster, refusal: Refusal) -> None:
    def refuse(method: str, target: str) -> None:
        if (method, target) == ("POST", "/api/v1/experiments"):
            raise refusal

    fake.on_request = refuse


def test_check_without_a_cluster_lists_skipped_checks(detcloud: Detcloud, valid: str) -> None:
    done = detcloud("config", "check", valid)
    assert done.code == 0
    assert done.out.startswith("name:            digits\n")
    assert done.err == (
        "not checked with a cluster: resource pool, slots, mounts, checkpoint storage and template "
        "(no local cluster is running, and --url is not given)\n"
    )
    report = json.loads(detcloud("config", "check", valid, "--json").out)
    reason = "no local cluster is running, and --url is not given"
    assert report["cluster"] == {"checked": False, "reason": reason}


def test_cluster_checks_the_file_and_creates_no_experiment(
    fake: FakeCluster, detcloud: Detcloud, valid: str
) -> None:
    done = detcloud("config", "check", valid)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\nwarning: digits was checked by the cluster\n")
    report = json.loads(detcloud("config", "check", valid, "--json").out)
    assert report["warnings"][-1] == "digits was checked by the cluster"
    assert report["cluster"] == {"checked": True, "reason": None}
    assert not fake.experiments
    assert not fake.objects


def test_offline_asks_no_cluster(fake: FakeCluster, detcloud: Detcloud, valid: str) -> None:
    done = detcloud("config", "check", valid, "--offline")
    assert (done.code, "was checked by" in done.out) == (0, False)
    assert "(--offline was given)" in done.err


def test_problems_of_the_cluster_refuse_the_file(
    fake: FakeCluster, detcloud: Detcloud, valid: str
) -> None:
    problem = {"path": "resources.resource_pool", "message": "gpu does not exist\x1b[2J"}
    _refuse_checks(fake, Refusal(422, "invalid", "invalid", [problem]))
    done = detcloud("config", "check", valid)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith(f"{valid}: resources.resource_pool: gpu does not exist")
    assert "\x1b" not in done.out
    report = json.loads(detcloud("config", "check", valid, "--json").out)
    assert (report["ok"], report["problems"][0]["message"]) == (False, problem["message"])


def test_a_cluster_that_refuses_to_check_is_no_problem_of_the_file(
    fake: FakeCluster, detcloud: Detcloud, valid: str
) -> None:
    _refuse_checks(fake, Refusal(403, "forbidden", "this needs the role user"))
    done = detcloud("config", "check", valid)
    assert (done.code, "(this needs the role user)" in done.err) == (0, True)
    # A cluster named by --url must answer.
    assert detcloud("config", "check", valid, "--url", fake.url).code == 3


def test_only_a_cluster_completes_a_template(
    fake: FakeCluster, detcloud: Detcloud, config: Path
) -> None:
    done = detcloud("config", "check", str(config), "--template", "base")
    assert (done.code, done.out.splitlines()[0]) == (0, f"{config} is accepted")
    refused = detcloud("config", "check", str(config), "--template", "base", "--offline")
    assert refused.code == 1
    assert "cannot be used with --offline" in refused.err


def test_only_a_named_cluster_checks_a_cluster_configuration(
    detcloud: Detcloud, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("resource_pools: [{pool_name: default}]\n")
    done = detcloud("config", "check", str(path), "--cluster")
    assert (done.code, "(--url was not given)" in done.err) == (0, True)
