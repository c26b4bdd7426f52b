"""Messages whose classes were renamed are stored under the names of release 0.1.0."""

import pytest

from control_plane.actors.messages.experiment import CostCheckDue, TrialValidationReported
from control_plane.actors.messages.pool import SlotsReleased, StaleAllocationsFound
from control_plane.actors.messages.stored_names import STORED_NAMES, stored_name
from control_plane.actors.messages.trial import (
    CheckpointDeletionRequested,
    CheckpointRequested,
    LengthReached,
    ValidationReported,
)
from control_plane.engine.actor_types import actor_type_at, encode_message_for, parse_json
from control_plane.searchers.method import SuggestedPoints

# Rows that release 0.1.0 wrote: the receiver, the name, the fields, and the decoded message.
ROWS_OF_0_1_0 = [
    (
        "experiment#1",
        "TrialValidated",
        b'{"number":0,"units":2.5,"metric":0.5}',
        TrialValidationReported(0, 2.5, 0.5),
    ),
    ("experiment#1", "CostLookDue", b"{}", CostCheckDue()),
    (
        "experiment#1",
        "Suggested",
        b'{"first":3,"points":[{"lr":0.1}]}',
        SuggestedPoints(3, ({"lr": 0.1},)),
    ),
    (
        "trial#4",
        "LengthReported",
        b'{"epoch":2,"length":100,"metric":null}',
        LengthReached(2, 100, None),
    ),
    ("trial#4", "CheckpointWanted", b'{"by":5}', CheckpointRequested(5)),
    (
        "trial#4",
        "CheckpointsUnwanted",
        b'{"uuids":["a","b"],"whole":true}',
        CheckpointDeletionRequested(("a", "b"), deletes_experiment=True),
    ),
    (
        "pool#default",
        "AuditFound",
        b'{"stale":[{"trial_id":4,"epoch":1,"ticket":"t","agents":["a"]}]}',
        StaleAllocationsFound((SlotsReleased(4, 1, "t", ("a",)),)),
    ),
]


@pytest.mark.parametrize(("address", "name", "body", "message"), ROWS_OF_0_1_0)
def test_row_of_0_1_0_is_read_and_written_unchanged(
    address: str, name: str, body: bytes, message: object
) -> None:
    assert actor_type_at(address).decode_message(name, parse_json(body)) == message
    assert encode_message_for(address, message) == (name, body)


def test_every_renamed_message_is_tested() -> None:
    assert {type(message).__name__ for *_, message in ROWS_OF_0_1_0} == set(STORED_NAMES)


def test_message_without_a_rename_has_the_name_of_the_class() -> None:
    assert stored_name(ValidationReported) == "ValidationReported"


def test_new_name_of_a_renamed_message_is_not_stored() -> None:
    with pytest.raises(KeyError):
        actor_type_at("trial#4").decode_message("LengthReached", {})
