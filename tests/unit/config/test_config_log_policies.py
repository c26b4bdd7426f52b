"""Log policies: checks of patterns and names, merging, and the form for agents."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.log_policies import (
    DEFAULT_POLICIES,
    NAME_CHARACTERS_MAX,
    POLICIES_MAX,
    effective_policies,
)
from control_plane.config.pool_settings import task_defaults
from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from tests.unit.config.samples import LENGTH, STEP, find_problems, to_yaml

OOM, ECC = ({**policy, "signal": policy["name"]} for policy in DEFAULT_POLICIES)


def policies_of(*policies: Any, cluster: Any = (), era: Any = LENGTH) -> list[Any]:
    """Return the merged policies of a configuration on a cluster."""
    text = to_yaml({**era, "log_policies": [*policies]})
    return list(check_config(text, cluster={"log_policies": [*cluster]}).log_policies)


@pytest.mark.parametrize(
    ("policies", "path", "message"),
    [
        ([{"name": "a", "pattern": "(a"}], "log_policies[0].pattern", "has a `(` without its `)`"),
        ([{"pattern": r"(?!a)", "action": "cancel_retries"}], "log_policies[0].pattern", "(?!"),
        ([{"name": "a", "pattern": "a"}, {"name": "a"}], "log_policies[1].name", "is repeated"),
        ([{"action": "exclude_node"}], "log_policies[0].pattern", "is required"),
        ([{"name": "n" * (NAME_CHARACTERS_MAX + 1)}], "log_policies[0].name", "at most 100"),
        (
            [{"name": "a", "pattern": "a", "actions": [{"signal": "s" * 101}]}],
            "log_policies[0]",
            "has a signal of more than 100 characters",
        ),
        (
            [{"name": str(n), "pattern": "a"} for n in range(POLICIES_MAX + 1)],
            "log_policies",
            "must have at most 64 policies, not 65",
        ),
    ],
)
def test_invalid_policy_is_refused_with_its_place(
    policies: list[Any], path: str, message: str
) -> None:
    (problem,) = find_problems(to_yaml({**LENGTH, "log_policies": policies}))
    assert problem.path == path
    assert message in problem.message


def test_stored_configuration_with_other_pattern_is_still_read() -> None:
    # Releases up to 0.1 accepted any text as a pattern.
    config = check_config(to_yaml(LENGTH))
    stored = config.model_copy(update={"log_policies": ({"pattern": "(a"},)}).to_json()
    assert ExperimentConfig.from_json(stored).log_policies == ({"pattern": "(a"},)


@pytest.mark.parametrize("era", [LENGTH, STEP])
def test_policies_of_cluster_are_added_after_those_of_experiment(era: Any) -> None:
    mine, other = {"name": "a", "pattern": "mine"}, {"name": "b", "pattern": "cluster"}
    cluster = [{"name": "a", "pattern": "cluster"}, other]
    assert policies_of(mine, cluster=cluster, era=era) == [mine, other]


def test_policies_without_name_are_merged_by_pattern_and_action() -> None:
    cancel = {"pattern": "a", "action": "cancel_retries"}
    exclude = {"pattern": "a", "action": "exclude_node"}
    legacy = {"pattern": "a", "action": {"type": "cancel_retries"}}
    former = {"type": "on_failure_dont_retry", "pattern": "a"}
    assert policies_of(cancel, cluster=[exclude, legacy, former]) == [cancel, exclude]


def test_cluster_changes_default_policies() -> None:
    text = """
resource_manager: {type: agent}
task_container_defaults:
  log_policies: [{name: CUDA OOM, pattern: out of memory, action: cancel_retries}]
resource_pools:
  - pool_name: default
    task_container_defaults: {log_policies: [{name: ECC Error}]}
"""
    cluster = check_cluster(text)
    layer = task_defaults(cluster.resource_pools[0], cluster)
    config = check_config(to_yaml(LENGTH), cluster=layer)
    assert effective_policies(config.log_policies) == [
        {
            "pattern": "out of memory",
            "name": "CUDA OOM",
            "actions": ["cancel_retries"],
            "signal": "CUDA OOM",
        }
    ]


def test_pattern_of_cluster_is_checked() -> None:
    text = "task_container_defaults: {log_policies: [{name: a, pattern: '(a'}]}\n"
    with pytest.raises(ConfigInvalid, match="without its") as refused:
        check_cluster(text)
    assert refused.value.problems[0].path.startswith("task_container_defaults.log_policies")


@pytest.mark.parametrize(
    ("policy", "form"),
    [
        ({"name": "n", "pattern": "a"}, {"pattern": "a", "name": "n", "signal": "n"}),
        (
            {"name": "n", "pattern": "a", "action": "exclude_node", "signal": "s"},
            {"pattern": "a", "name": "n", "actions": ["exclude_node"], "signal": "s"},
        ),
        (
            {"pattern": "a", "actions": ["cancel_retries", {"signal": "s"}, "exclude_node"]},
            {"pattern": "a", "actions": ["cancel_retries", "exclude_node"], "signal": "s"},
        ),
        (
            {"pattern": "a", "action": {"type": "cancel_retries"}},
            {"pattern": "a", "actions": ["cancel_retries"]},
        ),
        (
            {"type": "on_failure_exclude_node", "pattern": "a", "restarts": 2},
            {"pattern": "a", "actions": ["exclude_node"]},
        ),
        (
            {"type": "send_webhook", "pattern": "a", "webhook_name": "w"},
            {"pattern": "a", "webhook": "w"},
        ),
    ],
)
def test_each_form_reaches_the_agent(policy: dict[str, Any], form: dict[str, Any]) -> None:
    assert effective_policies([policy]) == [form, OOM, ECC]


def test_name_without_pattern_only_removes_the_default() -> None:
    assert effective_policies([{"name": "CUDA OOM"}]) == [ECC]
    assert effective_policies([{"name": "other"}]) == [OOM, ECC]
    assert effective_policies([]) == [OOM, ECC]
