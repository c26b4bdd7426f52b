"""Machines that log policies exclude from the pool, by the cluster's configuration."""

from __future__ import annotations

import json
from typing import Any

from control_plane.access.principals import Role
from control_plane.actors.messages.pool import PoolSettings
from control_plane.engine import due_rows
from control_plane.queries import pool as pools
from tests.unit.api.agent_side import Agent, enrol
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import call
from tests.unit.api.test_api_log_policies import begin_runs

HOUR_MS = 3_600_000
EXCLUDING = {"name": "ECC", "pattern": "ECC error", "action": "exclude_node"}
LINE = {"name": "ECC", "pattern": "ECC error", "actions": ["exclude_node"], "line": "ECC error"}


def configure(cluster: Cluster, **fields: Any) -> None:
    config = json.dumps({"resource_manager": fields, "resource_pools": [{"pool_name": "default"}]})
    path, token = f"{V1}/cluster/configuration", TOKENS[Role.ADMIN]
    content = {"config": config, "dry_run": False}
    assert call(cluster.app, "PUT", path, token=token, content=content).status == 200


def excluded_agent(cluster: Cluster) -> Agent:
    """Return an agent of two agents that a line of a log has excluded from the pool."""
    agent, _ = begin_runs(cluster, EXCLUDING)
    assert enrol(cluster, "other").status == 200
    assert agent.report("1.1", {"kind": "log_policy", **LINE}, writer="agent").status == 200
    return agent


def agents(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {item["id"]: item for item in cluster.get("/agents").json["items"]}


def enable(cluster: Cluster, role: Role) -> int:
    path = f"{V1}/agents/node/enable"
    return call(cluster.app, "POST", path, token=TOKENS[role], content={}).status


def test_excluded_machine_is_listed_until_the_tick_ends_the_exclusion(cluster: Cluster) -> None:
    configure(cluster, log_exclusion={"duration": "1h"})
    excluded_agent(cluster)
    now_ms = cluster.clock.ms
    [exclusion] = agents(cluster)["node"]["exclusions"]
    assert exclusion == {
        "reason": "trial 1: log policy ECC matched: ECC error",
        "since_ms": now_ms,
        "until_ms": now_ms + HOUR_MS,
    }
    assert agents(cluster)["other"]["exclusions"] == []
    cluster.clock.ms = now_ms + HOUR_MS
    due_rows.process_due_rows(cluster.services.engine)
    assert agents(cluster)["node"]["exclusions"] == []


def test_only_admins_end_an_exclusion_early(cluster: Cluster) -> None:
    configure(cluster, log_exclusion={"duration": "1h", "policies": ["ECC"]})
    excluded_agent(cluster)
    assert enable(cluster, Role.USER) == 403
    assert agents(cluster)["node"]["exclusions"] != []
    assert enable(cluster, Role.ADMIN) == 200
    assert agents(cluster)["node"]["exclusions"] == []


def test_policy_excludes_no_machine_from_the_pool_by_default(cluster: Cluster) -> None:
    excluded_agent(cluster)
    assert agents(cluster)["node"]["exclusions"] == []
    assert cluster.get("/trials/1").json["excluded_agents"] == ["node"]


def test_section_of_a_pool_replaces_the_shared_section(cluster: Cluster) -> None:
    shared = {"gang_check": {"enabled": False}, "log_exclusion": {"duration": "1h"}}
    own = {"gang_check": {"min_bandwidth": 9}, "log_exclusion": {"duration": "2h"}}
    pool = [{"pool_name": "default", **own}, {"pool_name": "other"}]
    config = json.dumps({"resource_manager": shared, "resource_pools": pool})
    path, token = f"{V1}/cluster/configuration", TOKENS[Role.ADMIN]
    content = {"config": config, "dry_run": False}
    assert call(cluster.app, "PUT", path, token=token, content=content).status == 200

    def settings(name: str) -> PoolSettings:
        return pools.load_settings(cluster.services, name)

    assert settings("default").gang_check.enabled
    assert settings("default").gang_check.min_bandwidth == 9
    assert settings("other").gang_check.enabled is False
    lengths = [settings(name).log_exclusion for name in ("default", "other")]
    assert [rules and rules.duration_ms for rules in lengths] == [2 * HOUR_MS, HOUR_MS]
