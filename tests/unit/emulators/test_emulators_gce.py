"""The simulated Compute Engine against Google's documentation."""

from collections.abc import Iterator
from typing import Any

import pytest

from provisioner.clouds.gcp.google_api import GoogleApi
from provisioner.clouds.provider import CloudError, ConfigurationError, NoCapacity
from tests.emulators.gce.machine import Machine
from tests.emulators.gce.project import IMAGE_FAMILIES, Project
from tests.emulators.gce.serving import GceServer, gce_server
from tests.unit.provisioner.gce_account import compute_api

KIND, ZONE = "g2-standard-4", "us-central1-a"
REGION = "p1/regions/us-central1/instances/bulkInsert"


class Harness:
    """A project with an API client and a clock."""

    def __init__(self, server: GceServer, api: GoogleApi) -> None:
        self.server, self.api = server, api
        self.now_ms = 1_700_000_000_000

    @property
    def project(self) -> Project:
        return self.server.project

    def begin(self, **rules: Any) -> None:
        self.now_ms = 1_700_000_000_000
        self.server.project = Project(lambda: self.now_ms, **rules)

    def insert(
        self, *names: str, path: str = REGION, least: int = 1, request_id: str = "", **more: Any
    ) -> Any:
        disk = {"boot": True, "initializeParams": {"sourceImage": IMAGE_FAMILIES[0]}}
        properties = {
            "machineType": KIND,
            "disks": [disk],
            "scheduling": {"onHostMaintenance": "TERMINATE"},
            **more,
        }
        body = {
            "count": str(len(names)),
            "minCount": str(least),
            "perInstanceProperties": {name: {} for name in names},
            "instanceProperties": properties,
            **({"locationPolicy": {"targetShape": "ANY"}} if "regions" in path else {}),
        }
        return self.api.post(path, body, requestId=request_id)

    def statuses(self, wanted: str = "") -> dict[str, str]:
        items = self.api.get("p1/aggregated/instances", filter=wanted)["items"]
        instances = [
            instance for scope in items.values() for instance in scope.get("instances", ())
        ]
        return {item["name"]: item["status"] for item in instances}


@pytest.fixture(scope="module")
def lasting() -> Iterator[Harness]:
    with gce_server(Project(lambda: 0)) as server:
        api = compute_api(server.url)
        yield Harness(server, api)
        api.close()


@pytest.fixture
def harness(lasting: Harness) -> Harness:
    lasting.begin()
    return lasting


SPOT = {
    "provisioningModel": "SPOT",
    "instanceTerminationAction": "DELETE",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
}


def test_bulk_insert_makes_at_least_the_minimum_or_fails(harness: Harness) -> None:
    project = harness.project
    project.capacity = {(KIND, zone, "on-demand"): 1 for zone in project.zones["us-central1"]}
    harness.insert("a", "b", "c", "d")
    assert sorted(harness.statuses()) == ["a", "b", "c"]
    with pytest.raises(NoCapacity, match="insufficientCapacity"):
        harness.insert("e")
    project.late = True
    project.operation_ms, project.capacity[KIND, ZONE, "on-demand"] = 10_000, 2
    operation = harness.insert("e", "f", least=2)
    path = f"p1/regions/us-central1/operations/{operation['name']}"
    # The available part is created and deleted at the end of the operation.
    assert harness.api.get(path)["status"] == "RUNNING"
    assert "e" in harness.statuses()
    harness.now_ms += 10_000
    operation_end = harness.api.get(path)
    assert operation_end["error"]["errors"][0]["code"] == "VM_MIN_COUNT_NOT_REACHED"
    places = operation_end["instancesBulkInsertOperationMetadata"]["perLocationStatus"]
    assert sum(place.get("deletedVmCount", 0) for place in places.values()) == 1
    assert sorted(harness.statuses()) == ["a", "b", "c"]


