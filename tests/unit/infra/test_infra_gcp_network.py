"""The network and the alarms of a team's stack on Google Cloud."""

import json
from pathlib import Path

from infra.gcp.verification import ALARMS
from lambdas.gcp.function_names import FUNCTIONS
from tests.unit.infra.gcp_graphs import SPEECH, GcpGraph, environments, gcp_graph, kinds


def test_firewall_admits_only_instances_of_the_cluster(gcp_vision: GcpGraph) -> None:
    [within] = gcp_vision.inputs_of("compute/firewall").values()
    assert (within["sourceTags"], within["targetTags"]) == (["detcloud-vision"],) * 2
    assert "sourceRanges" not in within
    assert gcp_vision.inputs_of("compute/routerNat") == {}


def test_subnetworks_are_disjoint_with_private_google_access(gcp_vision: GcpGraph) -> None:
    subnetworks = gcp_vision.inputs_of("compute/subnetwork")
    assert {name: subnetwork["ipCidrRange"] for name, subnetwork in subnetworks.items()} == {
        "us-central1": "10.64.0.0/16",
        "europe-west4": "10.65.0.0/16",
    }
    assert all(subnetwork["privateIpGoogleAccess"] for subnetwork in subnetworks.values())


def test_private_subnetworks_use_cloud_nat(gcp_bank: GcpGraph) -> None:
    [way_out] = gcp_bank.inputs_of("compute/routerNat").values()
    assert way_out["natIpAllocateOption"] == "AUTO_ONLY"
    network = json.loads(environments(gcp_bank)["tick"]["DETCLOUD_NETWORK"])
    assert network["public_ip"] is False


def test_existing_network_is_used_unchanged(gcp_speech: GcpGraph) -> None:
    assert not any(
        kind.startswith("compute/") for kind in kinds(gcp_speech) - {"compute/subnetworkIAMMember"}
    )
    network = json.loads(environments(gcp_speech)["tick"]["DETCLOUD_NETWORK"])
    assert network["network"] == "shared"
    assert (network["subnetworks"], network["tags"]) == ({"us-west1": "west"}, ["gpus"])
    assert "public_ip" not in network
    [use] = gcp_speech.inputs_of("compute/subnetworkIAMMember").values()
    assert (use["subnetwork"], use["region"]) == ("west", "us-west1")


def test_each_alarm_has_a_single_condition(gcp_vision: GcpGraph, gcp_speech: GcpGraph) -> None:
    alarms = gcp_vision.inputs_of("monitoring/alertPolicy")
    assert set(alarms) == set(ALARMS)
    for alarm in alarms.values():
        assert alarm["notificationChannels"] == ["NotificationChannel.alarms.name"]
    conditions = {
        name: item["conditions"][0] for name, item in alarms.items() if item["conditions"]
    }
    assert sum(len(item["conditions"]) for item in alarms.values()) == 2
    errors = conditions["errors"]["conditionMatchedLog"]["filter"]
    # The quotes exclude teams with a longer name.
    assert all(
        f'"detcloud-vision-{function.replace("_", "-")}"' in errors for function in FUNCTIONS
    )
    assert alarms["errors"]["alertStrategy"]["notificationRateLimit"] == {"period": "3600s"}
    assert 'resource.labels.job_id=("detcloud-vision-minute")' in errors
    minute = conditions["minute"]["conditionThreshold"]
    assert 'resource.labels.service_name="detcloud-vision-tick"' in minute["filter"]
    # Fewer than one successful call in five minutes, for another five minutes. No data counts as 0.
    assert (minute["comparison"], minute["thresholdValue"]) == ("COMPARISON_LT", 1)
    assert minute["aggregations"][0]["alignmentPeriod"] == minute["duration"] == "300s"
    assert minute["evaluationMissingData"] == "EVALUATION_MISSING_DATA_ACTIVE"
    for alarm in gcp_speech.inputs_of("monitoring/alertPolicy").values():
        assert alarm["notificationChannels"] == []


def test_log_alarm_forwards_the_alarms_of_the_tick(gcp_vision: GcpGraph) -> None:
    [condition] = gcp_vision.inputs_of("monitoring/alertPolicy")["errors"]["conditions"]
    matched = condition["conditionMatchedLog"]
    assert "jsonPayload.alarm:*" in matched["filter"]
    # Each raise of an alarm has its own time, so that the limit of an hour delays none.
    assert {"alarm", "change", "pool", "raised_ms"} <= set(matched["labelExtractors"])
    assert matched["labelExtractors"]["alarm"] == "EXTRACT(jsonPayload.alarm)"


def test_alarms_link_to_the_runbook(gcp_vision: GcpGraph, gcp_speech: GcpGraph) -> None:
    for name, alarm in gcp_vision.inputs_of("monitoring/alertPolicy").items():
        assert f"detcloud alarm describe {name}" in alarm["documentation"]["content"]
        assert "links" not in alarm["documentation"]
    for name, alarm in gcp_speech.inputs_of("monitoring/alertPolicy").items():
        [link] = alarm["documentation"]["links"]
        assert link["url"] == f"https://wiki.example.com/{name}.md"


def test_budget_counts_resources_with_the_clusters_label(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph
) -> None:
    [budget] = gcp_vision.inputs_of("billing/budget").values()
    assert budget["billingAccount"] == "01AB23-45CD67-89EF01"
    assert budget["amount"] == {"specifiedAmount": {"units": "100"}}
    assert budget["budgetFilter"]["labels"] == {"detcloud-cluster": "detcloud-vision"}
    assert budget["budgetFilter"]["projects"] == ["projects/123456789012"]
    assert gcp_speech.inputs_of("billing/budget") == {}


def test_tick_uses_a_host_projects_subnetwork_by_a_predefined_role(tmp_path: Path) -> None:
    host = "projects/net-host/regions/us-west1/subnetworks/gpus"
    network = json.dumps({"network": "shared", "subnetworks": {"us-west1": host}})
    graph = gcp_graph("speech", {**SPEECH, "detcloud:network": network}, tmp_path / "stack")
    [given] = graph.inputs_of("compute/subnetworkIAMMember").values()
    assert (given["project"], given["subnetwork"]) == ("net-host", host)
    # A custom role is valid only in its own project.
    assert given["role"] == "roles/compute.networkUser"
    assert given["member"] == "Account.tick.member"
