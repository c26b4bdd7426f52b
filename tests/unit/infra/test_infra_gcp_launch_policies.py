"""Organization policies against the launch requests of pools."""

from typing import Any

import pytest
import yaml

from control_plane.config.pools import check_cluster
from infra.findings import Finding, Level
from infra.gcp.account_facts import Policy
from infra.gcp.launch_policies import LAUNCH_RULES, check_launches
from infra.gcp.names import Names
from infra.gcp.pool_launches import PoolLaunch, list_launches, stack_defaults
from tests.unit.infra.gcp_graphs import KEY
from tests.unit.infra.test_infra_gcp_account_checks import settings

ENFORCED, DENIES_ALL = Policy(is_enforced=True), Policy(denies_all=True)


def launches(provider: dict[str, Any] | None = None, **stack: str) -> list[PoolLaunch]:
    """Return the launches of a pool `gpus` with more fields of its provider."""
    pool = {"type": "gcp", "max_instances": 3, "offerings": [{"instance_type": "a2-highgpu-4g"}]}
    text = yaml.safe_dump(
        {
            "resource_manager": {
                "default_compute_resource_pool": "gpus",
                "default_aux_resource_pool": "gpus",
            },
            "resource_pools": [{"pool_name": "gpus", "provider": {**pool, **(provider or {})}}],
        }
    )
    made = settings(**stack)
    return list_launches(made.names, check_cluster(text), stack_defaults(made))


def base(**fields: Any) -> dict[str, Any]:
    return {"base_config": fields}


def metadata(key: str, value: str) -> dict[str, Any]:
    return base(metadata={"items": [{"key": key, "value": value}]})


def findings(name: str, policy: Policy, made: list[PoolLaunch]) -> list[Finding]:
    return list(check_launches(name, policy, made))


def test_request_is_the_request_of_a_launch() -> None:
    [launch] = launches({"zone": "us-central1-a"}, kmsKey=KEY)
    assert (launch.pool, launch.instance_type) == ("gpus", "a2-highgpu-4g")
    assert (launch.project, launch.region, launch.zone) == (
        "acme-ml",
        "us-central1",
        "us-central1-a",
    )
    [disk] = launch.properties["disks"]
    assert disk["diskEncryptionKey"] == {"kmsKeyName": KEY}
    [interface] = launch.properties["networkInterfaces"]
    assert interface["accessConfigs"]
    assert launch.properties["serviceAccounts"][0]["email"].startswith("dc-vision-vm@")


ADDRESS = base(networkInterfaces=[{"network": "n", "accessConfigs": [{"name": "x"}]}])
OWN_NETWORK = {"network_interface": {"network": "n", "external_ip": True}}
SHARED = {"network_interface": {"subnetwork": "projects/host/regions/us-central1/subnetworks/s"}}
OTHER_IMAGE = base(disks=[{"initializeParams": {"sourceImage": "projects/p2/global/images/i"}}])
IMAGE = {"boot_disk_source_image": "projects/p2/global/images/i"}


@pytest.mark.parametrize(
    ("name", "policy", "provider", "expected"),
    [
        ("compute.vmExternalIpAccess", DENIES_ALL, {}, "no public address"),
        ("compute.vmExternalIpAccess", Policy(allowed=frozenset({"vm"})), {}, "no public address"),
        ("compute.managed.vmExternalIpAccess", ENFORCED, OWN_NETWORK, "no public address"),
        ("compute.vmCanIpForward", DENIES_ALL, base(canIpForward=True), "canIpForward: true"),
        ("compute.managed.vmCanIpForward", ENFORCED, base(canIpForward=True), "canIpForward"),
        (
            "compute.disableNestedVirtualization",
            ENFORCED,
            base(advancedMachineFeatures={"enableNestedVirtualization": True}),
            "nested virtualization",
        ),
        (
            "compute.disableSerialPortAccess",
            ENFORCED,
            metadata("serial-port-enable", "1"),
            "serial-port-enable: 1 are refused",
        ),
        (
            "compute.disableGuestAttributesAccess",
            ENFORCED,
            metadata("enable-guest-attributes", "TRUE"),
            "enable-guest-attributes: TRUE are refused",
        ),
        (
            "compute.requireOsLogin",
            ENFORCED,
            metadata("enable-oslogin", "FALSE"),
            "enable-oslogin: FALSE are refused",
        ),
        ("compute.requireShieldedVm", ENFORCED, {}, "without secure boot"),
        (
            "compute.requireShieldedVm",
            ENFORCED,
            base(shieldedInstanceConfig={"enableSecureBoot": True, "enableVtpm": False}),
            "without secure boot",
        ),
        (
            "compute.restrictNonConfidentialComputing",
            Policy(denied=frozenset({"compute.googleapis.com"})),
            {},
            "only confidential VMs",
        ),
        (
            "gcp.restrictNonCmekServices",
            Policy(denied=frozenset({"compute.googleapis.com"})),
            {},
            "disks of instances need a customer-managed key",
        ),
        (
            "compute.trustedImageProjects",
            Policy(allowed=frozenset({"projects/ubuntu-os-accelerator-images"})),
            OTHER_IMAGE,
            "images of projects/p2",
        ),
        ("compute.trustedImageProjects", DENIES_ALL, IMAGE, "images of projects/p2"),
        (
            "compute.restrictSharedVpcSubnetworks",
            Policy(allowed=frozenset({"projects/host/regions/us-central1/subnetworks/other"})),
            SHARED,
            "projects/host/regions/us-central1/subnetworks/s may not be used",
        ),
        (
            "gcp.resourceLocations",
            Policy(allowed=frozenset({"us-central1-b"})),
            {},
            "only us-central1-b of us-central1 are allowed, and the pool uses any zone",
        ),
        (
            "gcp.resourceLocations",
            Policy(denied=frozenset({"us-central1-b"})),
            {"zone": "us-central1-b"},
            "us-central1-b is not allowed",
        ),
    ],
)
def test_refused_request_is_an_error_with_pool_and_remedy(
    name: str, policy: Policy, provider: dict[str, Any], expected: str
) -> None:
    [finding] = findings(name, policy, launches(provider))
    assert (finding.level, finding.subject) == (Level.ERROR, f"policy {name}")
    assert expected in finding.text
    assert finding.text.endswith(": pools gpus")
    assert finding.remedy


