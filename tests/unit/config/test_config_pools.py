"""Cluster configurations: fields, defaults and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from control_plane.actors.messages.pool import PoolSettings
from control_plane.config import reference
from control_plane.config.cluster.__main__ import main
from control_plane.config.cluster_sections import CLUSTER_INTRODUCTION
from control_plane.config.durations import duration_text
from control_plane.config.pool_settings import pool_settings, task_defaults
from control_plane.config.pool_warnings import (
    UNUSED_POOL_SETTINGS,
    UNUSED_PROVIDER_SETTINGS,
    default_type_notices,
    pool_warnings,
)
from control_plane.config.pools import (
    ClusterConfig,
    ResourcePool,
    check_cluster,
    check_pool,
    keep_deployed_fields,
)
from control_plane.config.problems import ConfigInvalid
from control_plane.gcp.pool_provider import GcpProvider
from control_plane.scheduling.model import SchedulerRules
from provisioner.settings import parse_provider_settings

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "cluster-configuration.md"
EXAMPLE = CLUSTER_INTRODUCTION.partition("```yaml\n")[2].partition("```")[0]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(text)
    return [problem.text("f") for problem in caught.value.problems]


@pytest.mark.parametrize("pools", ["text", {"a": {}}, 5, None])
def test_deployed_fields_are_not_added_to_malformed_pools(pools: object) -> None:
    tree = {"resource_pools": pools}
    assert keep_deployed_fields(tree, check_cluster("")) is tree


def test_empty_file_is_one_fair_share_pool() -> None:
    config = check_cluster("")
    (pool,) = config.resource_pools
    assert (pool.pool_name, pool.provider) == ("default", None)
    assert config.scheduler_of(pool).type == "fair_share"
    assert pool_settings(pool, config, PoolSettings()) == PoolSettings(
        reserve_after_ms=600_000, stores_idle_jobs_apart=True
    )


@pytest.mark.parametrize(("written", "reserve_after_ms"), [("90s", 90_000), ("0", None)])
def test_reserve_after_is_a_duration_or_zero_for_never(
    written: str, reserve_after_ms: int | None
) -> None:
    config = check_cluster(f"resource_manager: {{scheduler: {{reserve_after: {written}}}}}")
    stored = ClusterConfig.model_validate_json(config.to_json())
    for checked in (config, stored):
        settings = pool_settings(checked.resource_pools[0], checked, PoolSettings())
        assert settings.reserve_after_ms == reserve_after_ms


def test_example_of_the_cluster_reference_is_valid() -> None:
    config = check_cluster(EXAMPLE)
    gpus, small = config.resource_pools
    settings = pool_settings(gpus, config, PoolSettings(draining=True))
    assert settings.scheduler == SchedulerRules("priority", preemption=True)
    # `draining` is no field of configurations and stays unchanged.
    assert settings.draining
    assert pool_settings(small, config, PoolSettings()).aux_per_agent == 20


def test_pool_without_a_scheduler_uses_the_scheduler_of_the_cluster() -> None:
    text = """
resource_manager: {scheduler: {type: priority, default_priority: 7, fitting_policy: worst}}
resource_pools:
  - pool_name: default
  - pool_name: other
    scheduler: {type: round_robin, allow_heterogeneous_fits: true}
