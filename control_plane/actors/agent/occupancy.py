"""The occupancy of an agent's machine: people use the machine, which then takes no new work.

The agent decides from its options when people use the machine. The machine takes work again as
soon as the agent reports the end. Users' settings of the agent are separate, and stay.
"""

from dataclasses import dataclass

REASON_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A reason why people have the machine for themselves."""

    reason: str
    """The text for users."""
    since_ms: int
    """The time of the first report, in epoch ms."""
    checkpoints: bool = False
    """Whether running trials are asked to save a checkpoint and leave. Otherwise they may finish.
    """


def next_occupancy(
    before: Occupancy | None, reported: tuple[str, bool] | None, now_ms: int
) -> Occupancy | None:
    """Return the occupancy after a report of the agent. None if nobody uses the machine.

    An occupancy that lasts keeps its beginning, also with another reason.

    Args:
        before: the occupancy before the report.
        reported: the reason, and whether running trials leave. None: nobody uses the machine.
        now_ms: the time of the report.
    """
    if reported is None:
        return None
    reason, checkpoints = reported
    since_ms = now_ms if before is None else before.since_ms
    return Occupancy(reason[:REASON_CHARACTERS_MAX], since_ms, checkpoints)
