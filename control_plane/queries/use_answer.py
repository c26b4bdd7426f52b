"""The answer for the measured use of slots."""

from control_plane.actors.use import Use
from control_plane.queries.answer import Answer

MS_PER_HOUR = 3_600_000


class UseAnswer(Answer):
    """The mean use of slots over the measured time. `measured_hours` are slot hours."""

    percent: float
    memory_percent: float
    measured_hours: float


def use_answer(use: Use | None) -> UseAnswer | None:
    """Return the answer for a use. None if nothing was measured."""
    if use is None or use.percent is None or use.memory_percent is None:
        return None
    return UseAnswer(
        percent=use.percent,
        memory_percent=use.memory_percent,
        measured_hours=use.measured_ms / MS_PER_HOUR,
    )
