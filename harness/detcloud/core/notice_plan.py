"""The choice of a trial whose machine is about to end: what of its work can still be stored.

A choice follows from what is known at that moment alone, and each comes with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# The end of the process and the agent's last report come after the checkpoint.
RESERVE_SECONDS = 2.0
# No upload is as fast as the ones before it were: it may take so much longer.
SLOWNESS_MAX = 1.25
# An upload that takes longer than expected is taken to need this share of that time still.
OVERDUE_SHARE = 0.1


class Choice(Enum):
    """The ways of a trial to use the time after a notice.

    `SAVE`: store the state as it is now, after an upload that runs. `FINISH`: finish the upload
    that runs, since there is no time for another one. `KEEP`: leave at once, with the last
    checkpoint that is stored.
    """

    SAVE = "save now"
    FINISH = "finish the running upload"
    KEEP = "keep the last checkpoint"


class Outcome(Enum):
    """How a notice ended: in a checkpoint begun after it, in one begun before it, or in neither."""

    SAVED = "saved"
    FINISHED = "finished"
    KEPT = "kept"


@dataclass(frozen=True)
class Situation:
    """The facts at a notice. Seconds, bytes, bytes per second; None where something is unknown.

    `seconds_left` is negative where the deadline has passed. `state_bytes` is what a new checkpoint
    would have, `is_saved` that it would have nothing new. `running_bytes` is None unless an upload
    runs, which began `running_seconds` ago.
    """

    seconds_left: float
    is_saved: bool
    state_bytes: int | None = None
    bytes_per_second: float | None = None
    running_bytes: int | None = None
    running_seconds: float = 0.0


def choose_action(now: Situation) -> tuple[Choice, str]:
    """The choice and the reason for it, as a line of the log.

    Where the rate or the time is unknown all is tried: who loses the race still has the checkpoint
    before, as nothing half stored counts.
    """
    runs = now.running_bytes is not None
    if now.is_saved:
        if not runs:
            return Choice.KEEP, "the latest checkpoint has all of the work"
        return _finish_in_time(now, "the upload that runs has all of the work")
    if now.bytes_per_second is None:
        return Choice.SAVE, "no checkpoint was stored before, so nobody knows how long it takes"
    if now.seconds_left <= 0:
        return Choice.SAVE, "the deadline has passed, and each moment may still do"
    running, own = _running_seconds(now), _seconds(now, now.state_bytes or 0)
    have = max(0.0, now.seconds_left - RESERVE_SECONDS)
    rate = f"at {now.bytes_per_second / 1e6:,.1f} MB/s"
    if running + own <= have:
        behind = f" behind an upload that needs {running:.1f} s more" if runs else ""
        text = f"{_megabytes(now.state_bytes)} {rate} take {own:.1f} s{behind}"
        return Choice.SAVE, f"{text}, and there are {have:.1f} s"
    text = f"{_megabytes(now.state_bytes)} {rate} would take {running + own:.1f} s"
    text = f"{text}, and there are {have:.1f} s"
    if not runs:
        return Choice.KEEP, text
    return _finish_in_time(now, f"{text}; the upload that runs is older")


def _finish_in_time(now: Situation, text: str) -> tuple[Choice, str]:
    """The choice to finish the running upload if there is the time, else to leave at once."""
    seconds, have = _running_seconds(now), max(0.0, now.seconds_left - RESERVE_SECONDS)
    if now.seconds_left <= 0 or seconds <= have:
        return Choice.FINISH, f"{text} and needs {seconds:.1f} s more"
    return Choice.KEEP, f"{text} and would need {seconds:.1f} s more, but there are {have:.1f} s"


def _running_seconds(now: Situation) -> float:
    """The seconds that the running upload needs still; 0 without one, or of unknown rate."""
    if now.running_bytes is None or now.bytes_per_second is None:
        return 0.0
    expected = _seconds(now, now.running_bytes)
    return max(expected - now.running_seconds, OVERDUE_SHARE * expected)


def _seconds(now: Situation, size: int) -> float:
    assert now.bytes_per_second is not None
    return SLOWNESS_MAX * size / now.bytes_per_second


def _megabytes(size: int | None) -> str:
    return f"{(size or 0) / 1e6:,.1f} MB"
