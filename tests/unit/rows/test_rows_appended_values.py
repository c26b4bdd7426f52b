"""Values that a newer version appended to a tuple do not make a row or message unreadable."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pydantic import TypeAdapter, ValidationError

from control_plane.actors.experiment.trial_summaries import Summaries, TrialSummary
from control_plane.actors.messages.agent import AgentEnrolled
from control_plane.adapters import RecordCodec
from control_plane.appended_values import validate_without_appended
from control_plane.engine.actor_types import actor_type_at
from control_plane.rows.row_type import RowType

NEWER = [{"new": [1, 2]}, 4]


class Pair(NamedTuple):
    """A stored named tuple with a default."""

    size: int
    text: str = ""


@dataclass(frozen=True)
class Record:
    """A record with tuples at several depths."""

    pairs: tuple[Pair, ...]
    place: tuple[str, int] | None = None
    named: dict[str, Pair] | None = None


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        (
            {"pairs": [[1, "x", *NEWER], [2], [3, "y", 5]]},
            Record((Pair(1, "x"), Pair(2), Pair(3, "y"))),
        ),
        ({"pairs": [], "place": ["a", 1, *NEWER]}, Record((), ("a", 1))),
        ({"pairs": [], "named": {"p": [1, "x", *NEWER]}}, Record((), None, {"p": Pair(1, "x")})),
    ],
    ids=["named tuples", "plain tuple", "inside an object"],
)
def test_appended_values_are_ignored(fields: dict[str, Any], record: Record) -> None:
    codec = RecordCodec(
        RowType("record", "records / N", "A record.", (), (), f"{__name__}:Record"), Record
    )
    assert codec.decode(json.dumps(fields).encode()) == record
    assert validate_without_appended(TypeAdapter(Record), fields) == record


@pytest.mark.parametrize(
    "fields",
    [
        {"pairs": [["x", "y", 3]]},
        {"pairs": [[1, "x", 3], ["wrong"]]},
        {"pairs": 3},
        {"pairs": [], "place": ["a"]},
    ],
)
def test_other_errors_are_raised(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        validate_without_appended(TypeAdapter(Record), fields)


def test_part_of_a_newer_version_is_decoded() -> None:
    experiment = actor_type_at("experiment#1")
    summaries = Summaries((TrialSummary(1, "COMPLETED", 5.0, 0.1, 0, 5),))
    stored = json.loads(experiment.encode_part("trials/0", summaries))
    stored["trials"][0] += NEWER
    assert experiment.decode_part("trials/0", json.dumps(stored).encode()) == summaries


def test_message_of_a_newer_version_is_decoded() -> None:
    agent = actor_type_at("agent#a")
    message = AgentEnrolled("a", "default", ((0, "cpu", "u0", "CPU"),), "1.0")
    name, body = agent.encode_message(message)
    fields = json.loads(body)
    fields["slots"][0] += NEWER
    assert agent.decode_message(name, fields) == message
    assert fields["slots"][0][-2:] == NEWER
