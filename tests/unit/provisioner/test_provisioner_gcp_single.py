"""Single inserts on the simulated Compute Engine, for pools whose bulk inserts are refused."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.fleet.records import IntentRow
from provisioner.clouds.provider import (
    BatchRefused,
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
from tests.unit.provisioner.gce_account import A2, ON_DEMAND, Account, request

A, B, C = "us-central1-a", "us-central1-b", "us-central1-c"
ZONES = (A, B, C)
HOUR_MS = 3_600_000


def single(name: str = "one", **fields: Any) -> IntentRow:
    return replace(request(name, **fields), singly=True)


def test_refused_bulk_insert_is_a_batch_refusal(gce: Account) -> None:
    gce.project.bulk_refused = True
    with pytest.raises(BatchRefused, match=r"Required 'compute\.instances\.create' permission"):
        gce.cloud().launch(request(count=2))
    assert gce.project.machines == {}


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("forbidden", "Required 'compute.subnetworks.use' permission for 'projects/p1/x'"),
        ("forbidden", "Required 'iam.serviceAccounts.actAs' permission for 'projects/p1'"),
        ("accessNotConfigured", "Compute Engine API has not been used"),
        ("insufficientPermissions", "Insufficient authentication scopes"),
    ],
)
def test_refusals_of_any_launch_are_not_batch_refusals(
    gce: Account, reason: str, message: str
) -> None:
    gce.project.fail("bulkInsert", 403, reason, message)
    with pytest.raises(NotAllowed) as caught:
        gce.cloud().launch(request())
    assert not isinstance(caught.value, BatchRefused)


def test_refusal_after_an_accepted_bulk_insert_is_no_batch_refusal(gce: Account) -> None:
    """The permission was withdrawn after an insert whose answer was lost."""
    gce.project.lose("bulkInsert")
    with pytest.raises(OutcomeUnknown):
        gce.cloud().launch(request(count=2))
    gce.project.bulk_refused = True
    with pytest.raises(NotAllowed) as caught:
        gce.cloud().launch(request(count=2))
    assert not isinstance(caught.value, BatchRefused)
    # The operation is found once its id may be forgotten.
    gce.now_ms += HOUR_MS
    assert len(gce.cloud().launch(request(count=2))) == 2
    assert len(gce.project.machines) == 2


def test_each_instance_has_an_insert_of_its_own(gce: Account) -> None:
    gce.project.bulk_refused, gce.project.operation_ms = True, 20_000
    cloud = gce.cloud()
    with pytest.raises(LaunchUnderWay, match="3 single inserts make 3 of a2-highgpu-4g"):
        cloud.launch(single(count=3))
    gce.now_ms += 20_000
    # Another process reads the results.
    launched = gce.cloud().launch(single(count=3))
    assert gce.call_count("insert") == 3
    assert [item.id for item in launched] == sorted(gce.project.machines)
    assert {item.uid for item in launched} == {item.id for item in gce.project.machines.values()}
    assert [gce.machine(item.id).zone for item in launched] == [item.zone for item in launched]
    listed = gce.cloud().list_instances("c1", "blue")
    assert {(item.id, item.uid, item.zone) for item in listed} == {
        (item.id, item.uid, item.zone) for item in launched
    }


@pytest.mark.parametrize("carried_out", [True, False])
def test_insert_with_a_lost_answer_launches_once(gce: Account, carried_out: bool) -> None:
    gce.project.lose("insert", carried_out=carried_out, times=2)
    with pytest.raises(OutcomeUnknown):
        gce.cloud().launch(single(count=2))
    assert len(gce.project.machines) == (2 if carried_out else 0)
    launched = gce.cloud().launch(single(count=2))
    assert [item.id for item in launched] == sorted(gce.project.machines)
    assert len(launched) == 2


def test_existing_instance_without_an_operation_is_an_unknown_outcome(gce: Account) -> None:
    """Somebody deleted the operation, or created an instance of this name."""
    first = gce.cloud().launch(single())
    gce.project.operations.clear()
    gce.project.forget_requests()
    with pytest.raises(OutcomeUnknown):
        gce.cloud().launch(single())
    assert [item.id for item in first] == list(gce.project.machines)


def test_forgotten_request_ids_launch_no_second_instance(gce: Account) -> None:
    (first,) = gce.cloud().launch(single())
    gce.project.delete(gce.machine(first.id))
    gce.project.forget_requests()
    gce.now_ms += HOUR_MS
    assert [item.id for item in gce.cloud().launch(single())] == [first.id]
    assert gce.call_count("insert") == 1


@pytest.mark.parametrize("late", [False, True])
def test_refused_zone_is_followed_by_the_next(gce: Account, late: bool) -> None:
    gce.project.late = late
    gce.project.capacity = {(A2, A, "on-demand"): 1, (A2, B, "on-demand"): 0}
    launched = gce.launch(gce.cloud(), single(count=4))
    zones = [item.zone for item in launched]
    assert len(zones) == 4
    assert zones.count(A) <= 1
    assert zones.count(B) == 0


def test_zones_without_the_type_are_skipped(gce: Account) -> None:
    gce.project.not_offered = {(A2, A), (A2, C)}
    assert [item.zone for item in gce.cloud().launch(single())] == [B]


@pytest.mark.parametrize("late", [False, True])
def test_partial_capacity_is_launched(gce: Account, late: bool) -> None:
    gce.project.late = late
    gce.project.capacity = {(A2, zone, "on-demand"): 0 for zone in (B, C)}
    gce.project.capacity[A2, A, "on-demand"] = 2
    gce.project.operation_ms = 10_000
    launched = gce.launch(gce.cloud(), single(count=5))
    assert [item.zone for item in launched] == [A, A]
    assert len(gce.project.machines) == 2


@pytest.mark.parametrize("late", [False, True])
def test_region_without_capacity_is_no_capacity(gce: Account, late: bool) -> None:
    gce.project.late = late
    gce.project.capacity = {(A2, zone, "on-demand"): 0 for zone in ZONES}
    with pytest.raises(NoCapacity):
        gce.launch(gce.cloud(), single(count=2))


def test_offering_with_a_zone_uses_only_that_zone(gce: Account) -> None:
    launched = gce.cloud().launch(single(offering=replace(ON_DEMAND, zone=B), count=2))
    assert {item.zone for item in launched} == {B}
    gce.project.capacity = {(A2, B, "on-demand"): 2}
    with pytest.raises(NoCapacity):
        gce.cloud().launch(single("two", offering=replace(ON_DEMAND, zone=B)))


@pytest.mark.parametrize("late", [False, True])
def test_gang_is_launched_completely_in_a_zone_or_not_at_all(gce: Account, late: bool) -> None:
    gce.project.late = late
    gang = replace(single("gang", count=3), together=True)
    launched = gce.launch(gce.cloud(), gang)
    assert len({item.zone for item in launched}) == 1
    gce.reset(late=late)
    gce.project.capacity = {(A2, zone, "on-demand"): 2 for zone in ZONES}
    with pytest.raises(NoCapacity):
        gce.launch(gce.cloud(), gang)
    assert gce.project.billed_machines() == []
    # The failed launch stays failed when the capacity has come.
    gce.project.capacity.clear()


def test_gang_whose_deletion_fails_is_deleted_by_the_next_call(gce: Account) -> None:
    gce.project.capacity = {(A2, zone, "on-demand"): 2 for zone in ZONES}
    gce.project.late = True
    gang = replace(single("gang", count=3), together=True)
    gce.project.lose("deleteInstance", carried_out=False, times=2)
    with pytest.raises(OutcomeUnknown, match="incomplete launch cannot be deleted"):
        gce.cloud().launch(gang)
    with pytest.raises(NoCapacity):
        gce.cloud().launch(gang)
    assert gce.project.billed_machines() == []


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (403, "rateLimitExceeded", ThrottlingError),
        (403, "forbidden", NotAllowed),
        (403, "quotaExceeded", QuotaExceeded),
    ],
)
def test_refused_caller_stops(
    gce: Account, status: int, reason: str, error: type[CloudError]
) -> None:
    gce.project.fail("insert", status, reason, times=100)
    with pytest.raises(error):
        gce.cloud().launch(single(count=30))
    # A batch of eight, none of which tries another zone; a used-up quota stops no other instance.
    assert gce.call_count("insert") == (30 if error is QuotaExceeded else 8)


def test_token_of_another_request_is_refused(gce: Account) -> None:
    gce.cloud().launch(single())
    with pytest.raises(TokenReused):
        gce.cloud().launch(replace(single(), count=2))
    assert len(gce.project.machines) == 1


def test_single_inserts_limit_the_launch(gce: Account) -> None:
    assert len(gce.launch(gce.cloud(), single(count=60))) == 50
    gang = replace(single("gang", count=51), together=True)
    with pytest.raises(ConfigurationError, match="51 instances together: at most 50"):
        gce.cloud().launch(gang)


def test_unreadable_operations_are_an_unknown_outcome(gce: Account) -> None:
    gce.project.fail("listOperations", 403, "rateLimitExceeded")
    with pytest.raises(OutcomeUnknown, match="the inserts cannot be read"):
        gce.cloud().launch(single())
    assert gce.call_count("insert") == 0