@pytest.mark.parametrize(
    ("name", "policy", "provider", "stack"),
    [
        ("compute.vmExternalIpAccess", DENIES_ALL, {}, {"privateSubnets": "true"}),
        ("compute.vmCanIpForward", DENIES_ALL, {}, {}),
        ("compute.disableSerialPortAccess", ENFORCED, {}, {}),
        ("compute.requireOsLogin", ENFORCED, {}, {}),
        (
            "compute.managed.requireOsLogin",
            ENFORCED,
            metadata("enable-oslogin", "TRUE"),
            {},
        ),
        (
            "compute.requireShieldedVm",
            ENFORCED,
            base(shieldedInstanceConfig={"enableSecureBoot": True}),
            {},
        ),
        (
            "gcp.restrictNonCmekServices",
            Policy(denied=frozenset({"compute.googleapis.com"})),
            {},
            {"kmsKey": KEY},
        ),
        ("compute.trustedImageProjects", Policy(allowed=frozenset({"projects/p2"})), IMAGE, {}),
        (
            "compute.trustedImageProjects",
            Policy(allowed=frozenset({"under:projects/p2"})),
            IMAGE,
            {},
        ),
        (
            "compute.restrictSharedVpcSubnetworks",
            Policy(allowed=frozenset({"projects/host/regions/us-central1/subnetworks/s"})),
            SHARED,
            {},
        ),
        # The constraint does not concern subnetworks of the pool's own project.
        ("compute.restrictSharedVpcSubnetworks", DENIES_ALL, {}, {}),
        (
            "gcp.resourceLocations",
            Policy(allowed=frozenset({"us-central1-b"})),
            {"zone": "us-central1-b"},
            {},
        ),
        ("gcp.resourceLocations", Policy(allowed=frozenset({"in:us-locations"})), {}, {}),
    ],
)
def test_allowed_request_is_no_finding(
    name: str, policy: Policy, provider: dict[str, Any], stack: dict[str, str]
) -> None:
    assert findings(name, policy, launches(provider, **stack)) == []


@pytest.mark.parametrize("name", sorted(LAUNCH_RULES))
def test_policy_without_restrictions_is_no_finding(name: str) -> None:
    assert findings(name, Policy(), launches()) == []


def test_groups_of_projects_are_a_warning() -> None:
    policy = Policy(denied=frozenset({"under:folders/9"}))
    [finding] = findings("compute.trustedImageProjects", policy, launches(IMAGE))
    assert finding.level is Level.WARNING
    assert "cannot tell whether projects/p2 may be used for images" in finding.text
    assert "under:folders/9" in finding.text


def test_pool_whose_request_cannot_be_made_is_a_warning() -> None:
    broken = launches({"zone": "us-central1-a"})[0]._replace(problem="no region", properties={})
    [finding] = findings("compute.requireShieldedVm", ENFORCED, [broken])
    assert finding.level is Level.WARNING
    assert finding.text == "cannot tell whether it refuses launches: no region: pools gpus"


def test_pool_without_a_known_place_has_a_problem() -> None:
    names = Names("vision", "acme-ml", "123456789012", "")
    made = settings()
    cluster = check_cluster(
        yaml.safe_dump(
            {
                "resource_manager": {
                    "default_compute_resource_pool": "gpus",
                    "default_aux_resource_pool": "gpus",
                },
                "resource_pools": [
                    {"pool_name": "gpus", "provider": {"type": "gcp", "max_instances": 1}}
                ],
            }
        )
    )
    [launch] = list_launches(names, cluster, stack_defaults(made))
    assert "provider.region" in launch.problem