"""
    config = check_cluster(text)
    first, other = (pool_settings(pool, config, PoolSettings()) for pool in config.resource_pools)
    assert (first.scheduler, first.default_priority) == (
        SchedulerRules("priority", False, "worst"),
        7,
    )
    # A pool's scheduler replaces the cluster's scheduler as a whole.
    assert other.scheduler == SchedulerRules("round_robin", False, "best", True)
    assert other.default_priority == 42


def test_accepts_the_former_name_of_auxiliary_places() -> None:
    (pool,) = check_cluster(
        "resource_pools: [{pool_name: default, max_cpu_containers_per_agent: 3}]"
    ).resource_pools
    assert pool.max_aux_containers_per_agent == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("resource_pools: []", "f:1: resource_pools: must not be empty"),
        ("- default", "f:1: must be a map of fields"),
        (
            "resource_pools:\n- pool_name: a b",
            "f:2: resource_pools[0].pool_name: must be 1 to 63 letters, digits,",
        ),
        (
            "resource_pools:\n- pool_name: default\n- pool_name: default",
            "f:3: resource_pools[1].pool_name: names two pools alike: default",
        ),
        (
            "resource_pools: [{pool_name: default, schedular: {}}]",
            "f:1: resource_pools[0].schedular: is not a known field (did you mean scheduler?)",
        ),
        (
            "resource_manager:\n  default_aux_resource_pool: defalt",
            "f:2: resource_manager.default_aux_resource_pool: must be one of resource_pools",
        ),
        (
            "resource_manager: {scheduler: {type: fair_share, preemption: true}}",
            "scheduler.preemption: applies to the priority scheduler only, not to fair_share",
        ),
        (
            "resource_manager: {scheduler: {type: lottery}}",
            "scheduler.type: must be 'fair_share', 'priority' or 'round_robin'",
        ),
        (
            "resource_pools: [{pool_name: default, max_cpu_containers_per_agent: 1,"
            " max_aux_containers_per_agent: 2}]",
            "must not be used together with max_aux_containers_per_agent",
        ),
    ],
)
def test_rejects_invalid_cluster_configurations_with_the_place(text: str, problem: str) -> None:
    (line,) = problems(text)
    assert problem in line


@pytest.mark.parametrize(
    ("provider", "problem"),
    [
        ("{type: azure}", "provider.type: must be one of aws, gcp, local"),
        ("{type: local, min_instances: 9}", "max_instances: must be at least min_instances (9)"),
        ("{type: local, max_instances: 0}", "max_instances: must be at least 1"),
        ("{type: local, max_idle_agent_period: 20x}", "must be a duration such as 20m, 1h30m"),
        ("{type: local, max_idle_agent_period: 0s}", "must be longer than 0"),
        ("{type: aws, spot_max_price: 1.2.3}", "digits with at most one point"),
        (
            "{type: local, offerings: [{instance_type: a}, {instance_type: a}]}",
            "offerings[1]: lists an offering twice: a/on_demand",
        ),
    ],
)
def test_rejects_invalid_providers(provider: str, problem: str) -> None:
    (line,) = problems(f"resource_pools: [{{pool_name: default, provider: {provider}}}]")
    assert problem in line


def _aws(fields: str) -> str:
    provider = f"{{type: aws, ssh_key_name: k{fields}}}"
    return f"resource_pools: [{{pool_name: default, provider: {provider}}}]"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            ", instance_type: g5.12xlrge",
            'provider.instance_type: is not a known instance type: "g5.12xlrge" (did you mean '
            "g5.12xlarge? If not, set its instance_slots, the GPUs that `aws ec2 "
            "describe-instance-types` tells)",
        ),
        (
            ", offerings: [{instance_type: g5.xlarge}, {instance_type: unheard.of}]",
            'offerings[1].instance_type: is not a known instance type: "unheard.of" (set its '
            "slots, "
            "the GPUs that `aws ec2 describe-instance-types` tells)",
        ),
        (", custom_tags: [{key: a b}]", "custom_tags[0].key: must be 1 to 128 letters, digits"),
        (", custom_tags: [{key: detcloud-pool}]", "nor with detcloud-, not"),
        (", allowed_mounts: [/mnt, data]", "allowed_mounts[1]: must be a path like /mnt/data, of"),
        (", allowed_mounts: [/]", "allowed_mounts[0]: must be a path like"),
        (", allowed_mounts: [/mnt/..]", "allowed_mounts[0]: must be a path like"),
        (", root_volume_throughput: 800", "root_volume_throughput: must be at most a quarter of"),
        (
            ", root_volume_size: 100, root_volume_iops: 60000",
            "root_volume_iops: must be at most 500 for each of 100 GiB",
        ),
        (", file_systems: [{id: fs-1, folder: /mnt/a}]", "file_systems[0].id: "),
        (
            ", file_systems: [{id: fs-12345678, folder: /mnt/a, type: fsx_lustre}]",
            "file_systems[0].mount_name: is what a file system of type fsx_lustre has",
        ),
        (
            ", file_systems: [{id: fs-12345678, folder: /a}, {id: fs-22345678, folder: /a}]",
            "file_systems[1].folder: is that of another one, /a",
        ),
        (", allowed_mounts: ['/a b']", "allowed_mounts[0]: must be a path like"),
        (", tag_key: aws:x", "tag_key: must be 1 to 128 letters"),
        (", custom_tags: [{value: b}]", "custom_tags[0].key: is required"),
        (
            ", network_interface: {public_ipp: true}",
            "network_interface.public_ipp: is not a known field (did you mean public_ip?)",
        ),
    ],
)
def test_rejects_values_that_ec2_would_refuse(fields: str, problem: str) -> None:
    (line,) = problems(_aws(fields))
    assert problem in line


@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        ("", (1,)),  # a g4dn.xlarge
        (", instance_slots: 1", (1,)),
        (", instance_slots: 4", (4,)),
        (", instance_slots: 8", (8,)),
        (", instance_type: g5.12xlarge", (4,)),
        (", instance_type: unheard.of, instance_slots: 3", (3,)),
        (", instance_type: m5.large", (0,)),
        (", instance_type: m5.large, cpu_slots_allowed: true", (1,)),
        (", offerings: [{instance_type: g5.12xlarge}, {instance_type: p5.48xlarge}]", (4, 8)),
        (", offerings: [{instance_type: g5.12xlarge, slots: 4}]", (4,)),
        (", cpu_slots_allowed: true, offerings: [{instance_type: c5.large}]", (1,)),
        (", cpu_slots_allowed: true, offerings: [{instance_type: c5.large, slots: 0}]", (1,)),
        (", offerings: [{instance_type: unheard.of, slots: 5}]", (5,)),
    ],
)
def test_ec2_instance_types_determine_the_slots(fields: str, slots: tuple[int, ...]) -> None:
    config = check_cluster(_aws(fields))
    provider = config.resource_pools[0].provider
    assert provider is not None
    assert provider.slots_offered() == slots
    settings = parse_provider_settings(provider.to_json())
    assert {offering.slots for offering in settings.offerings} <= set(slots)
    # The stored form restores the configuration.
    assert check_cluster(config.to_json().decode()) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            ", instance_type: p3.8xlarge, instance_slots: 2",
            "instance_slots: must be 4, the GPUs of",
        ),
        (
            ", offerings: [{instance_type: g5.12xlarge, slots: 8}]",
            "offerings[0].slots: must be 4, the GPUs of g5.12xlarge, not 8",
        ),
        (
            ", instance_type: m5.large, instance_slots: 4, cpu_slots_allowed: true",
            "instance_slots: must be 1, not 4: m5.large has no GPU",
        ),
        (
            ", offerings: [{instance_type: c5.large, slots: 2}]",
            "offerings[0].slots: must be 0, not 2: c5.large has no GPU",
        ),
    ],
)
def test_rejects_slots_that_differ_from_the_instance_type(fields: str, message: str) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        check_cluster(_aws(fields))
    assert message in str(raised.value)


def test_provisioner_reads_the_provider_settings() -> None:
    text = """