def test_repeated_request_id_returns_the_same_operation(harness: Harness) -> None:
    first = harness.insert("a", request_id="r1")
    assert harness.insert("b", request_id="r1")["name"] == first["name"]
    assert harness.insert("b", request_id="r2")["name"] != first["name"]
    assert sorted(harness.statuses()) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"machineType": "q9-standard-4"}, "Machine type with name 'q9-standard-4' does not"),
        ({"labels": {"Pool": "a"}}, "'Pool: a' is no label"),
        ({"labels": {"pool": "A"}}, "'pool: A' is no label"),
        ({"scheduling": {}}, "do not support live migration"),
        ({"scheduling": {**SPOT, "automaticRestart": True}}, "Spot VMs cannot be restarted"),
        (
            {"guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]},
            "1 of nvidia-tesla-t4 cannot be attached to g2-standard-4",
        ),
        ({"metadata": {"items": [{"key": "k", "value": "x" * 262_145}]}}, "a value is too large"),
        ({"disks": []}, "there must be one boot disk"),
    ],
)
def test_refuses_impossible_instance_properties(
    harness: Harness, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        harness.insert("a", **given)
    assert not harness.project.machines


def test_machine_type_must_not_be_a_path(harness: Harness) -> None:
    with pytest.raises(CloudError, match="backendError"):
        harness.insert("a", machineType=f"zones/{ZONE}/machineTypes/{KIND}")


def test_filters_match_labels_and_names_and_refuse_the_rest(harness: Harness) -> None:
    harness.insert("a", labels={"pool": "blue", "team": "x"})
    harness.insert("b", labels={"pool": "blue"})
    assert sorted(harness.statuses('(labels.pool = "blue")')) == ["a", "b"]
    assert list(harness.statuses('(labels.pool = "blue") (labels.team = "x")')) == ["a"]
    assert sorted(harness.statuses('(name = "a") OR (name = "b")')) == ["a", "b"]
    with pytest.raises(ConfigurationError, match="Invalid value for field 'filter'"):
        harness.statuses("name ~ a")


def test_preempted_machine_has_notice_shutdown_and_end(harness: Harness) -> None:
    notices: list[tuple[str, int]] = []
    ended: list[str] = []
    project = harness.project
    project.on_notice = lambda machine, seconds: notices.append((machine.name, seconds))
    project.on_terminated = lambda machine: ended.append(machine.name)
    harness.insert("a", scheduling=SPOT)
    more = {**SPOT, "preemptionNoticeDuration": {"seconds": "120"}}
    harness.insert("b", scheduling=more)
    harness.insert("c", scheduling={**SPOT, "instanceTerminationAction": "STOP"})
    for name in "abc":
        project.preempt(name)
    assert notices == [("a", 30), ("b", 150), ("c", 30)]
    assert harness.statuses() == {"a": "STOPPING", "b": "RUNNING", "c": "STOPPING"}
    harness.now_ms += 30_000
    assert harness.statuses() == {"b": "RUNNING", "c": "TERMINATED"}
    harness.now_ms += 90_000
    assert harness.statuses() == {"b": "STOPPING", "c": "TERMINATED"}
    harness.now_ms += 30_000
    assert harness.statuses() == {"c": "TERMINATED"}
    assert ended == ["a", "c", "b"]
    wanted = '(operationType = "compute.instances.preempted")'
    items = harness.api.get("p1/aggregated/operations", filter=wanted)["items"]
    operations = [
        operation for scope in items.values() for operation in scope.get("operations", ())
    ]
    assert [item["targetLink"].rpartition("/")[2] for item in operations] == ["a", "c", "b"]


def test_hooks_are_called_once_per_machine(harness: Harness) -> None:
    calls: list[tuple[str, str]] = []
    harness.begin(staging_ms=1_000, running_ms=2_000, sleepers=1)
    harness.project.on_running = lambda machine: calls.append(_boot(machine))
    items = [{"key": "startup-script", "value": "#!/bin/sh"}]
    harness.insert("a", "b", metadata={"items": items})
    assert harness.statuses() == {"a": "PROVISIONING", "b": "PROVISIONING"}
    harness.now_ms += 1_000
    assert harness.statuses() == {"a": "STAGING", "b": "STAGING"}
    harness.now_ms += 1_000
    # The first machine never boots.
    assert harness.statuses() == {"a": "RUNNING", "b": "RUNNING"}
    assert harness.statuses()
    assert calls == [("b", "#!/bin/sh")]


def _boot(machine: Machine) -> tuple[str, str]:
    return machine.name, machine.metadata["startup-script"]


def test_fresh_machine_is_invisible_for_a_while(harness: Harness) -> None:
    harness.project.visible_ms = 5_000
    harness.insert("a")
    path = f"p1/zones/{ZONE}/instances/a"
    for call in (harness.api.get, harness.api.delete):
        with pytest.raises(ConfigurationError, match="notFound"):
            call(path)
    harness.now_ms += 5_000
    assert harness.api.get(path)["name"] == "a"
    harness.api.delete(path)
    assert harness.statuses() == {}
