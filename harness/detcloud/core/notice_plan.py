"""The choice of a trial whose machine is about to end: save, finish an upload, or leave.

The choice depends only on the facts at that moment, and includes its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# The end of the process and the agent's last report come after the checkpoint.
RESERVE_SECONDS = 2.0
# The factor by which an upload may take longer than at the rate of earlier uploads.
SLOWNESS_MAX = 1.25
# An upload that takes longer than expected is assumed to need this share of the expected time more.
OVERDUE_SHARE = 0.1


class Choice(Enum):
    """The options of a trial after a notice."""

    SAVE = "save now"
    """Store the present state, after a running upload."""
    FINISH = "finish the running upload"
    """Finish the running upload, because the time does not suffice for another upload."""
    KEEP = "keep the last checkpoint"
    """Leave at once, with the last stored checkpoint."""


class Outcome(Enum):
    """The result of a notice."""

    SAVED = "saved"
    """A checkpoint that was begun after the notice was stored."""
    FINISHED = "finished"
    """A checkpoint that was begun before the notice was stored after it."""
    KEPT = "kept"
    """No checkpoint was stored after the notice."""


@dataclass(frozen=True)
class Situation:
    """The facts at a notice."""

    seconds_left: float
    """The time until the deadline, at which the process is killed or the machine ends; negative
    afterwards.
    """
    is_saved: bool
    """Whether the latest checkpoint, stored or being stored, contains all of the work."""
    state_bytes: int | None = None
    """The expected size of a new checkpoint; None if unknown."""
    bytes_per_second: float | None = None
    """The rate at which earlier checkpoints were stored; None if unknown."""
    running_bytes: int | None = None
    """The size of the checkpoint that is being stored; None without a running upload."""
    running_seconds: float = 0.0
    """The time since the running upload began."""


def choose_action(now: Situation) -> tuple[Choice, str]:
    """Return the choice and the reason, a text for the log.

    SAVE: store a new checkpoint. FINISH: wait for the running upload, then leave. KEEP: leave at
    once, with the last stored checkpoint.

    If the work is saved, return KEEP. While the upload of the saved work still runs, return FINISH
    if the upload can end in time or the deadline has passed, else KEEP.

    If work is unsaved, return SAVE if the rate of uploads is unknown, the deadline has passed or a
    save can end in time. If not, return FINISH if a running upload can end in time, else KEEP.

    An attempt that fails loses nothing, because an incomplete checkpoint does not count.
    """
    runs = now.running_bytes is not None
    if now.is_saved:
        if not runs:
            return Choice.KEEP, "the latest checkpoint has all of the work"
        return _finish_in_time(now, "the upload that runs has all of the work")
    if now.bytes_per_second is None:
        return Choice.SAVE, "no checkpoint was stored before, so the duration of a save is unknown"
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
    """Return FINISH, with the reason, if the running upload can end before the deadline, else KEEP.

    FINISH: wait for the upload, then leave. KEEP: leave at once, with the last stored checkpoint.
    If the deadline has passed, or the rate of uploads is unknown, return FINISH. `text` begins the
    reason.
    """
    seconds, have = _running_seconds(now), max(0.0, now.seconds_left - RESERVE_SECONDS)
    if now.seconds_left <= 0 or seconds <= have:
        return Choice.FINISH, f"{text} and needs {seconds:.1f} s more"
    return Choice.KEEP, f"{text} and would need {seconds:.1f} s more, but there are {have:.1f} s"


def _running_seconds(now: Situation) -> float:
    """Return the time that the running upload still needs; 0 without an upload or a known rate."""
    if now.running_bytes is None or now.bytes_per_second is None:
        return 0.0
    expected = _seconds(now, now.running_bytes)
    return max(expected - now.running_seconds, OVERDUE_SHARE * expected)


def _seconds(now: Situation, size: int) -> float:
    """Return the longest time in which `size` bytes are stored at the known rate."""
    assert now.bytes_per_second is not None
    return SLOWNESS_MAX * size / now.bytes_per_second


def _megabytes(size: int | None) -> str:
    """Return a size in MB as text. None counts as 0."""
    return f"{(size or 0) / 1e6:,.1f} MB"
