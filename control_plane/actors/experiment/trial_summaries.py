"""Summaries of an experiment's trials, in parts of the experiment's state with 64 trials each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.actors.records import Status
from control_plane.actors.step import StepContext

SUMMARIES_PER_PART = 64


class TrialSummary(NamedTuple):
    """The experiment's summary of a trial."""

    trial_id: int
    """The cluster-wide id of the trial."""
    status: str
    """The final status in `run_generation`. "": the trial has not ended, or a completed trial was
    reopened.
    """
    units: float
    """The latest reported length of training, in the configured unit."""
    metric: float | None
    """The best searcher metric, or None."""
    run_generation: int = 0
    """The run generation in which the trial ended."""
    reached: int = 0
    """The latest assigned length at which the trial validated, in the configured unit."""

    def is_open(self, run_generation: int) -> bool:
        """Return whether the trial has not ended in `run_generation`.

        In a later generation than that of its end, every trial that did not complete is open again,
        without a change of the summary.

        Args:
            run_generation: the present run generation of the experiment.
        """
        if not self.status:
            return True
        return self.run_generation < run_generation and self.status != Status.COMPLETED


@dataclass(frozen=True, slots=True)
class Summaries:
    """The part `trials/K`: the summaries of the trials from number K * SUMMARIES_PER_PART on."""

    trials: tuple[TrialSummary, ...] = ()


def part_name(number: int) -> str:
    """Return the name of the experiment's part, a stored row, with the summary of the trial with
    this number. An example is `trials/0`.
    """
    return f"trials/{number // SUMMARIES_PER_PART}"


def summary_of(number: int, context: StepContext) -> TrialSummary | None:
    """Return the summary of the trial with this number. Return None for an unknown number."""
    part = context.part(part_name(number), Summaries)
    place = number % SUMMARIES_PER_PART
    return part.trials[place] if part and 0 <= place < len(part.trials) else None


def open_summary(number: int, run_generation: int, context: StepContext) -> TrialSummary | None:
    """Return the summary of a trial that is open in a run generation of the experiment (`is_open`).

    Return None for an ended trial and for an unknown number.
    """
    summary = summary_of(number, context)
    return summary if summary is not None and summary.is_open(run_generation) else None


def add_summary(number: int, trial_id: int, context: StepContext) -> None:
    """Append the summary of the next trial to the part of the trial's number.

    Callers add trials in the order of their numbers.
    """
    before = context.part(part_name(number), Summaries) or Summaries()
    summary = TrialSummary(trial_id, "", 0.0, None)
    context.write_part(part_name(number), Summaries((*before.trials, summary)))


def replace_summary(number: int, summary: TrialSummary, context: StepContext) -> None:
    """Replace the summary of a trial. The trial must have a summary already."""
    part = context.part(part_name(number), Summaries)
    assert part is not None
    place = number % SUMMARIES_PER_PART
    trials = (*part.trials[:place], summary, *part.trials[place + 1 :])
    context.write_part(part_name(number), Summaries(trials))


def summaries(count: int, context: StepContext) -> Iterator[TrialSummary]:
    """Iterate over the summaries of the first `count` trials, by number.

    Missing parts are skipped.
    """
    for first in range(0, count, SUMMARIES_PER_PART):
        part = context.part(part_name(first), Summaries)
        yield from part.trials if part else ()
