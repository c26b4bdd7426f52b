"""Instances of Compute Engine, on the simulated one; what all clouds share is in
tests/conformance.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from control_plane.fleet.records import ErrorKind
from provisioner.clouds.gcp import provider as gcp
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


def test_a_launch_is_one_call_and_a_look_at_its_operation(gce: Account) -> None:
    found = gce.cloud().launch(request(count=3))
    assert all(NAME.fullmatch(instance.id) for instance in found)
    assert sorted(instance.id for instance in found) == sorted(gce.project.machines)
    assert {(instance.status, instance.launched_ms) for instance in found} == {
        (InstanceStatus.STARTING, BEGAN_MS)
    }
    # Over at once here, so that the group's operations are all there is to read.
    assert gce.project.calls == ["bulkInsert", "listOperations"]


def test_the_environment_names_another_compute_engine(
    gce: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_COMPUTE_ENDPOINT", gce.url)
    clouds = GceClouds(
        lambda intent_row: intent_row.id.encode(),
        lambda: gce.now_ms,
        complete_settings=lambda found: add_deployment(found, {}, "p1", "us-central1"),
    )
    settings = ProvisionerSettings("gcp")
    cloud = clouds.cloud(settings)
    assert clouds.cloud(settings) is cloud
    (found,) = cloud.launch(replace(request("one"), section="{}"))
    assert gce.machine(found.id).metadata["startup-script"] == "one"
    assert [instance.id for instance in cloud.list_instances("c1", "blue")] == [found.id]


def test_while_the_operation_runs_nobody_waits_for_it(gce: Account) -> None:
    gce.project.operation_ms = 20_000
    cloud = gce.cloud()
    with pytest.raises(LaunchUnderWay, match=r"operation-\d+ makes 2 of a2-highgpu-4g"):
        cloud.launch(request(count=2))
    # Its instances are listed meanwhile.
    assert len(cloud.list_instances("c1")) == 2
    gce.now_ms += 19_999
    with pytest.raises(LaunchUnderWay):
        gce.cloud().launch(request(count=2))
    gce.now_ms += 1
    assert len(gce.cloud().launch(request(count=2))) == 2
    assert len(gce.project.machines) == 2


def test_an_operation_is_over_when_all_of_its_instances_are_told(gce: Account) -> None:
    gce.cloud().launch(request(count=2))
    hidden = gce.project.operations.pop()
    assert hidden.kind == "insert"
    # The launch itself says that there are two.
    with pytest.raises(LaunchUnderWay):
        gce.cloud().launch(request(count=2))
    gce.project.operations.append(hidden)
    assert len(gce.cloud().launch(request(count=2))) == 2


def test_a_launch_is_of_no_more_instances_than_a_bulk_insert_takes(gce: Account) -> None:
    # The next pass asks for the others; of a gang it has to be all.
    assert len(gce.launch(gce.cloud(), request(count=1_200))) == 1_000
    gang = replace(request("gang", count=1_200), together=True)
    with pytest.raises(ConfigurationError, match="1200 instances together"):
        gce.cloud().launch(gang)


def test_an_offering_without_a_zone_is_tried_in_all(gce: Account) -> None:
    gce.project.capacity = {(A2, A, "on-demand"): 1, (A2, B, "on-demand"): 0}
    found = gce.cloud().launch(request(count=3))
    assert sorted(instance.zone for instance in found) == [A, C, C]
    assert sorted(gce.machine(instance.id).zone for instance in found) == [A, C, C]


def test_what_there_is_is_taken(gce: Account) -> None:
    gce.project.capacity = {(A2, zone, "on-demand"): 0 for zone in (B, C)} | {
        (A2, A, "on-demand"): 2
    }
    gce.project.operation_ms = 10_000
    found = gce.launch(gce.cloud(), request(count=5))
    assert [instance.zone for instance in found] == [A, A]


def test_an_offering_with_a_zone_stays_there(gce: Account) -> None:
    gce.project.capacity = {(A2, B, "spot"): 1}
    found = gce.cloud().launch(request(count=3, offering=replace(SPOT, zone=B)))
    assert [gce.machine(instance.id).zone for instance in found] == [B]
    assert gce.only_machine().is_spot
    elsewhere = request("two", replace(SPOT, zone="us-east1-b"))
    with pytest.raises(ConfigurationError, match="zone 'us-east1-b' is not in region us-central1"):
        gce.cloud().launch(elsewhere)


@pytest.mark.parametrize("late", [False, True])
def test_a_gang_is_all_or_none_and_in_one_zone(gce: Account, late: bool) -> None:
    gce.project.late = late
    gce.project.capacity = {(A2, zone, "on-demand"): 2 for zone in (A, B, C)}
    gang = replace(request(count=3), together=True)
    with pytest.raises(NoCapacity):
        gce.cloud().launch(gang)
    assert not gce.cloud().list_instances("c1")
    gce.project.capacity[A2, B, "on-demand"] = 3
    found = gce.cloud().launch(replace(gang, token="another", id="two"))
    assert [instance.zone for instance in found] == [B, B, B]
    # What joins the rest of a gang is in its zone.
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
def test_a_launch_without_instances_says_why(
    gce: Account, why: str, cls: type[CloudError], text: str
) -> None:
    offering, section = SPOT, dict[str, Any]()
    gce.project.late = why.startswith("late ")
    match why.removeprefix("late "):
        case "stock-out":
            gce.project.capacity = {(A2, zone, "spot"): 0 for zone in (A, B, C)}
        case "quota":
            # An a2-highgpu-4g has 4.
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
def test_each_method_raises_the_narrowest_error_and_tries_once(
    gce: Account, status: int, reason: str, cls: type[CloudError]
) -> None:
    cloud = gce.cloud()
    (one,) = cloud.launch(request())
    methods: list[tuple[str, Callable[[], object]]] = [
        ("bulkInsert", lambda: cloud.launch(request("two"))),
        ("listInstances", lambda: cloud.list_instances("c1")),
        ("deleteInstance", lambda: cloud.terminate([one.id])),
        ("getSerialPortOutput", lambda: cloud.boot_log(one.id)),
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


def test_a_launch_whose_answer_was_lost_is_found_by_its_token(gce: Account) -> None:
    cloud = gce.cloud()
    gce.project.lose("bulkInsert")
    with pytest.raises(OutcomeUnknown, match="did not answer"):
        cloud.launch(request(count=2))
    found = cloud.launch(request(count=2))
    assert sorted(instance.id for instance in found) == sorted(gce.project.machines)
    assert len(found) == 2


def test_a_launch_that_never_arrived_is_made_by_the_next(gce: Account) -> None:
    gce.project.lose("bulkInsert", carried_out=False)
    with pytest.raises(OutcomeUnknown):
        gce.cloud().launch(request())
    assert len(gce.cloud().launch(request())) == 1


def test_an_operation_that_cannot_be_read_is_no_answer(gce: Account) -> None:
    gce.project.fail("listOperations", 403, "rateLimitExceeded")
    # Whatever the refusal is of: the launch has been asked for.
    with pytest.raises(OutcomeUnknown, match="rateLimitExceeded"):
        gce.cloud().launch(request())
    assert len(gce.cloud().launch(request())) == 1
    assert len(gce.project.machines) == 1


def test_a_token_is_of_one_request_whatever_of_it_changes(gce: Account) -> None:
    cloud = gce.cloud()
    cloud.launch(request())
    # The id of a request counts for its place; an older one is looked for in all.
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
    # What it costs is nothing that is asked for: prices change between two tries.
    dearer = replace(ON_DEMAND, price_per_hour=9.9)
    assert len(cloud.launch(request(offering=dearer))) == 1
    assert len(gce.project.machines) == 1


def test_a_token_is_good_when_compute_engine_has_forgotten_the_request(gce: Account) -> None:
    (first,) = gce.cloud().launch(request())
    gce.cloud().terminate([first.id])
    gce.project.forget_requests()
    gce.now_ms += HOUR_MS
    assert [instance.id for instance in gce.cloud().launch(request())] == [first.id]
    assert gce.call_count("bulkInsert") == 1


def test_a_request_forgotten_early_is_found_when_it_is_a_minute_old(gce: Account) -> None:
    (first,) = gce.cloud().launch(request())
    gce.project.forget_requests()
    # Its instance lives, so that this is no error of the pool's.
    gce.now_ms += 59_999
    with pytest.raises(OutcomeUnknown, match="already exists"):
        gce.cloud().launch(request())
    gce.now_ms += 1
    assert [instance.id for instance in gce.cloud().launch(request())] == [first.id]
    assert list(gce.project.machines) == [first.id]


def test_the_id_of_a_request_is_a_uuid_of_its_token() -> None:
    assert re.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", (request_id("a"))
    )
    assert request_id("a") != request_id("b")


def test_a_list_is_read_to_its_last_page(gce: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcp, "PAGE_SIZE", 2)
    found = gce.cloud().launch(request(count=5))
    listed = gce.cloud().list_instances("c1")
    assert sorted(instance.id for instance in listed) == sorted(item.id for item in found)
    # 5 instances in pages of 2.
    assert gce.call_count("listInstances") == 3


def test_a_list_is_of_the_pools_region(gce: Account) -> None:
    gce.cloud().launch(request("one"))
    other = gce.cloud(region="europe-west4")
    (there,) = other.launch(request("two", region="europe-west4"))
    assert [instance.zone for instance in gce.cloud().list_instances("c1")] == [A]
    assert [instance.id for instance in other.list_instances("c1")] == [there.id]


def test_a_list_without_a_zone_of_the_region_is_no_answer(gce: Account) -> None:
    cloud = gce.cloud()
    (found,) = cloud.launch(request())
    gce.project.unreachable = {found.zone}
    with pytest.raises(OutcomeUnknown, match=f"does not reach {found.zone}"):
        cloud.list_instances("c1")
    # Zones of other regions hold nobody up.
    gce.project.unreachable = {"europe-west4-a"}
    assert [instance.id for instance in cloud.list_instances("c1")] == [found.id]


@pytest.mark.parametrize("name", ["zones/us-central1-a", "projects/p1/zones/us-central1-a"])
def test_zones_that_a_list_names_as_out_of_reach_are_missing(name: str) -> None:
    with pytest.raises(OutcomeUnknown, match="does not reach us-central1-a"):
        gcp._check_reachable({"unreachables": [name]}, "us-central1")


def test_an_instance_is_listed_in_each_state_of_its_life(gce: Account) -> None:
    gce.reset(visible_ms=5_000, staging_ms=7_000, running_ms=10_000, ending_ms=20_000)
    cloud = gce.cloud()
    (one,) = cloud.launch(request())
    seen = []
    for second in range(0, 45, 5):
        gce.now_ms = BEGAN_MS + second * 1000
        if second == 15:
            cloud.terminate([one.id])
        seen.append([str(instance.status) for instance in cloud.list_instances("c1")])
    # Unseen for 5 s, running after 10, asked to end after 15, gone 20 s later.
    assert seen == [[], ["starting"], ["running"], *[["stopping"]] * 4, [], []]


def test_a_preempted_machine_has_half_a_minute_and_then_is_gone(gce: Account) -> None:
    cloud = gce.cloud()
    spot, other = cloud.launch(request(offering=SPOT, count=2))
    assert len(cloud.list_instances("c1", "blue")) == 2
    gce.project.preempt(spot.id)
    found = {instance.id: instance for instance in cloud.list_instances("c1", "blue")}
    assert found[spot.id].status is InstanceStatus.STOPPING
    assert found[spot.id].notice_ms == BEGAN_MS + 30_000
    end = found[spot.id].end
    assert end is not None
    assert (end.text, end.taken_back) == ("the spot instance was preempted", True)
    assert (found[other.id].end, found[other.id].notice_ms) == (None, None)
    gce.now_ms += 30_000
    found = {instance.id: instance for instance in cloud.list_instances("c1", "blue")}
    assert found[spot.id].status is InstanceStatus.TERMINATED
    assert found[spot.id].end == end
    # Who never saw it learns nothing of it.
    assert [instance.id for instance in gce.cloud().list_instances("c1", "blue")] == [other.id]


def test_an_instance_that_shut_itself_down_is_stopped_and_says_so(gce: Account) -> None:
    cloud = gce.cloud()
    (one,) = cloud.launch(request())
    gce.project.shut_down(one.id)
    (listed,) = cloud.list_instances("c1")
    assert listed.status is InstanceStatus.STOPPED
    assert listed.end is not None
    assert (listed.end.text, listed.end.kind) == ("it shut itself down", ErrorKind.BOOT)
    assert listed.notice_ms is None
    # Its disk is paid for until it is deleted.
    cloud.terminate([one.id])
    assert not gce.cloud().list_instances("c1")


def test_one_that_cannot_be_ended_holds_up_no_other(gce: Account) -> None:
    cloud = gce.cloud()
    found = cloud.launch(request(count=3))
    kept = found[1].id
    gce.machine(kept).protected = True
    with pytest.raises(CloudError, match="protected"):
        cloud.terminate([instance.id for instance in found])
    assert [instance.id for instance in cloud.list_instances("c1")] == [kept]


def test_who_is_refused_for_now_asks_for_no_more_ends_whatever_else_was_refused(
    gce: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, asked = gce.cloud(), list[str]()
    found = sorted(instance.id for instance in cloud.launch(request(count=20)))

    def refuse(path: str) -> None:
        asked.append(path)
        raise ConfigurationError("protected") if path.endswith(found[0]) else ThrottlingError("")

    monkeypatch.setattr(cloud._api, "delete", refuse)
    with pytest.raises(ThrottlingError):
        cloud.terminate(found)
    # Eight at once, and then no more.
    assert len(asked) == 8


def test_where_compute_engine_is_silent_nobody_waits_for_each_end(gce: Account) -> None:
    cloud = gce.cloud()
    found = [instance.id for instance in cloud.launch(request(count=20))]
    # One of the first eight is answered, and none of the next.
    gce.project.lose("deleteInstance", carried_out=False, times=7)
    with pytest.raises(OutcomeUnknown):
        cloud.terminate(found)
    assert gce.call_count("deleteInstance") == 20
    again = [instance.id for instance in cloud.launch(request("two", count=20))]
    gce.project.lose("deleteInstance", carried_out=False, times=20)
    with pytest.raises(OutcomeUnknown):
        cloud.terminate(again)
    assert gce.call_count("deleteInstance") == 20 + 8


@pytest.mark.parametrize(
    "content",
    [{}, {"name": "o-1"}, {"status": "DONE"}, {"name": "o-1", "status": "RUNNING"}],
)
def test_an_answer_that_is_no_operation_leaves_the_launch_open(
    gce: Account, monkeypatch: pytest.MonkeyPatch, content: dict[str, str]
) -> None:
    cloud = gce.cloud()
    monkeypatch.setattr(cloud._api, "post", lambda *_, **__: content)
    with pytest.raises(OutcomeUnknown, match="no operation"):
        cloud.launch(request())


def test_an_operation_that_says_nothing_of_itself_is_under_way(
    gce: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    gce.project.operation_ms = 60_000
    cloud = gce.cloud()
    monkeypatch.setattr(cloud._api, "get", lambda *_, **__: {})
    with pytest.raises(LaunchUnderWay):
        cloud.launch(request())


def test_who_ends_instances_looks_their_zones_up_where_they_are_not_known(gce: Account) -> None:
    found = gce.cloud().launch(request(count=25))
    gce.cloud().terminate([instance.id for instance in found])
    # 25 names in filters of 20.
    assert gce.call_count("listInstances") == 2
    assert gce.call_count("deleteInstance") == 25
    assert not gce.cloud().list_instances("c1")


def test_the_end_of_the_serial_port_is_the_boot_log(gce: Account) -> None:
    cloud = gce.cloud()
    (one,) = cloud.launch(request())
    assert cloud.boot_log(one.id) == ""
    gce.machine(one.id).console = "x" * 70_000 + "the end"
    log = cloud.boot_log(one.id)
    assert len(log) == 64 * 1024
    assert log.endswith("the end")
    gce.project.delete(gce.machine(one.id))
    assert cloud.boot_log(one.id) == ""
    assert cloud.boot_log("Not A Name") == ""
