"""The drain of a cluster's instances on Google Cloud, and the list of leftovers."""

from collections.abc import Callable
from typing import Any

import pytest

from infra.drain_clock import Clock
from infra.gcp.draining import drain, find_leftovers, start_tick
from infra.gcp.google_api import GoogleError
from infra.gcp.names import Names
from infra.stack_program import DrainFailed, DrainReport
from tests.unit.infra.google_answers import Answer, Answers

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
DATABASE = "databases/detcloud-vision"
TICK = "services/detcloud-vision-tick"
WAKE = "services/detcloud-vision-wake"
INSTANCES = "aggregated/instances"


class Region:
    """Instances with their statuses. A deleted instance disappears after the next listing."""

    def __init__(self, **statuses: str) -> None:
        self.statuses = {name.replace("_", "-"): status for name, status in statuses.items()}
        self.deleted: list[str] = []
        self.ends = True

    def list_instances(self, body: object) -> dict[str, Any]:
        items = [{"name": name, "status": status} for name, status in self.statuses.items()]
        if self.ends:
            left = {name: status for name, status in self.statuses.items() if status != "STOPPING"}
            self.statuses = left
        return {"items": {"zones/us-central1-a": {"instances": items}, "zones/us-central1-b": {}}}

    def delete(self, name: str) -> Callable[[object], dict[str, Any]]:
        def delete(body: object) -> dict[str, Any]:
            self.deleted.append(name)
            self.statuses[name] = "STOPPING"
            return {}

        return delete

    def answers(self, **more: Answer) -> Answers:
        table: dict[tuple[str, str], Answer] = {
            ("GET", DATABASE): {"deleteProtectionState": "DELETE_PROTECTION_DISABLED"},
            ("PATCH", TICK): {},
            ("PATCH", WAKE): {},
            ("GET", INSTANCES): self.list_instances,
            **{
                ("DELETE", f"zones/us-central1-a/instances/{status}"): self.delete(status)
                for status in self.statuses
            },
        }
        return Answers(table)


