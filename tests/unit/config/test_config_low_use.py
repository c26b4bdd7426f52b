"""The policy for low use: defaults of the cluster and of pools, and the trial's specification."""

from __future__ import annotations

import pytest

from control_plane.actors.records import JobKind
from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.low_use import HOUR_MS
from control_plane.config.pool_settings import task_defaults
from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.config.trial_settings import trial_settings
from tests.unit.config.samples import LENGTH, to_yaml

CLUSTER = """
resource_manager: {type: agent}
task_container_defaults:
  low_use: {action: end, time: 2h}
resource_pools:
  - pool_name: default
    task_container_defaults: {low_use: {percent: 10}}
  - pool_name: quiet
    task_container_defaults: {low_use: {action: ignore}}
"""


def config_in(pool: int, **fields: object) -> ExperimentConfig:
    cluster = check_cluster(CLUSTER)
    layer = task_defaults(cluster.resource_pools[pool], cluster)
    return check_config(to_yaml({**LENGTH, **fields}), cluster=layer)


def test_low_use_of_an_hour_is_announced_by_default() -> None:
    low_use = check_config(to_yaml(LENGTH)).low_use
    assert low_use.spec_fields() == {"low_use": {"percent": 5, "time_ms": HOUR_MS}}
    assert low_use.action == "notify"


def test_pool_overrides_cluster_and_configuration_overrides_both() -> None:
    assert config_in(0).low_use.model_dump() == {
        "percent": 10,
        "time": "2h",
        "action": "end",
    }
    assert config_in(1).low_use.action == "ignore"
    own = config_in(0, low_use={"action": "notify", "time": "30m"}).low_use
    assert (own.percent, own.time, own.action) == (10, HOUR_MS // 2, "notify")


def test_ignored_low_use_has_no_specification() -> None:
    assert config_in(1).low_use.spec_fields() == {}


@pytest.mark.parametrize("pool", [0, 1])
def test_trial_knows_the_action(pool: int) -> None:
    config = config_in(pool)
    assert trial_settings(config, "default", 1).low_use == config.low_use.action
    assert trial_settings(config, "default", 1, kind=JobKind.NOTEBOOK).low_use == "ignore"


@pytest.mark.parametrize("kind", [JobKind.COMMAND, JobKind.NOTEBOOK, JobKind.SHELL])
def test_defaults_of_the_cluster_refuse_no_other_job(kind: JobKind) -> None:
    cluster = check_cluster(CLUSTER)
    layer = task_defaults(cluster.resource_pools[0], cluster)
    text = "entrypoint: [ls]\n" if kind is JobKind.COMMAND else "{}\n"
    check_config(text, cluster=layer, kind=kind)


@pytest.mark.parametrize(
    "wrong", [{"percent": 0}, {"percent": 101}, {"time": "0s"}, {"action": "kill"}, {"x": 1}]
)
def test_impossible_policies_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigInvalid, match="low_use"):
        check_config(to_yaml({**LENGTH, "low_use": wrong}))
