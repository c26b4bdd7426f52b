"""Step contexts, addresses, and changes of frozen records."""

from dataclasses import FrozenInstanceError, dataclass

import pytest

from control_plane.actors import addresses
from control_plane.actors.pool.actor import PoolState
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow, SetTimer, StepContext
from control_plane.evolve import evolve


class FixedReader:
    def part(self, name: str) -> object | None:
        return {"queue": "stored"}.get(name)

    def row(self, partition: str, sort: str) -> ObservedRow:
        return ObservedRow(3, f"{partition}/{sort}".encode())


def test_written_part_reads_back_in_the_same_context() -> None:
    context = StepContext("pool#default", 0, FixedReader())
    assert context.part("queue", str) == "stored"
    context.write_part("queue", "changed")
    assert context.part("queue", str) == "changed"
    context.write_part("queue", None)
    assert context.part("queue", str) is None
    assert context.part("other", str) is None


def test_part_of_a_wrong_type_raises() -> None:
    with pytest.raises(AssertionError, match="queue"):
        StepContext("pool#default", 0, FixedReader()).part("queue", int)


def test_context_collects_effects() -> None:
    context = StepContext("pool#default", 7, FixedReader())
    context.set_timer(9, "tick")
    context.add_reason("so")
    context.write_row("p", "s", b"body", expected=context.row("p", "s"))
    assert context.timers == [SetTimer(9, "tick")]
    assert context.reasons == ["so"]
    assert context.rows[0].expected == ObservedRow(3, b"p/s")


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        (addresses.experiment(1), "experiment"),
        (addresses.trial(2), "trial"),
        (addresses.pool("big#one"), "pool"),
        (addresses.agent("a"), "agent"),
    ],
)
def test_address_has_the_actor_type(address: str, kind: str) -> None:
    assert addresses.actor_type_name(address) == kind


def test_status_is_open_stopping_or_final() -> None:
    assert [status for status in Status if not status.is_final and not status.is_stopping] == [
        Status.ACTIVE,
        Status.PAUSED,
    ]
    assert not any(status.is_final and status.is_stopping for status in Status)
    assert [status for status in Status if status.is_final and not status.is_deleting] == [
        Status.COMPLETED,
        Status.CANCELED,
        Status.ERROR,
    ]
    assert all(status.is_final for status in Status if status.is_deleting)


def test_record_evolves_into_a_changed_copy() -> None:
    before = PoolState("default", free=1)
    after = evolve(before, free=2, queued=3)
    assert after == PoolState("default", free=2, queued=3)
    assert before == PoolState("default", free=1)
    assert hash(after) == hash(PoolState("default", free=2, queued=3))
    with pytest.raises(FrozenInstanceError):
        after.free = 9  # type: ignore[misc]


def test_unknown_field_is_refused() -> None:
    with pytest.raises(AssertionError, match="PoolState has no field"):
        evolve(PoolState("default"), fre=2)


def test_record_with_slots_cannot_evolve() -> None:
    @dataclass(frozen=True, slots=True)
    class SlottedRecord:
        a: int

    with pytest.raises(AttributeError):
        evolve(SlottedRecord(1), a=2)
