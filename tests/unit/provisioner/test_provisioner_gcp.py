"""The Compute Engine provider on the simulated Compute Engine. The folder tests/conformance has the
tests for all clouds.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from control_plane.fleet.records import ErrorKind
from provisioner.clouds.gcp.deployment import add_deployment
from provisioner.clouds.gcp.launch_request import request_id
from provisioner.clouds.gcp.provider import GceClouds
from provisioner.clouds.provider import (
    CloudError,
    ConfigurationError,
    LaunchUnderWay,
    NoCapacity,
    NotAllowed,
    OutcomeUnknown,
    QuotaExceeded,
    ThrottlingError,
    TokenReused,
)
from provisioner.model import InstanceStatus, ProvisionerSettings
from tests.emulators.gce.machine import GceError
from tests.unit.provisioner.gce_account import (
    A2,
    BEGAN_MS,
    ON_DEMAND,
    SPOT,
    Account,
    request,
)

A, B, C = "us-central1-a", "us-central1-b", "us-central1-c"
HOUR_MS = 3_600_000
NAME = re.compile(r"detcloud-[0-9a-f]{12}-[0-9a-f]{6}-\d+")


def test_launch_is_one_call_and_one_operation_read(gce: Account) -> None:
    instances = gce.cloud().launch(request(count=3))
    assert all(NAME.fullmatch(instance.id) for instance in instances)
    assert sorted(instance.id for instance in instances) == sorted(gce.project.machines)
    assert {(instance.status, instance.launched_ms) for instance in instances} == {
        (InstanceStatus.STARTING, BEGAN_MS)
    }
    # The simulated operation ends at once, so only the operations of the group are read.
    assert gce.project.calls == ["bulkInsert", "listOperations"]


def test_environment_replaces_the_endpoint(gce: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_COMPUTE_ENDPOINT", gce.url)
    clouds = GceClouds(
        lambda intent_row: intent_row.id.encode(),
        lambda: gce.now_ms,
        complete_settings=lambda section: add_deployment(section, {}, "p1", "us-central1"),
    )
    settings = ProvisionerSettings("gcp")
    cloud = clouds.cloud(settings)
    assert clouds.cloud(settings) is cloud
    (launched,) = cloud.launch(replace(request("one"), section="{}"))
    assert gce.machine(launched.id).metadata["startup-script"] == "one"
    assert [instance.id for instance in cloud.list_instances("c1", "blue")] == [launched.id]


def test_launch_does_not_wait_for_the_operation(gce: Account) -> None:
    gce.project.operation_ms = 20_000
    cloud = gce.cloud()
    with pytest.raises(LaunchUnderWay, match=r"operation-\d+ makes 2 of a2-highgpu-4g"):
        cloud.launch(request(count=2))
    # The instances are listed before the operation is over.
    assert len(cloud.list_instances("c1")) == 2
    gce.now_ms += 19_999
    with pytest.raises(LaunchUnderWay):
        gce.cloud().launch(request(count=2))
    gce.now_ms += 1
    assert len(gce.cloud().launch(request(count=2))) == 2
    assert len(gce.project.machines) == 2


def test_launch_is_open_until_all_instances_are_listed(gce: Account) -> None:
    gce.cloud().launch(request(count=2))
    hidden = gce.project.operations.pop()
    assert hidden.kind == "insert"
    # The bulk insert reports two created instances.
    with pytest.raises(LaunchUnderWay):
        gce.cloud().launch(request(count=2))
    gce.project.operations.append(hidden)
    assert len(gce.cloud().launch(request(count=2))) == 2


def test_bulk_insert_limits_the_launch(gce: Account) -> None:
    # The next pass launches the rest. A gang must fit into a single bulk insert.
    assert len(gce.launch(gce.cloud(), request(count=1_200))) == 1_000
    gang = replace(request("gang", count=1_200), together=True)
    with pytest.raises(ConfigurationError, match="1200 instances together"):
        gce.cloud().launch(gang)


def test_offering_without_zone_uses_all_zones(gce: Account) -> None:
    gce.project.capacity = {(A2, A, "on-demand"): 1, (A2, B, "on-demand"): 0}
    instances = gce.cloud().launch(request(count=3))
    assert sorted(instance.zone for instance in instances) == [A, C, C]
    assert sorted(gce.machine(instance.id).zone for instance in instances) == [A, C, C]


def test_partial_capacity_is_launched(gce: Account) -> None:
    gce.project.capacity = {(A2, zone, "on-demand"): 0 for zone in (B, C)} | {
        (A2, A, "on-demand"): 2
    }
    gce.project.operation_ms = 10_000
    instances = gce.launch(gce.cloud(), request(count=5))
    assert [instance.zone for instance in instances] == [A, A]


def test_offering_with_zone_uses_only_that_zone(gce: Account) -> None:
    gce.project.capacity = {(A2, B, "spot"): 1}
    instances = gce.cloud().launch(request(count=3, offering=replace(SPOT, zone=B)))
    assert [gce.machine(instance.id).zone for instance in instances] == [B]
    assert gce.only_machine().is_spot
    elsewhere = request("two", replace(SPOT, zone="us-east1-b"))
    with pytest.raises(ConfigurationError, match="zone 'us-east1-b' is not in region us-central1"):
        gce.cloud().launch(elsewhere)


@pytest.mark.parametrize("late", [False, True])
def test_gang_is_launched_completely_in_a_single_zone(gce: Account, late: bool) -> None:
    gce.project.late = late
    gce.project.capacity = {(A2, zone, "on-demand"): 2 for zone in (A, B, C)}
    gang = replace(request(count=3), together=True)
    with pytest.raises(NoCapacity):
        gce.cloud().launch(gang)
    assert not gce.cloud().list_instances("c1")
    gce.project.capacity[A2, B, "on-demand"] = 3
    instances = gce.cloud().launch(replace(gang, token="another", id="two"))
    assert [instance.zone for instance in instances] == [B, B, B]
    # A further launch for the gang is in the given zone.
    gce.project.capacity.clear()
    more = replace(request("three"), together=True, zone=C)
    assert [instance.zone for instance in gce.cloud().launch(more)] == [C]


REFUSALS: list[tuple[str, type[CloudError], str]] = [
    ("stock-out", NoCapacity, "insufficientCapacity: There is not enough capacity"),
    (
        "late stock-out",
        NoCapacity,
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: The zone 'us-central1-a' does not have enough",
    ),
    ("quota", QuotaExceeded, r"quotaExceeded: .*; it counts against PREEMPTIBLE_NVIDIA_A100_GPUS"),
    ("late quota", QuotaExceeded, r"QUOTA_EXCEEDED: .*quotas\?project=p1"),
    ("image", ConfigurationError, "notFound: The resource 'projects/p1/global/images/x'"),
    ("type", ConfigurationError, "invalid: .*Machine type with name 'a2-highgpu-3g' does not"),
    ("zones", ConfigurationError, "invalid: .*does not exist in zone"),
    ("rate", ThrottlingError, "rateLimitExceeded: Too many bulk operations"),
]


@pytest.mark.parametrize(("why", "cls", "text"), REFUSALS)
def test_failed_launch_raises_the_error_of_the_operation(
    gce: Account, why: str, cls: type[CloudError], text: str
) -> None:
    offering, section = SPOT, dict[str, Any]()
    gce.project.late = why.startswith("late ")
    match why.removeprefix("late "):
        case "stock-out":
            gce.project.capacity = {(A2, zone, "spot"): 0 for zone in (A, B, C)}
        case "quota":
            # An a2-highgpu-4g has 4 GPUs.
            gce.project.quota = {"spot": 3}
        case "image":
            section = {"boot_disk_source_image": "projects/p1/global/images/x"}
        case "type":
            offering = replace(SPOT, instance_type="a2-highgpu-3g")
        case "rate":
            gce.project.bulk_operations_max = 0
        case _:
            gce.project.not_offered = {(A2, zone) for zone in (A, B, C)}
    with pytest.raises(cls, match=text) as caught:
        gce.cloud().launch(request(offering=offering, **section))
    assert type(caught.value) is cls
    assert not gce.project.machines


FAULTS: list[tuple[int, str, type[CloudError]]] = [
    (403, "rateLimitExceeded", ThrottlingError),
    (403, "forbidden", NotAllowed),
    (503, "backendError", OutcomeUnknown),
]


@pytest.mark.parametrize(("status", "reason", "cls"), FAULTS)
def test_methods_raise_specific_errors_without_retry(
    gce: Account, status: int, reason: str, cls: type[CloudError]
) -> None:
    cloud = gce.cloud()
    (instance,) = cloud.launch(request())
    methods: list[tuple[str, Callable[[], object]]] = [
        ("bulkInsert", lambda: cloud.launch(request("two"))),
        ("listInstances", lambda: cloud.list_instances("c1")),
        ("deleteInstance", lambda: cloud.terminate([instance.id])),
        ("getSerialPortOutput", lambda: cloud.boot_log(instance.id)),
    ]
    for action, method in methods:
        before = gce.call_count(action)
        gce.project.fail(action, status, reason)
        with pytest.raises(cls) as caught:
            method()
        assert type(caught.value) is cls
        assert caught.value.__cause__ is None
        assert gce.call_count(action) == before + 1
    assert len(gce.project.machines) == 1


def test_lost_response_is_repeated_by_token(gce: Account) -> None:
    cloud = gce.cloud()
    gce.project.lose("bulkInsert")
    with pytest.raises(OutcomeUnknown, match="did not answer"):
        cloud.launch(request(count=2))
    instances = cloud.launch(request(count=2))
    assert sorted(instance.id for instance in instances) == sorted(gce.project.machines)
    assert len(instances) == 2


def test_lost_request_is_executed_on_repetition(gce: Account) -> None:
    gce.project.lose("bulkInsert", carried_out=False)
    with pytest.raises(OutcomeUnknown):
        gce.cloud().launch(request())
    assert len(gce.cloud().launch(request())) == 1


def test_unreadable_operation_is_outcome_unknown(gce: Account) -> None:
    gce.project.fail("listOperations", 403, "rateLimitExceeded")
    # Any error leaves the outcome open, because the launch was requested.
    with pytest.raises(OutcomeUnknown, match="rateLimitExceeded"):
        gce.cloud().launch(request())
    assert len(gce.cloud().launch(request())) == 1
    assert len(gce.project.machines) == 1


def test_token_with_a_changed_request_is_refused(gce: Account) -> None:
    cloud = gce.cloud()
    cloud.launch(request())
    # A request id is specific to a zone or region; old requests are searched everywhere.
    gce.now_ms += HOUR_MS
    others = [
        request(count=2),
        request(offering=SPOT),
        request(offering=replace(ON_DEMAND, zone=A)),
        request(boot_disk_size=400),
        request(name_prefix="other"),
        replace(request(), id="another"),
        replace(request(), pool="green"),
        replace(request(), together=True),
    ]
    for other in others:
        with pytest.raises(TokenReused, match="already used, for detcloud-"):
            cloud.launch(other)
    # The price is not part of the request, because prices change between attempts.
    dearer = replace(ON_DEMAND, price_per_hour=9.9)
    assert len(cloud.launch(request(offering=dearer))) == 1
    assert len(gce.project.machines) == 1


def test_forgotten_request_is_found_by_its_operation(gce: Account) -> None:
    (first,) = gce.cloud().launch(request())
    gce.cloud().terminate([first.id])
    gce.project.forget_requests()
    gce.now_ms += HOUR_MS
    assert [instance.id for instance in gce.cloud().launch(request())] == [first.id]
    assert gce.call_count("bulkInsert") == 1


def test_request_forgotten_early_is_found_after_a_minute(gce: Account) -> None:
    (first,) = gce.cloud().launch(request())
    gce.project.forget_requests()
    # The instance exists, so this is no configuration error.
    gce.now_ms += 59_999
    with pytest.raises(OutcomeUnknown, match="already exists"):
        gce.cloud().launch(request())
    gce.now_ms += 1
    assert [instance.id for instance in gce.cloud().launch(request())] == [first.id]
    assert list(gce.project.machines) == [first.id]


def test_request_id_is_a_uuid_of_the_token() -> None:
    assert re.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", (request_id("a"))
    )
    assert request_id("a") != request_id("b")


def test_list_reads_all_pages(gce: Account) -> None:
    gce.project.page_size_max = 2
    launched = gce.cloud().launch(request(count=5))
    listed = gce.cloud().list_instances("c1")
    assert sorted(instance.id for instance in listed) == sorted(item.id for item in launched)
    # 5 instances in pages of 2.
    assert gce.call_count("listInstances") == 3


def test_list_is_limited_to_the_pools_region(gce: Account) -> None:
    gce.cloud().launch(request("one"))
    other = gce.cloud(region="europe-west4")
    (launched,) = other.launch(request("two", region="europe-west4"))
    assert [instance.zone for instance in gce.cloud().list_instances("c1")] == [A]
    assert [instance.id for instance in other.list_instances("c1")] == [launched.id]


def test_list_with_an_unreachable_zone_raises(gce: Account) -> None:
    cloud = gce.cloud()
    (launched,) = cloud.launch(request())
    gce.project.unreachable = {launched.zone}
    with pytest.raises(OutcomeUnknown, match=f"does not reach {launched.zone}"):
        cloud.list_instances("c1")
    # Unreachable zones of other regions do not matter.
    gce.project.unreachable = {"europe-west4-a"}
    assert [instance.id for instance in cloud.list_instances("c1")] == [launched.id]


@pytest.mark.parametrize("name", ["zones/us-central1-a", "projects/p1/zones/us-central1-a"])
def test_unreachable_zone_of_a_page_raises(gce: Account, name: str) -> None:
    gce.project.replace_answer("listInstances", {"unreachables": [name]})
    with pytest.raises(OutcomeUnknown, match="does not reach us-central1-a"):
        gce.cloud().list_instances("c1")


def test_lists_an_instance_in_each_state(gce: Account) -> None:
    gce.reset(visible_ms=5_000, staging_ms=7_000, running_ms=10_000, ending_ms=20_000)
    cloud = gce.cloud()
    (launched,) = cloud.launch(request())
    statuses = []
    for second in range(0, 45, 5):
        gce.now_ms = BEGAN_MS + second * 1000
        if second == 15:
            cloud.terminate([launched.id])
        statuses.append([str(instance.status) for instance in cloud.list_instances("c1")])
    # Hidden until 5 s, running from 10 s, terminated at 15 s, gone 20 s later.
    assert statuses == [[], ["starting"], ["running"], *[["stopping"]] * 4, [], []]


def test_preempted_instance_has_a_notice_then_is_terminated(gce: Account) -> None:
    cloud = gce.cloud()
    spot, other = cloud.launch(request(offering=SPOT, count=2))
    assert len(cloud.list_instances("c1", "blue")) == 2
    gce.project.preempt(spot.id)
    listed = {instance.id: instance for instance in cloud.list_instances("c1", "blue")}
    assert listed[spot.id].status is InstanceStatus.STOPPING
    assert listed[spot.id].notice_ms == BEGAN_MS + 30_000
    end = listed[spot.id].end
    assert end is not None
    assert (end.text, end.taken_back) == ("the spot instance was preempted", True)
    assert (listed[other.id].end, listed[other.id].notice_ms) == (None, None)
    gce.now_ms += 30_000
    listed = {instance.id: instance for instance in cloud.list_instances("c1", "blue")}
    assert listed[spot.id].status is InstanceStatus.TERMINATED
    assert listed[spot.id].end == end
    # A new provider object has never listed the preempted instance.
    assert [instance.id for instance in gce.cloud().list_instances("c1", "blue")] == [other.id]


def test_own_shutdown_is_listed_as_stopped(gce: Account) -> None:
    cloud = gce.cloud()
    (launched,) = cloud.launch(request())
    gce.project.shut_down(launched.id)
    (listed,) = cloud.list_instances("c1")
    assert listed.status is InstanceStatus.STOPPED
    assert listed.end is not None
    assert (listed.end.text, listed.end.kind) == ("it shut itself down", ErrorKind.BOOT)
    assert listed.notice_ms is None
    # The disk costs money until the instance is deleted.
    cloud.terminate([launched.id])
    assert not gce.cloud().list_instances("c1")


def test_refused_instance_does_not_stop_other_terminations(gce: Account) -> None:
    cloud = gce.cloud()
    instances = cloud.launch(request(count=3))
    kept = instances[1].id
    gce.machine(kept).protected = True
    with pytest.raises(CloudError, match="protected"):
        cloud.terminate([instance.id for instance in instances])
    assert [instance.id for instance in cloud.list_instances("c1")] == [kept]


def test_terminate_stops_if_the_caller_is_refused(gce: Account) -> None:
    cloud = gce.cloud()
    names = sorted(instance.id for instance in cloud.launch(request(count=20)))
    gce.machine(names[0]).protected = True

    def throttle_others(action: str, path: Mapping[str, str], body: object) -> None:
        if action == "deleteInstance" and path["name"] != names[0]:
            raise GceError(403, "rateLimitExceeded", "Too many requests")

    gce.project.on_call = throttle_others
    with pytest.raises(ThrottlingError):
        cloud.terminate(names)
    # Only the first batch of eight is sent.
    assert gce.call_count("deleteInstance") == 8


def test_terminate_stops_after_an_unanswered_batch(gce: Account) -> None:
    cloud = gce.cloud()
    first = [instance.id for instance in cloud.launch(request(count=20))]
    # One request of the first batch is answered, so the batches continue.
    gce.project.lose("deleteInstance", carried_out=False, times=7)
    with pytest.raises(OutcomeUnknown):
        cloud.terminate(first)
    assert gce.call_count("deleteInstance") == 20
    second = [instance.id for instance in cloud.launch(request("two", count=20))]
    gce.project.lose("deleteInstance", carried_out=False, times=20)
    with pytest.raises(OutcomeUnknown):
        cloud.terminate(second)
    assert gce.call_count("deleteInstance") == 20 + 8


@pytest.mark.parametrize(
    "content",
    [{}, {"name": "o-1"}, {"status": "DONE"}, {"name": "o-1", "status": "RUNNING"}],
)
def test_response_without_operation_is_outcome_unknown(
    gce: Account, content: dict[str, str]
) -> None:
    gce.project.replace_answer("bulkInsert", content)
    with pytest.raises(OutcomeUnknown, match="no operation"):
        gce.cloud().launch(request())


def test_empty_operation_is_launch_under_way(gce: Account) -> None:
    gce.project.replace_answer("getOperation", {})
    gce.project.operation_ms = 60_000
    with pytest.raises(LaunchUnderWay):
        gce.cloud().launch(request())
    assert gce.call_count("getOperation") == 1


def test_terminate_reads_unknown_zones(gce: Account) -> None:
    instances = gce.cloud().launch(request(count=25))
    gce.cloud().terminate([instance.id for instance in instances])
    # Filters have at most 20 names, so 25 names need two.
    assert gce.call_count("listInstances") == 2
    assert gce.call_count("deleteInstance") == 25
    assert not gce.cloud().list_instances("c1")


def test_boot_log_is_the_end_of_the_serial_port(gce: Account) -> None:
    cloud = gce.cloud()
    (instance,) = cloud.launch(request())
    assert cloud.boot_log(instance.id) == ""
    gce.machine(instance.id).console = "x" * 70_000 + "the end"
    log = cloud.boot_log(instance.id)
    assert len(log) == 64 * 1024
    assert log.endswith("the end")
    gce.project.delete(gce.machine(instance.id))
    assert cloud.boot_log(instance.id) == ""
    assert cloud.boot_log("Not A Name") == ""
