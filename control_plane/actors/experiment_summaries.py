"""What an experiment knows of its trials: a line for each, in parts of 64."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.actors.records import Status
from control_plane.actors.step import Turn

SUMMARIES_PER_PART = 64


class TrialSummary(NamedTuple):
    """One trial. `status` is its end in the experiment's life `life`, "" while there was none;
    `units` as last reported, `reached` the latest length of the search's that it validated at.
    """

    trial_id: int
    status: str
    units: float
    metric: float | None
    life: int = 0
    reached: int = 0

    def is_open(self, life: int) -> bool:
        """Whether the trial has still to end. In a later life of the experiment every trial that
        did not complete is open again, without a word about it here.
        """
        if not self.status:
            return True
        return self.life < life and self.status != Status.COMPLETED


@dataclass(frozen=True, slots=True)
class Summaries:
    """Part `trials/K`: the trials numbered from K * SUMMARIES_PER_PART on."""

    trials: tuple[TrialSummary, ...] = ()


def part_name(number: int) -> str:
    """The part that holds the summary of a trial."""
    return f"trials/{number // SUMMARIES_PER_PART}"


def summary_of(number: int, turn: Turn) -> TrialSummary | None:
    """The summary of the trial of that number."""
    part = turn.part(part_name(number), Summaries)
    place = number % SUMMARIES_PER_PART
    return part.trials[place] if part and 0 <= place < len(part.trials) else None


def open_summary(number: int, life: int, turn: Turn) -> TrialSummary | None:
    """The same if the trial has still to end."""
    found = summary_of(number, turn)
    return found if found is not None and found.is_open(life) else None


def add_summary(number: int, trial_id: int, turn: Turn) -> None:
    """Adds the next trial."""
    known = turn.part(part_name(number), Summaries) or Summaries()
    summary = TrialSummary(trial_id, "", 0.0, None)
    turn.write_part(part_name(number), Summaries((*known.trials, summary)))


def summarise(number: int, summary: TrialSummary, turn: Turn) -> None:
    """Replaces the summary of a trial."""
    part = turn.part(part_name(number), Summaries)
    assert part is not None
    place = number % SUMMARIES_PER_PART
    trials = (*part.trials[:place], summary, *part.trials[place + 1 :])
    turn.write_part(part_name(number), Summaries(trials))


def summaries(count: int, turn: Turn) -> Iterator[TrialSummary]:
    """Those of the first `count` trials, by number."""
    for first in range(0, count, SUMMARIES_PER_PART):
        part = turn.part(part_name(first), Summaries)
        yield from part.trials if part else ()
