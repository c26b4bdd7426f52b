"""The section `quiet_hours` of resource pools."""

from __future__ import annotations

import json

import pytest

from control_plane.actors.messages.pool import PoolSettings
from control_plane.config.pool_settings import pool_settings
from control_plane.config.pools import ClusterConfig, ResourcePool, check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.scheduling.quiet_hours import QuietHours, QuietPeriod


def pool_of(rules: str) -> ResourcePool:
    text = f"resource_pools: [{{pool_name: default, quiet_hours: {rules}}}]\n"
    return check_cluster(text).resource_pools[0]


def rules_of(rules: str) -> tuple[QuietHours, ...]:
    return pool_settings(pool_of(rules), ClusterConfig(), PoolSettings()).quiet_hours


def test_rule_has_defaults() -> None:
    assert rules_of("[{begin: '22:00'}]") == (
        QuietHours((0, 1, 2, 3, 4, 5, 6), 22 * 60, 24 * 60, "UTC"),
    )


def test_fields_of_a_rule_act() -> None:
    rule = (
        "[{days: [sun, mon, mon], begin: '1:30', end: '06:00', time_zone: Europe/Berlin,"
        " running: checkpoint, urgent_priority: 10}]"
    )
    assert rules_of(rule) == (QuietHours((0, 6), 90, 360, "Europe/Berlin", True, 10),)


@pytest.mark.parametrize("text", ["22:00", "'22:00'", "22:00 "])
def test_time_may_be_without_quotes(text: str) -> None:
    assert rules_of(f"[{{begin: {text}, end: 06:00}}]")[0].begin == 22 * 60


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("{begin: '24:01'}", "begin"),
        ("{begin: '24:00'}", "begin"),
        ("{begin: '12:60'}", "begin"),
        ("{end: noon}", "end"),
        ("{end: -1}", "end"),
        ("{end: 1441}", "end"),
        ("{end: true}", "end"),
        ("{days: []}", "days"),
        ("{days: [monday]}", "days[0]"),
        ("{running: kill}", "running"),
        ("{urgent_priority: 0}", "urgent_priority"),
        ("{time_zone: ''}", "time_zone"),
        ("{from: '22:00'}", "from"),
    ],
)
def test_invalid_rule_is_refused_with_its_place(rule: str, path: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        pool_of(f"[{rule}]")
    [problem] = refused.value.problems
    assert problem.path == f"resource_pools[0].quiet_hours[0].{path}"


def test_few_rules_are_allowed() -> None:
    with pytest.raises(ConfigInvalid):
        pool_of(f"[{', '.join(['{}'] * 11)}]")


def test_stored_configuration_has_the_same_rules() -> None:
    pool = pool_of("[{begin: '22:00', end: '06:30', running: checkpoint}]")
    stored = json.loads(pool.to_json())
    assert stored["quiet_hours"][0]["begin"] == "22:00"
    assert ResourcePool.model_validate(stored) == pool


def test_periods_of_the_present_settings_stay() -> None:
    now = PoolSettings(quiet_periods=(QuietPeriod(1, 2),), is_quiet=True, quiet_ended_ms=5)
    after = pool_settings(pool_of("[{}]"), ClusterConfig(), now)
    assert (after.quiet_periods, after.is_quiet, after.quiet_ended_ms) == (
        (QuietPeriod(1, 2),),
        True,
        5,
    )
