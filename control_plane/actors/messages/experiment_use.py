"""The message to an experiment about the use of a trial's slots."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrialUsedLittle:
    """The slots of a trial have computed too little for too long."""

    number: int
    text: str
    """The mean use and the time, for users."""
    is_ended: bool
    """Whether the trial is ended therefore."""
