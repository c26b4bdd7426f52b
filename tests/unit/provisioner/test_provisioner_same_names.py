"""Instances that have the name of a launched instance and are other instances."""

import pytest

from control_plane.fleet.records import InstanceRow
from provisioner.clouds.provider import CloudInstance, OutcomeUnknown
from provisioner.draft_plan import DraftPlan
from provisioner.model import InstanceStatus
from provisioner.observations import apply_observation
from provisioner.observed_fleet import find_strangers
from tests.unit.provisioner.fleet_table import (
    fleet_snapshot,
    instance,
    running_with,
    starting_instance,
)
from tests.unit.provisioner.gce_account import Account, request

A, B = "us-central1-a", "us-central1-b"


def listed_instance(zone: str = A, uid: str = "7") -> CloudInstance:
    return CloudInstance("vm", InstanceStatus.RUNNING, 1_000, {}, zone=zone, uid=uid)


def test_strangers_have_another_zone_or_number() -> None:
    row: InstanceRow = instance("vm", zone=A, uid="7")
    assert find_strangers([listed_instance()], {"vm": row}) == []
    assert find_strangers([listed_instance(B), listed_instance()], {"vm": row}) == [
        listed_instance(B)
    ]
    assert find_strangers([listed_instance(uid="8")], {"vm": row}) == [listed_instance(uid="8")]
    # Rows of older versions have no number, and other clouds have none.
    assert find_strangers([listed_instance(uid="8")], {"vm": instance("vm", zone=A)}) == []
    assert find_strangers([listed_instance(uid="")], {"vm": row}) == []
    assert find_strangers([listed_instance()], {}) == []


def test_pass_records_the_number_of_a_row_without_one() -> None:
    row = starting_instance("vm", zone=A)
    draft = DraftPlan(fleet_snapshot([(row, running_with(None, zone=A, uid="7"))]))
    apply_observation(draft, row)
    assert (draft.rows["vm"].zone, draft.rows["vm"].uid) == (A, "7")


def test_recorded_number_does_not_change() -> None:
    row = starting_instance("vm", zone=A, uid="7")
    draft = DraftPlan(fleet_snapshot([(row, running_with(None, zone=B, uid="8"))]))
    apply_observation(draft, row)
    assert (draft.rows["vm"].zone, draft.rows["vm"].uid) == (A, "7")


def test_launch_returns_the_number_of_each_instance(gce: Account) -> None:
    launched = gce.cloud().launch(request(count=2))
    assert [item.uid for item in launched] == [gce.machine(item.id).id for item in launched]


def test_number_of_a_lost_launch_is_read_from_its_operations(gce: Account) -> None:
    gce.project.lose("bulkInsert")
    with pytest.raises(OutcomeUnknown):
        gce.cloud().launch(request())
    launched = gce.cloud().launch(request())
    assert [item.uid for item in launched] == [gce.only_machine().id]


def test_terminate_deletes_each_instance_of_the_name(gce: Account) -> None:
    """A stranger of the same name must not hide the cluster's instance."""
    cloud = gce.cloud()
    (launched,) = cloud.launch(request())
    machine = gce.only_machine()
    gce.project.machines["stranger"] = type(machine)(
        **{**vars(machine), "id": "1", "zone": B if machine.zone != B else A}
    )
    assert len(cloud.list_instances("c1")) == 2
    cloud.terminate([launched.id])
    assert gce.call_count("deleteInstance") == 2
    assert cloud.list_instances("c1") == []