class Seconds:
    """A clock that advances only while a caller sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> Clock:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return Clock(lambda: self.now, sleep)


def test_drain_stops_the_tick_before_the_instances() -> None:
    region, seconds, lines = Region(vm_1="RUNNING", vm_2="TERMINATED"), Seconds(), list[str]()
    api = region.answers()
    report = drain(NAMES, api, lines.append, seconds.clock())
    assert report == DrainReport(instances=2, templates=0)
    assert sorted(region.deleted) == ["vm-1", "vm-2"]
    patches = [call for call in api.calls if call[0] == "PATCH"]
    assert [url.rpartition("/")[2] for _, url, _ in patches] == [
        "detcloud-vision-tick?updateMask=scaling",
        "detcloud-vision-wake?updateMask=scaling",
    ]
    for _, _, body in patches:
        assert body == {"scaling": {"scalingMode": "MANUAL", "manualInstanceCount": 0}}
    # The tick stops before the first deletion. The drain waits as long as a tick may launch: 60 s +
    # 15 s.
    methods = [method for method, _, _ in api.calls]
    assert methods.index("PATCH") < methods.index("DELETE")
    assert seconds.now >= 75
    assert lines[-1] == "2 instances ended"


def test_deployment_restarts_a_stopped_tick() -> None:
    api, lines = Answers({("GET", TICK): {"scaling": {}}}), list[str]()
    start_tick(NAMES, api, lines.append)
    assert (api.urls_of("PATCH"), lines) == ([], [])
    stopped = {"scaling": {"scalingMode": "MANUAL", "manualInstanceCount": 0}}
    api = Answers({("GET", TICK): stopped, ("PATCH", TICK): {}})
    start_tick(NAMES, api, lines.append)
    [(_, url, body)] = [call for call in api.calls if call[0] == "PATCH"]
    assert url.endswith("services/detcloud-vision-tick?updateMask=scaling")
    assert body == {"scaling": {"scalingMode": "AUTOMATIC"}}
    assert lines == ["the function detcloud-vision-tick starts again"]


def test_drain_lists_only_instances_with_the_clusters_label() -> None:
    region = Region()
    api = region.answers()
    drain(NAMES, api, lambda line: None, Seconds().clock())
    queries = {url.partition("?")[2] for url in api.urls_of("GET") if INSTANCES in url}
    assert queries == {"filter=labels.detcloud-cluster%3Ddetcloud-vision"}


def test_drain_deletes_a_launch_that_was_under_way() -> None:
    region, seconds = Region(vm_1="RUNNING"), Seconds()
    api = region.answers()
    late = region.delete("vm-9")
    api.table["DELETE", "instances/vm-9"] = late
    listing = region.list_instances

    def list_instances(body: object) -> dict[str, Any]:
        # A tick that was running at the stop launches an instance 30 s later.
        if seconds.now == 30:
            region.statuses["vm-9"] = "PROVISIONING"
        return listing(body)

    api.table["GET", INSTANCES] = list_instances
    assert drain(NAMES, api, lambda line: None, seconds.clock()).instances == 2
    assert region.deleted == ["vm-1", "vm-9"]


def test_protected_database_stops_the_drain_before_deletions() -> None:
    region = Region(vm_1="RUNNING")
    api = region.answers()
    api.table["GET", DATABASE] = {"deleteProtectionState": "DELETE_PROTECTION_ENABLED"}
    with pytest.raises(DrainFailed, match="set detcloud:protect: false and deploy first"):
        drain(NAMES, api, lambda line: None, Seconds().clock())
    assert api.urls_of("PATCH") == []
    assert region.deleted == []


def test_drain_of_a_removed_stack_does_not_wait() -> None:
    seconds = Seconds()
    api = Answers({("GET", INSTANCES): {}})
    assert drain(NAMES, api, lambda line: None, seconds.clock()) == DrainReport(0, 0)
    assert seconds.now == 0


def test_error_names_instances_that_are_not_deleted() -> None:
    region = Region(vm_1="RUNNING")
    region.ends = False
    with pytest.raises(DrainFailed, match="vm-1 did not end in 900 s"):
        drain(NAMES, region.answers(), lambda line: None, Seconds().clock())
    assert region.deleted == ["vm-1"]


def test_drain_reports_refusals_of_google() -> None:
    api = Answers({("GET", DATABASE): GoogleError(403, "permission denied")})
    with pytest.raises(DrainFailed, match="permission denied"):
        drain(NAMES, api, lambda line: None)


def test_leftovers_name_existing_resources() -> None:
    disks = {"items": {"zones/us-central1-a": {"disks": [{"name": "data-1"}]}}}
    api = Answers(
        {
            ("GET", "b/detcloud-vision-objects-123456789012"): {},
            ("GET", "services/detcloud-vision-checkpoint-gc"): {},
            ("GET", "dc-vision-vm@acme-ml.iam.gserviceaccount.com"): {},
            ("GET", "dc-vision-data@acme-ml.iam.gserviceaccount.com"): {},
            ("GET", "dc-vision-pull@acme-ml.iam.gserviceaccount.com"): {},
            ("GET", "roles/detcloud_vision_rows"): {},
            ("GET", "roles/detcloud_vision_instances"): {"deleted": True},
            ("GET", "networks/detcloud-vision-network"): {},
            ("GET", INSTANCES): {},
            ("GET", "aggregated/disks"): disks,
        }
    )
    assert find_leftovers(NAMES, api) == [
        "bucket detcloud-vision-objects-123456789012",
        "service detcloud-vision-checkpoint-gc",
        "service account dc-vision-vm@acme-ml.iam.gserviceaccount.com",
        "service account dc-vision-data@acme-ml.iam.gserviceaccount.com",
        "service account dc-vision-pull@acme-ml.iam.gserviceaccount.com",
        "role detcloud_vision_rows",
        "network detcloud-vision-network",
        "disk projects/acme-ml/zones/us-central1-a/disks/data-1",
    ]
