"""Launch requests to Compute Engine: properties, labels and names of instances."""

import json
from dataclasses import replace
from typing import Any

import pytest

from provisioner.clouds.gcp.deployment import add_deployment
from provisioner.clouds.gcp.labels import from_labels, label_filter, to_labels
from provisioner.clouds.gcp.launch_request import (
    IMAGE_DEFAULT,
    STARTUP_SCRIPT_BYTES_MAX,
    GceSettings,
    NetworkSettings,
    bulk_request,
    instance_names,
    is_named_by,
    parse_section,
)
from provisioner.clouds.provider import ConfigurationError
from tests.unit.provisioner.gce_account import A2, ON_DEMAND, SPOT, Account, request


def properties(
    *, script: bytes = b"boot", spot: bool = False, instance_type: str = A2, **section: Any
) -> dict[str, Any]:
    """Return the instance properties of a launch with these settings."""
    offering = replace(SPOT if spot else ON_DEMAND, instance_type=instance_type)
    launch = request(offering=offering, **section)
    body = bulk_request(launch, parse_section(launch.section), script).body
    instance_properties: dict[str, Any] = body["instanceProperties"]
    return instance_properties


def test_properties_contain_the_settings() -> None:
    launched = properties(
        boot_disk_size=300,
        boot_disk_type="pd-ssd",
        boot_disk_source_image="projects/p1/global/images/family/ours",
        network_interface={"network": "n", "subnetwork": "s", "external_ip": True},
        network_tags=["ssh"],
        service_account={"email": "a@p1.iam.gserviceaccount.com"},
    )
    assert launched["machineType"] == A2
    (disk,) = launched["disks"]
    assert (disk["boot"], disk["autoDelete"]) == (True, True)
    assert disk["initializeParams"] == {
        "sourceImage": "projects/p1/global/images/family/ours",
        "diskSizeGb": "300",
        "diskType": "pd-ssd",
        "labels": launched["labels"],
    }
    assert launched["networkInterfaces"] == [
        {
            "network": "global/networks/n",
            "subnetwork": "regions/us-central1/subnetworks/s",
            "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
        }
    ]
    assert launched["tags"] == {"items": ["ssh"]}
    (account,) = launched["serviceAccounts"]
    assert account["email"].startswith("a@")
    assert {item["key"]: item["value"] for item in launched["metadata"]["items"]} == {
        "block-project-ssh-keys": "TRUE",
        "startup-script": "boot",
    }


def test_default_properties_lack_address_and_account() -> None:
    launched = properties()
    assert launched["networkInterfaces"] == [{"network": "global/networks/default"}]
    assert launched["disks"][0]["initializeParams"]["sourceImage"] == IMAGE_DEFAULT
    # An A2 accepts the cheapest disk type.
    assert launched["disks"][0]["initializeParams"]["diskType"] == "pd-standard"
    assert "serviceAccounts" not in launched
    assert "guestAccelerators" not in launched


