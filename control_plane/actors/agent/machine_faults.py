"""Faults of an agent's machine. A faulty slot or machine accepts no new work.

The agent reports all present faults: a GPU that failed, or a full disk. A fault ends when the agent
no longer reports the fault. Users' settings of the agent are separate, and stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control_plane.actors.agent.exclusions import Exclusion
from control_plane.actors.agent.occupancy import Occupancy
from control_plane.actors.records import Availability

FAULTS_MAX = 16
"""The most faults of an agent. A further fault closes the whole machine."""
REASON_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class MachineFault:
    """A fault of an agent's machine, or of a single device."""

    slot: int | None
    """The id of the slot with the faulty device. None: the whole machine."""
    reason: str
    """The text for users."""
    since_ms: int
    """The time of the first report, in epoch ms."""


def update_faults(
    before: Sequence[MachineFault], reported: Sequence[tuple[int | None, str]], now_ms: int
) -> tuple[MachineFault, ...]:
    """Return the present faults after a report of an agent.

    A fault that was reported before keeps its first time. More than FAULTS_MAX faults become a
    single fault of the whole machine.
    """
    since = {(fault.slot, fault.reason): fault.since_ms for fault in before}
    if len(reported) > FAULTS_MAX:
        reported = ((None, f"{len(reported)} faults, at first: {reported[0][1]}"),)
    shortened = [(slot, reason[:REASON_CHARACTERS_MAX]) for slot, reason in reported]
    return tuple(
        MachineFault(slot, reason, since.get((slot, reason), now_ms)) for slot, reason in shortened
    )


def restrict(
    availability: Availability,
    faults: Sequence[MachineFault],
    exclusions: Sequence[Exclusion] = (),
    occupancy: Occupancy | None = None,
) -> Availability:
    """Return the availability without faulty slots.

    With a fault of the whole machine, an exclusion or an occupancy, the agent is disabled, and
    allocations may finish. The agent reopens, unless a user disabled it. An allocation on a faulty
    slot is asked to stop. An occupancy with `checkpoints` asks trials to leave, also on an agent
    that a user drains. A user's setting is never loosened.
    """
    slots = {fault.slot for fault in faults if fault.slot is not None}
    restricted = replace(availability, disabled=tuple(sorted({*availability.disabled, *slots})))
    checkpoints = occupancy is not None and occupancy.checkpoints
    is_faulty = any(fault.slot is None for fault in faults)
    if availability.enabled and (exclusions or occupancy or is_faulty):
        return replace(
            restricted, enabled=False, draining=True, reopens=True, checkpoints=checkpoints
        )
    if availability.draining:
        return replace(restricted, checkpoints=checkpoints)
    return restricted
