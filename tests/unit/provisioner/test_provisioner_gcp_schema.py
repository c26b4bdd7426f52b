"""Requests to Compute Engine and responses of the simulator, parsed as Google's types."""

import json
from dataclasses import replace
from typing import Any

import pytest
from google.cloud.compute_v1 import types
from google.protobuf.json_format import ParseError

from provisioner.clouds.gcp.insert_request import insert_body
from provisioner.clouds.gcp.launch_request import bulk_request, instance_properties, parse_section
from tests.unit.provisioner.gce_account import ON_DEMAND, SPOT, open_account, request

SECTIONS: list[dict[str, Any]] = [
    {},
    {"zone": "us-central1-b"},
    {
        "boot_disk_size": 300,
        "boot_disk_type": "pd-ssd",
        "boot_disk_source_image": "projects/p1/global/images/family/ours",
        "network_interface": {"network": "n", "subnetwork": "s", "external_ip": True},
        "network_tags": ["ssh"],
        "service_account": {"email": "a@p1.iam.gserviceaccount.com"},
    },
    {"extended_preemption_notice": True},
    {
        "instance_type": {
            "machine_type": "n1-standard-8",
            "gpu_type": "nvidia-tesla-t4",
            "gpu_num": 2,
        }
    },
]


def parse(kind: Any, document: object) -> Any:
    """Parse a JSON document as a Google message. Raise ParseError for an unknown field."""
    return kind.from_json(json.dumps(document), ignore_unknown_fields=False)


@pytest.mark.parametrize("offering", [SPOT, ON_DEMAND], ids=["spot", "on demand"])
@pytest.mark.parametrize("section", SECTIONS, ids=lambda item: ",".join(item) or "none")
@pytest.mark.parametrize("together", [False, True])
def test_launch_has_only_documented_fields(
    section: dict[str, Any], offering: Any, together: bool
) -> None:
    launch = replace(request(count=3, offering=offering, **section), together=together)
    sent = bulk_request(launch, parse_section(launch.section), b"boot").body
    message = parse(types.BulkInsertInstanceResource, sent)
    assert message.count == 3
    properties = message.instance_properties
    assert properties.machine_type
    assert properties.scheduling.provisioning_model == ("SPOT" if offering is SPOT else "STANDARD")
    assert properties.metadata.items[-1].value == "boot"
    assert all(disk.auto_delete for disk in properties.disks)


@pytest.mark.parametrize("offering", [SPOT, ON_DEMAND], ids=["spot", "on demand"])
@pytest.mark.parametrize("section", SECTIONS, ids=lambda item: ",".join(item) or "none")
def test_single_insert_has_only_documented_fields(section: dict[str, Any], offering: Any) -> None:
    launch = request(count=3, offering=offering, **section)
    settings = parse_section(launch.section)
    properties = instance_properties(launch, settings, b"boot")
    message = parse(types.Instance, insert_body("vm-1", "us-central1-b", settings, properties))
    place = "projects/p1/zones/us-central1-b"
    assert message.name == "vm-1"
    assert message.machine_type.startswith(f"{place}/machineTypes/")
    [disk] = message.disks
    assert disk.initialize_params.disk_type.startswith(f"{place}/diskTypes/pd-")
    assert message.labels == properties["labels"]


def test_single_insert_has_paths_where_a_bulk_insert_has_names() -> None:
    base = {
        "resourceManagerTags": {"tagKeys/1": "tagValues/2"},
        "resourcePolicies": ["nightly", "projects/p2/regions/us-central1/resourcePolicies/other"],
        "guestAccelerators": [],
    }
    t4 = {"machine_type": "n1-standard-8", "gpu_type": "nvidia-tesla-t4", "gpu_num": 2}
    offering = replace(ON_DEMAND, instance_type="n1-standard-8+nvidia-tesla-t4:2")
    launch = request(offering=offering, base_config=base, instance_type=t4)
    settings = parse_section(launch.section)
    body = insert_body(
        "vm-1", "us-central1-b", settings, instance_properties(launch, settings, b"boot")
    )
    parse(types.Instance, body)
    assert body["guestAccelerators"] == [
        {
            "acceleratorType": "projects/p1/zones/us-central1-b/acceleratorTypes/nvidia-tesla-t4",
            "acceleratorCount": 2,
        }
    ]
    assert body["resourcePolicies"] == [
        "projects/p1/regions/us-central1/resourcePolicies/nightly",
        "projects/p2/regions/us-central1/resourcePolicies/other",
    ]
    assert body["params"] == {"resourceManagerTags": {"tagKeys/1": "tagValues/2"}}
    assert "resourceManagerTags" not in body


def test_google_types_reject_unknown_fields() -> None:
    with pytest.raises(ParseError, match="instanceSlots"):
        parse(types.BulkInsertInstanceResource, {"count": "1", "instanceSlots": 4})


def test_simulator_responds_in_googles_types() -> None:
    with open_account() as account:
        account.reset()
        cloud = account.cloud(SPOT)
        launched = account.launch(cloud, request(offering=SPOT, count=2))
        api = account.api
        [instances] = api.read_pages("p1/aggregated/instances")
        message = parse(types.InstanceAggregatedList, instances)
        assert sum(len(item.instances) for item in message.items.values()) == 2
        cloud.terminate([launched[0].id])
        [operations] = api.read_pages("p1/aggregated/operations")
        kinds = {
            operation.operation_type
            for item in parse(types.OperationAggregatedList, operations).items.values()
            for operation in item.operations
        }
        assert {"bulkInsert", "delete"} <= kinds