def test_spot_instance_is_deleted_and_no_instance_restarts() -> None:
    assert properties(spot=True)["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    }
    scheduling = properties(spot=True, extended_preemption_notice=True)["scheduling"]
    assert scheduling["preemptionNoticeDuration"] == {"seconds": "120"}
    assert properties(extended_preemption_notice=True)["scheduling"] == {
        "provisioningModel": "STANDARD",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    }


def test_gpu_that_the_default_image_does_not_run_is_not_launched(gce: Account) -> None:
    old = replace(ON_DEMAND, instance_type="n1-standard-8+nvidia-tesla-v100:1")
    with pytest.raises(ConfigurationError, match="cannot boot: its GPU, V100 "):
        gce.cloud().launch(request("one", old))
    image = "projects/p1/global/images/family/ours"
    named = gce.cloud(boot_disk_source_image=image)
    assert len(named.launch(request("two", old, boot_disk_source_image=image))) == 1


def test_n1_with_accelerators_does_not_migrate(gce: Account) -> None:
    t4 = replace(ON_DEMAND, instance_type="n1-standard-8+nvidia-tesla-t4:2")
    plain = replace(ON_DEMAND, instance_type="n1-standard-8")
    gce.cloud().launch(request("one", t4))
    attached = gce.only_machine().properties
    assert attached["guestAccelerators"] == [
        {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 2}
    ]
    assert attached["scheduling"]["onHostMaintenance"] == "TERMINATE"
    (launched,) = gce.cloud().launch(request("two", plain))
    assert gce.machine(launched.id).properties["scheduling"]["onHostMaintenance"] == "MIGRATE"
    wrong = replace(ON_DEMAND, instance_type="g2-standard-4+nvidia-tesla-t4:2")
    with pytest.raises(ConfigurationError, match="only n1 machine types take others"):
        gce.cloud().launch(request("three", wrong))


@pytest.mark.parametrize(
    ("instance_type", "maintenance"),
    [
        ("e2-standard-4", "MIGRATE"),
        ("c3-standard-8", "MIGRATE"),
        # Compute Engine cannot migrate these types, and refuses a launch with MIGRATE.
        ("h4d-standard-192", "TERMINATE"),
        ("c3-highcpu-192-metal", "TERMINATE"),
        # An unknown type may have GPUs.
        ("q9-standard-4", "TERMINATE"),
    ],
)
def test_maintenance_follows_the_machine_type(instance_type: str, maintenance: str) -> None:
    assert properties(instance_type=instance_type)["scheduling"]["onHostMaintenance"] == maintenance


def test_base_config_can_disable_migration() -> None:
    # A Z3 with much local storage cannot migrate, which the type's name does not show.
    chosen: dict[str, Any] = {"scheduling": {"onHostMaintenance": "TERMINATE"}}
    launched = properties(instance_type="z3-highmem-88", base_config=chosen)
    assert launched["scheduling"]["onHostMaintenance"] == "TERMINATE"
    # A machine with GPUs never migrates.
    moved: dict[str, Any] = {"scheduling": {"onHostMaintenance": "MIGRATE"}}
    assert properties(base_config=moved)["scheduling"]["onHostMaintenance"] == "TERMINATE"


def test_settings_take_precedence_over_base_config() -> None:
    launched = properties(
        network_tags=["ssh"],
        network_interface={"network": "n"},
        base_config={
            "minCpuPlatform": "Intel Cascade Lake",
            "disks": [{"type": "SCRATCH"}],
            "labels": {"team": "vision", "managed-by": "me"},
            "networkInterfaces": [{"nicType": "GVNIC", "network": "other"}, {"network": "rdma"}],
            "scheduling": {"automaticRestart": True, "minNodeCpus": 4},
            "tags": {"items": ["more", "ssh"]},
            "metadata": {"items": [{"key": "block-project-ssh-keys", "value": "FALSE"}]},
        },
    )
    assert launched["minCpuPlatform"] == "Intel Cascade Lake"
    assert [disk.get("type", "boot") for disk in launched["disks"]] == ["boot", "SCRATCH"]
    assert all(disk["autoDelete"] for disk in launched["disks"])
    assert (launched["labels"]["team"], launched["labels"]["managed-by"]) == ("vision", "c1")
    assert launched["networkInterfaces"] == [
        {"nicType": "GVNIC", "network": "global/networks/n"},
        {"network": "rdma"},
    ]
    assert launched["scheduling"]["automaticRestart"] is False
    assert launched["scheduling"]["minNodeCpus"] == 4
    assert launched["tags"]["items"] == ["ssh", "more"]
    items = {item["key"]: item["value"] for item in launched["metadata"]["items"]}
    assert items == {"block-project-ssh-keys": "FALSE", "startup-script": "boot"}


def test_subnetwork_alone_determines_the_network() -> None:
    base: dict[str, Any] = {"networkInterfaces": [{"subnetwork": "regions/r/subnetworks/s"}]}
    assert properties(base_config=base)["networkInterfaces"] == base["networkInterfaces"]
    own = properties(network_interface={"subnetwork": "s"})
    assert own["networkInterfaces"] == [{"subnetwork": "regions/us-central1/subnetworks/s"}]
    both: dict[str, Any] = {"networkInterfaces": [{"nicType": "GVNIC"}]}
    assert properties(base_config=both)["networkInterfaces"] == [
        {"nicType": "GVNIC", "network": "global/networks/default"}
    ]


def test_rejects_a_long_boot_script() -> None:
    with pytest.raises(ConfigurationError, match="has 262145 bytes; Compute Engine takes 262144"):
        properties(script=b"x" * (STARTUP_SCRIPT_BYTES_MAX + 1))


def test_bulk_insert_path_is_the_region_or_zone() -> None:
    def path(**section: Any) -> tuple[str, object]:
        launch = request(**section)
        bulk = bulk_request(launch, parse_section(launch.section), b"")
        return bulk.path, bulk.body.get("locationPolicy")

    region = "p1/regions/us-central1/instances/bulkInsert"
    assert path() == (region, {"targetShape": "ANY"})
    zone = "us-central1-b"
    assert path(zone=zone) == (f"p1/zones/{zone}/instances/bulkInsert", None)
    # The zone determines the region.
    assert path(zone=zone, region="")[0] == f"p1/zones/{zone}/instances/bulkInsert"
    together = replace(request(count=4), together=True)
    body = bulk_request(together, parse_section(together.section), b"").body
    assert (body["count"], body["minCount"]) == ("4", "4")
    assert body["locationPolicy"] == {"targetShape": "ANY_SINGLE_ZONE"}


def test_names_contain_digests_of_token_and_request() -> None:
    settings = GceSettings(name_prefix="gpu-")
    launch, resized = request(count=2), request(count=2, boot_disk_size=400)
    first, second = instance_names(launch, settings)
    assert (first[:4], first[-2:], second[-2:]) == ("gpu-", "-0", "-1")
    assert is_named_by(first, launch)
    assert not is_named_by(first, resized)
    # The tokens are equal, the digests of the requests differ.
    assert instance_names(resized, settings)[0].split("-")[1] == first.split("-")[1]
    # A prefix of 30 characters, two digests with dashes, and a number of four digits.
    assert len(f"{'p' * 30}{first.removeprefix('gpu')}") + 3 <= 63


@pytest.mark.parametrize(
    "text", ["c1", "", "A Pool_1.x", "pöol", "x" * 63, "A" * 63, "_", "detcloud/ü"]
)
def test_tags_survive_the_label_encoding(text: str) -> None:
    tags = {"detcloud-cluster": "c1", "detcloud-pool": text, "detcloud-intent": "a-1"}
    labels = to_labels(tags)
    assert from_labels(labels) == tags
    for key, value in labels.items():
        assert len(key) <= 63
        assert len(value) <= 63
        assert set(value) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")


def test_different_tags_have_different_labels() -> None:
    texts = ["a_b", "a-b", "A-b", "a_5fb", "a.b", "ab"]
    assert len({tuple(to_labels({"detcloud-pool": text}).items()) for text in texts}) == len(texts)
    # Three bytes for each of 63 capitals: 189 characters, in labels of 63.
    assert list(to_labels({"detcloud-pool": "A" * 63})) == [
        "detcloud-pool",
        "detcloud-pool-1",
        "detcloud-pool-2",
    ]


def test_lists_a_pool_with_an_escaped_name(gce: Account) -> None:
    long = "A" * 63
    gce.cloud().launch(replace(request("one"), pool=long))
    gce.cloud().launch(replace(request("two"), pool=long[:-1]))
    (listed,) = gce.cloud().list_instances("c1", long)
    assert listed.tags["detcloud-pool"] == long
    assert label_filter({"a": "b", "c": "d"}) == '(labels.a = "b") (labels.c = "d")'


def test_list_excludes_pools_with_longer_labels(gce: Account) -> None:
    # 21 capitals are 63 characters, a whole label; 22 capitals need a second label.
    short, longer = "A" * 21, "A" * 22
    gce.cloud().launch(replace(request("one"), pool=short))
    gce.cloud().launch(replace(request("two"), pool=longer))
    cloud = gce.cloud()
    for pool in (short, longer):
        assert [
            instance.tags["detcloud-pool"] for instance in cloud.list_instances("c1", pool)
        ] == [pool]
    assert len(cloud.list_instances("c1")) == 2


def test_deployment_completes_the_settings() -> None:
    deployed = {
        "network": "projects/p1/global/networks/detcloud",
        "subnetworks": {"us-central1": "projects/p1/regions/us-central1/subnetworks/detcloud"},
        "tags": ["detcloud-agent"],
        "public_ip": True,
        "service_account": "agent@p1.iam.gserviceaccount.com",
        "labels": {"team": "vision"},
        "kms_key": "projects/p1/locations/us-central1/keyRings/r/cryptoKeys/k",
        "name_prefix": "detcloud-vision--vm",
    }
    completed = add_deployment(GceSettings(network_tags=("ssh",)), deployed, "p1", "us-central1")
    assert (completed.project, completed.place) == ("p1", "us-central1")
    assert completed.network_interface == NetworkSettings(
        deployed["network"],  # type: ignore[arg-type]
        "projects/p1/regions/us-central1/subnetworks/detcloud",
        True,
    )
    assert completed.network_tags == ("detcloud-agent", "ssh")
    assert completed.service_account.email == "agent@p1.iam.gserviceaccount.com"
    assert instance_names(request(), completed)[0].startswith("detcloud-vision--vm-")
    body = bulk_request(request(), completed, b"").body["instanceProperties"]
    assert body["labels"]["team"] == "vision"
    assert body["disks"][0]["diskEncryptionKey"] == {"kmsKeyName": deployed["kms_key"]}
    # A pool with its own network gets no tags of the deployment; a zone implies the region.
    own = GceSettings(project="p2", zone="us-east1-b", network_interface=NetworkSettings("n"))
    completed = add_deployment(own, deployed, "p1", "us-central1")
    assert (completed.project, completed.place, completed.network_tags) == ("p2", "us-east1", ())
    assert completed.network_interface == NetworkSettings("n")


def test_invalid_settings_name_the_field() -> None:
    with pytest.raises(ConfigurationError, match=r"provider\.network_interface\.external_ip: "):
        parse_section(json.dumps({"network_interface": {"external_ip": "maybe"}}))
    with pytest.raises(ConfigurationError, match=r"provider\.region: is needed"):
        bulk_request(replace(request(), section="{}"), GceSettings(project="p1"), b"")
