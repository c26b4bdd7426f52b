"""Compute Engine's descriptions of the pools' machine types, from a deployment to a launch."""

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.fleet.records import Market
from control_plane.gcp.machine_types import NONE_DESCRIBED, find_machine_type
from infra.gcp import program
from infra.gcp.described_types import NamedType, add_described_types, find_named_types
from infra.stack_program import SettingsInvalid
from provisioner.clouds.provider import QuotaExceeded
from tests.conftest import require

require("pulumi_gcp")

from tests.emulators.gce.serving import GceServer  # noqa: E402
from tests.unit.infra.test_infra_gcp_account_checks import IMAGES, settings  # noqa: E402
from tests.unit.provisioner.gce_account import PLACE, open_account, request  # noqa: E402

# A type that the built-in catalogue lacks. Its processors cannot boot the default image.
NEW = "a4x-highgpu-4g"
POOLS = f"""
resource_pools:
  - pool_name: default
    provider:
      type: gcp
      boot_disk_source_image: projects/p1/global/images/family/ours
      offerings:
        - {{instance_type: {NEW}, market: spot}}
        - {{instance_type: n1-standard-8+nvidia-tesla-t4:2}}
  - pool_name: by-hand
"""
SETTING = "detcloud:machineTypes"


@pytest.fixture
def config(
    tmp_path: Path, compute_engine: GceServer, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The configuration of a stack with POOLS; the simulator stands in for Compute Engine."""
    monkeypatch.setenv("DETCLOUD_COMPUTE_ENDPOINT", compute_engine.url)
    (tmp_path / "pools.yaml").write_text(POOLS)
    given = settings(**IMAGES, clusterConfig=str(tmp_path / "pools.yaml"))
    fields = given.model_dump(by_alias=True, exclude_defaults=True, exclude={"team"})
    return {
        f"detcloud:{name}": field if isinstance(field, str) else json.dumps(field)
        for name, field in fields.items()
    }


def description(
    vcpus: int, memory_gb: float, gpus: int = 0, accelerator: str = ""
) -> dict[str, Any]:
    return {"vcpus": vcpus, "memory_gb": memory_gb, "gpus": gpus, "accelerator": accelerator}


def test_deployment_reads_unknown_machine_types_from_compute_engine(
    config: dict[str, str],
) -> None:
    assert find_machine_type(NEW, NONE_DESCRIBED) is None
    with pytest.raises(SettingsInvalid, match="is not a known machine type"):
        program.read_stack_config("vision", config)
    assert program.complete_stack_config("vision", config) == []
    assert json.loads(config[SETTING]) == {
        NEW: description(140, 884.0, 4, "nvidia-gb200"),
        "n1-standard-8": description(8, 30.0),
    }
    _, text = program.read_stack_config("vision", config)
    pool, by_hand = check_cluster(text).resource_pools
    assert pool.provider is not None
    assert pool.provider.slots_offered() == (2, 4)
    assert by_hand.provider is None


def test_deployed_machine_type_is_launched(config: dict[str, str]) -> None:
    only = {"type": "gcp", "instance_type": {"machine_type": NEW, "preemptible": True}}
    image = {"boot_disk_source_image": "projects/p1/global/images/family/ours"}
    pool = {"pool_name": "default", "provider": {**only, **image}}
    Path(config["detcloud:clusterConfig"]).write_text(json.dumps({"resource_pools": [pool]}))
    program.complete_stack_config("vision", config)
    _, text = program.read_stack_config("vision", config)
    provider = check_cluster(text).resource_pools[0].provider
    assert provider is not None
    section = {**json.loads(provider.to_json()), **PLACE}
    with open_account() as account:
        account.reset()
        cloud = account.cloud(**section)
        [offering] = cloud.offerings()
        assert (offering.instance_type, offering.market, offering.slots) == (NEW, Market.SPOT, 4)
        account.launch(cloud, request(offering=offering, **section))
        assert account.only_machine().machine_type == NEW
        account.reset(quota={"spot": 0})
        with pytest.raises(QuotaExceeded, match="GPUS-PER-GPU-FAMILY-per-project-region"):
            account.launch(cloud, request("two", offering=offering, **section))


def test_refuses_a_type_that_the_region_lacks_and_suggests_types(
    config: dict[str, str], compute_engine: GceServer
) -> None:
    project = compute_engine.project
    project.not_offered = {(NEW, zone) for zone in project.zones["us-central1"]}
    with pytest.raises(SettingsInvalid) as refused:
        program.complete_stack_config("vision", config)
    [problem] = refused.value.problems
    assert problem.endswith(
        f"pools.yaml: pool default: {NEW}: us-central1 does not offer this type; europe-west4-a, "
        "europe-west4-b do; use another type, such as a2-highgpu-4g, a2-highgpu-8g, a2-highgpu-2g, "
        "or another region"
    )
    assert SETTING not in config


def test_missing_type_with_explicit_slots_is_not_refused(
    config: dict[str, str], compute_engine: GceServer
) -> None:
    project = compute_engine.project
    project.not_offered = {(NEW, zone) for zone in project.zones["us-central1"]}
    path = Path(config["detcloud:clusterConfig"])
    path.write_text(POOLS.replace(f"{NEW}, market: spot", f"{NEW}, market: spot, slots: 4"))
    assert program.complete_stack_config("vision", config) == []
    assert "n1-standard-8" in json.loads(config[SETTING])


def test_described_types_are_not_read_from_compute_engine(
    config: dict[str, str], compute_engine: GceServer
) -> None:
    config[SETTING] = json.dumps({NEW: description(1, 2.0, 1, "nvidia-gb200")})
    assert program.complete_stack_config("vision", config) == []
    assert compute_engine.project.calls == []
    _, text = program.read_stack_config("vision", config)
    provider = check_cluster(text).resource_pools[0].provider
    assert provider is not None
    assert provider.slots_offered() == (1, 2)


def test_compute_engine_refusal_is_only_reported(
    config: dict[str, str], compute_engine: GceServer
) -> None:
    compute_engine.project.fail("listMachineTypes", 403, "forbidden", "Required permission")
    [line] = program.complete_stack_config("vision", config)
    assert line.endswith("does not describe the pools' machine types: Required permission")
    assert SETTING not in config


def test_missing_credentials_are_reported_only_for_unknown_types(
    config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_COMPUTE_ENDPOINT")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    [line] = program.complete_stack_config("vision", config)
    assert "machine types: no credentials: " in line
    # If all types are known, only the check reports missing credentials.
    path = Path(config["detcloud:clusterConfig"])
    path.write_text(POOLS.replace(NEW, "a2-highgpu-4g"))
    assert program.complete_stack_config("vision", config) == []


def test_configuration_without_gcp_pools_is_deployed_unchanged(
    config: dict[str, str], compute_engine: GceServer
) -> None:
    path = Path(config["detcloud:clusterConfig"])
    path.write_text("resource_pools: [{pool_name: default}] # ours\n")
    assert program.complete_stack_config("vision", config) == []
    assert program.read_stack_config("vision", config)[1] == path.read_text()
    assert compute_engine.project.calls == []


def test_error_lines_are_lines_of_the_pools_file(config: dict[str, str]) -> None:
    program.complete_stack_config("vision", config)
    path = Path(config["detcloud:clusterConfig"])
    path.write_text(POOLS.replace("market: spot", "market: moon"))
    with pytest.raises(SettingsInvalid, match=r"pools\.yaml:8"):
        program.read_stack_config("vision", config)


@pytest.mark.parametrize(
    "pools",
    [
        None,
        [None, 1, {}],
        [{"provider": 1}],
        [{"provider": {"type": "gcp", "offerings": 1, "instance_type": 1, "machine_types": 1}}],
        [{"provider": {"type": "gcp", "offerings": [1, {"instance_type": 1}], "region": 1}}],
        [{"provider": {"type": "aws", "offerings": [{"instance_type": "a2-highgpu-1g"}]}}],
    ],
)
def test_malformed_pools_are_returned_unchanged(pools: Any) -> None:
    tree = {"resource_pools": pools}
    assert {named_kind.name for named_kind in find_named_types(tree, "us-central1")} <= {
        "n1-standard-32"
    }
    types = settings(machineTypes=json.dumps({"n1-standard-4": description(4, 15.0)})).machine_types
    assert add_described_types(tree, types) == tree


def test_named_types_use_the_region_of_pool_zone_or_stack() -> None:
    def names_of(**provider: Any) -> list[NamedType]:
        pool = {"pool_name": "p", "provider": {"type": "gcp", **provider}}
        return find_named_types({"resource_pools": [pool]}, "us-central1")

    custom = {"instance_type": {"machine_type": "n1-custom-6-20480"}}
    assert names_of(**custom) == [NamedType("p", "us-central1", "n1-custom-6-20480", False)]
    [zoned] = names_of(zone="europe-west4-b", instance_type={"machine_type": NEW})
    assert zoned == NamedType("p", "europe-west4", NEW, True)
    [sized] = names_of(region="europe-west4", instance_type={"machine_type": NEW}, instance_slots=4)
    assert sized == NamedType("p", "europe-west4", NEW, False)
    own = {NEW: description(1, 1.0)}
    assert not names_of(instance_type={"machine_type": NEW}, machine_types=own)[0].needs_facts


def test_refuses_slots_that_differ_from_a_described_types_gpus(
    config: dict[str, str],
) -> None:
    program.complete_stack_config("vision", config)
    types = settings(machineTypes=config[SETTING]).machine_types
    text = POOLS.replace("market: spot", "market: spot, slots: 8")
    with pytest.raises(ConfigInvalid, match="must be 4, the GPUs of a4x-highgpu-4g, not 8"):
        check_cluster(text, lambda tree: add_described_types(tree, types))
