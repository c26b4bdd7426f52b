"""Summaries of an experiment's trials, kept in parts of 64."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.actors.records import Status
from control_plane.actors.step import StepContext

SUMMARIES_PER_PART = 64


class TrialSummary(NamedTuple):
    """The summary of a trial. `status` is its final one in the run generation `life` of the
    experiment, "" where it never ended; `units` are as last reported, `reached` is the latest
    length of the search at which it validated.
    """

    trial_id: int
    status: str
    units: float
    metric: float | None
    life: int = 0
    reached: int = 0

    def is_open(self, life: int) -> bool:
        """Whether the trial has not ended in run generation `life`: in a later one every trial that
        did not complete is open again, without a change of its summary.
        """
        if not self.status:
            return True
        return self.life < life and self.status != Status.COMPLETED


@dataclass(frozen=True, slots=True)
class Summaries:
    """Part `trials/K`: the summaries of the trials numbered from K * SUMMARIES_PER_PART on."""

    trials: tuple[TrialSummary, ...] = ()


def part_name(number: int) -> str:
    """The part that holds the summary of a trial."""
    return f"trials/{number // SUMMARIES_PER_PART}"


def summary_of(number: int, context: StepContext) -> TrialSummary | None:
    """The summary of the trial with this number, None if there is none."""
    part = context.part(part_name(number), Summaries)
    place = number % SUMMARIES_PER_PART
    return part.trials[place] if part and 0 <= place < len(part.trials) else None


def open_summary(number: int, life: int, context: StepContext) -> TrialSummary | None:
    """The summary of a trial that is open in run generation `life`, None for any other."""
    summary = summary_of(number, context)
    return summary if summary is not None and summary.is_open(life) else None


def add_summary(number: int, trial_id: int, context: StepContext) -> None:
    """Add the summary of the next trial."""
    known = context.part(part_name(number), Summaries) or Summaries()
    summary = TrialSummary(trial_id, "", 0.0, None)
    context.write_part(part_name(number), Summaries((*known.trials, summary)))


def replace_summary(number: int, summary: TrialSummary, context: StepContext) -> None:
    """Replace the summary of a trial."""
    part = context.part(part_name(number), Summaries)
    assert part is not None
    place = number % SUMMARIES_PER_PART
    trials = (*part.trials[:place], summary, *part.trials[place + 1 :])
    context.write_part(part_name(number), Summaries(trials))


def summaries(count: int, context: StepContext) -> Iterator[TrialSummary]:
    """The summaries of the first `count` trials, by number."""
    for first in range(0, count, SUMMARIES_PER_PART):
        part = context.part(part_name(first), Summaries)
        yield from part.trials if part else ()