resource_pools:
  - pool_name: default
    provider:
      type: aws
      ssh_key_name: key
      min_instances: 1
      max_instances: 8
      max_idle_agent_period: 1h30m
      max_agent_starting_period: 90
      launch_error_retries: 2
      offerings:
        - {instance_type: g5.xlarge, zone: us-east-1a, market: spot, slots: 1, price_per_hour: 0.9}
        - {instance_type: g5.12xlarge, slots: 4}
"""
    config = check_cluster(text)
    settings = pool_settings(config.resource_pools[0], config, PoolSettings())
    provider_settings = parse_provider_settings(settings.provider)
    assert (
        provider_settings.kind,
        provider_settings.min_instances,
        provider_settings.max_instances,
    ) == ("aws", 1, 8)
    # 1.5 h and 90 s.
    assert (provider_settings.idle_ms_max, provider_settings.starting_ms_max) == (5_400_000, 90_000)
    # The third failure in a row is the last: two retries.
    assert provider_settings.launch_error_limit == 3
    default = check_cluster("resource_pools: [{pool_name: default, provider: {type: local}}]")
    (pool,) = default.resource_pools
    assert (
        parse_provider_settings(
            pool_settings(pool, default, PoolSettings()).provider
        ).launch_error_limit
        == 10
    )
    assert [offering.name for offering in provider_settings.offerings] == [
        "g5.xlarge/us-east-1a/spot",
        "g5.12xlarge/on_demand",
    ]
    assert json.loads(provider_settings.section)["ssh_key_name"] == "key"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("capacity_reservation: lt-1", "must be the id of a capacity reservation"),
        ("capacity_block: true", "needs the reservation of the block"),
    ],
)
def test_rejects_invalid_capacity_reservations(fields: str, problem: str) -> None:
    text = "resource_pools: [{pool_name: default, provider: {type: aws, %s}}]"
    with pytest.raises(ConfigInvalid, match=problem):
        check_cluster(text % fields)
    check_cluster(text % "capacity_reservation: cr-0123456789abcdef0, capacity_block: true")


def test_task_defaults_of_pools_override_defaults_of_the_cluster() -> None:
    text = """
task_container_defaults: {preemption_timeout: 9, shm_size_bytes: 7}
resource_pools:
  - pool_name: default
    task_container_defaults:
      preemption_timeout: 60
      environment_variables: [A=b]
