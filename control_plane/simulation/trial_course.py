"""The decisions that a simulated trial's run makes between two batches, as a real process would."""

from enum import Enum, auto


class NextAction(Enum):
    """The next action of a run that has received directives."""

    TRAIN = auto()
    """Train to the requested length, or report the length if it is reached."""
    COMPLETE = auto()
    """Exit, because the search needs no more training of the trial."""
    YIELD = auto()
    """Save a checkpoint and exit as preempted."""
    IDLE = auto()
    """Exit as idle: the search has answered the length, and nothing was requested since then."""
    WAIT = auto()
    """Wait for the search's answer to the reported length."""


def next_action(
    length: int | None, reached: int, answered: int, *, is_closed: bool, must_stop: bool
) -> NextAction:
    """Return the next action of a run.

    Args:
        length: the length that the search requests. None before the first request.
        reached: the length that the trial has reached, in the unit of `length`.
        answered: the last length that the search has answered.
        is_closed: whether the search requests no further length.
        must_stop: whether the run must save its work and exit.
    """
    if length is not None and length > reached:
        return NextAction.YIELD if must_stop else NextAction.TRAIN
    if is_closed:
        return NextAction.COMPLETE
    if must_stop:
        return NextAction.YIELD
    return NextAction.IDLE if length is not None and length <= answered else NextAction.WAIT


def next_stop(steps: int, end: int, *periods: int) -> int:
    """Return the next batch at which a run at batch `steps` stops training.

    The result is the next multiple of a period or `end`, whichever is first, and at least `steps`.
    A period of 0 has no multiples.
    """
    stop = end
    for period in periods:
        if period:
            stop = min(stop, steps + period - steps % period)
    return max(steps, stop)
