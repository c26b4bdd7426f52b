"""A comparison of the permissions that the provider needs with the stack's grants."""

from dataclasses import replace

import pytest

from infra.gcp.names import Names
from infra.gcp.policies import list_launch_grants
from provisioner.clouds.gcp.deployment import add_deployment
from provisioner.clouds.provider import LaunchUnderWay
from tests.emulators.google_permissions import PermissionRecord, Use
from tests.unit.provisioner.gce_account import SPOT, Account, request

REGION, ZONE = "us-central1", "us-central1-b"
NAMES = Names("vision", "p1", "123456789012", REGION)
# The settings of a deployed stack.
DEPLOYED = {
    "network": NAMES.network_path,
    "subnetworks": {REGION: NAMES.subnetwork_path(REGION)},
    "tags": [NAMES.cluster],
    "public_ip": True,
    "service_account": NAMES.email("instance"),
    "labels": {},
    "kms_key": "",
    "name_prefix": NAMES.instance_prefix,
}
HOUR_MS = 3_600_000


@pytest.fixture
def uses(gce: Account) -> set[Use]:
    """Make every call of the provider; return the permissions that the calls used.

    The calls include a launch in the region and a launch in a zone.
    """
    record = PermissionRecord("", {})
    project = gce.project
    project.on_call = lambda action, names, body: record.note_call("tick", action, names, body)
    project.operation_ms = 5_000
    cloud = gce.cloud(complete_settings=lambda found: add_deployment(found, DEPLOYED, "p1", REGION))
    for launch in (request("one"), request("two", replace(SPOT, zone=ZONE))):
        with pytest.raises(LaunchUnderWay):
            cloud.launch(launch)
        gce.now_ms += 5_000
        assert cloud.launch(launch)
    single = replace(request("three"), singly=True)
    with pytest.raises(LaunchUnderWay):
        cloud.launch(single)
    gce.now_ms += 5_000
    assert cloud.launch(single)
    # Operations are read for an old request and for a preempted instance.
    gce.now_ms += HOUR_MS
    (kept,) = cloud.launch(request("one"))
    (spot,) = (machine.name for machine in project.machines.values() if machine.is_spot)
    project.preempt(spot)
    assert any(instance.notice_ms for instance in cloud.list_instances("c1"))
    cloud.boot_log(kept.id)
    # A new provider object must read the instance's zone.
    gce.cloud().terminate([kept.id])
    return record.uses


def test_calls_need_exactly_the_granted_permissions(uses: set[Use]) -> None:
    needed = {(use.kind, use.place, use.permission) for use in uses}
    granted = {
        (grant.place.kind, grant.place.name, permission)
        for grant in list_launch_grants("tick", NAMES, (REGION,))
        for permission in grant.permissions
    }
    assert needed == granted


def test_named_resources_belong_to_the_cluster(uses: set[Use]) -> None:
    named = {use.resource for use in uses if use.resource}
    assert {name.partition("/")[0] for name in named} == {"instances", "disks"}
    assert all(name.partition("/")[2].startswith(f"{NAMES.instance_prefix}-") for name in named)