"""
    config = check_cluster(text)
    variables = {kind: ["A=b"] for kind in ("cpu", "cuda", "rocm")}
    assert task_defaults(config.resource_pools[0], config) == {
        "preemption_timeout": 60,
        "resources": {"shm_size": 7},
        "environment": {"environment_variables": variables},
    }


def test_cluster_secrets_are_stored_and_masked() -> None:
    text = """
resource_pools:
  - pool_name: default
    task_container_defaults:
      registry_auth: {username: u, password: canary-1}
      environment_variables: [API_TOKEN=canary-2]
"""
    config = check_cluster(text)
    assert "canary" not in json.dumps(config.masked_values()) + repr(
        config.resource_pools[0].masked_values()
    )
    assert ClusterConfig.model_validate_json(config.to_json()) == config


def test_overrides_change_the_present_pool() -> None:
    present = check_pool("a", "scheduler: {type: priority}\ndescription: one", [], None)
    changed = check_pool("a", None, ["scheduler.preemption=true"], present)
    assert changed.scheduler is not None
    assert (changed.scheduler.type, changed.scheduler.preemption) == ("priority", True)
    assert changed.description == "one"
    assert check_pool("a", "{}", [], present).description == ""


@pytest.mark.parametrize(
    ("text", "override", "problem"),
    [
        ("pool_name: b", "description=x", "pool_name: must be a, as the pool that it is for"),
        ("description: x", "scheduler", "is not of the form path.to.field=value"),
        ("description: x\ndescription: y", "budget=1", "is given twice"),
        ("budget: 0", "description=x", "budget: must be greater than 0"),
    ],
)
def test_rejects_invalid_pools(text: str, override: str, problem: str) -> None:
    with pytest.raises(ConfigInvalid, match=problem):
        check_pool("a", text, [override], None)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(1_200_000, "20m"), (5_400_000, "1h30m"), (90_500, "1m30s500ms"), (0, "0s")],
)
def test_durations_are_formatted_in_hours_to_milliseconds(time_ms: int, text: str) -> None:
    assert duration_text(time_ms) == text


def test_cluster_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == reference.render_cluster_reference(), "run `make references`"


def test_command_line_checks_a_cluster_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(EXAMPLE)
    assert main([str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gpus: priority, preemptive, 0 to 4 instances of local",
        "small: fair_share, agents started by hand",
        "with slots by default: gpus",
        "without slots by default: small",
    ]
    file.write_text("pools: 1")
    assert main([str(file), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["path"], problem["line"]) == ("pools", 1)


UNUSED = """
resource_pools:
  - pool_name: default
    agent_reconnect_wait: 30s
    agent_reattach_enabled: false
    provider: {type: gcp, operation_timeout_period: 9m, container_startup_script: "echo hush"}
  - pool_name: b
    provider: {type: local, launch_error_timeout: 1m}
"""


def test_settings_without_effect_are_warnings() -> None:
    config = check_cluster(UNUSED)
    assert [warning.partition(" is not used: ")[0] for warning in pool_warnings(config)] == [
        "pool default: agent_reconnect_wait",
        "pool default: agent_reattach_enabled",
        "pool default: provider.container_startup_script",
        "pool default: provider.operation_timeout_period",
        "pool b: provider.launch_error_timeout",
        *default_type_notices(config.resource_pools),
    ]
    # Default values cause no warning, also in a file that contains all defaults.
    assert list(pool_warnings(check_cluster(check_cluster(EXAMPLE).to_json().decode()))) == []


def test_settings_without_effect_in_the_reference_have_a_warning() -> None:
    lines = reference.render_cluster_reference().splitlines()
    named = {line.split("`")[1] for line in lines if "Accepted, but has no effect" in line}
    warned = UNUSED_POOL_SETTINGS.keys() | UNUSED_PROVIDER_SETTINGS.keys()
    assert named & {*ResourcePool.model_fields, *GcpProvider.model_fields} == warned


def test_check_of_a_cluster_file_prints_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(UNUSED)
    assert main([str(file)]) == 0
    out = capsys.readouterr().out
    assert "\nwarning: pool default: agent_reconnect_wait is not used: an agent is lost" in out
    assert "hush" not in out
    main([str(file), "--json"])
    # Five settings without an effect, and the type of the pool on Google Cloud.
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 5 + 1


def test_cluster_problems_show_no_login_of_a_url() -> None:
    text = 'resource_pools: [{pool_name: "a", max_aux_containers_per_agent: "http://me:canary@h/"}]'
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(text)
    assert "http://********@h/" in repr(caught.value.problems)
    assert "canary" not in repr(caught.value.problems)
