"""Void metric reports: reports of training that a later run of the trial discarded or repeated.

Two rules decide which values of a run are void (control_plane/actors/trial/lost_work.py):

1. Values for batches after the checkpoint that a later run started from.
2. Values whose name a later run reports again for the same batch, for example an evaluation of an
   older checkpoint.

The groups of the profiler count seconds instead of batches, and trials of older releases do not
record their runs. In both cases a third rule applies instead: the valid reports of a run end before
the first report of each later run.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from control_plane.actors.trial.lost_work import last_valid_batch
from control_plane.actors.trial.state import RunStart, TrialState
from control_plane.metrics.columns import Columns

PROFILER_GROUPS = frozenset(("cpu", "memory", "gpu", "disk", "network"))

Replaced = Mapping[str, AbstractSet[int]]
"""The steps at which later runs reported a metric again, by the name of the metric."""


class RunCuts(NamedTuple):
    """The limits up to which the reports of a trial's runs are valid.

    The reports of a run for steps after the start of a later run are void, because the later run
    repeats these steps. An epoch is the number of a run within the trial.
    """

    starts: tuple[RunStart, ...] | None = None
    """The start of each run; None for trials of older releases, which do not record starts."""

    def are_recorded(self, group: str) -> bool:
        """Return whether the starts of runs decide which reports of a group are valid.

        If False, the reports of a run end before the first report of each later run. False for the
        profiler's groups, which count seconds, and if starts are not recorded.
        """
        return self.starts is not None and group not in PROFILER_GROUPS

    def last_step(self, epoch: int) -> float:
        """Return the last step up to which the reports of a run are valid: the step from which the
        next run started.

        Infinite if no later run has a recorded start, for example in a trial of an older release.

        Args:
            epoch: the number of the run within the trial.
        """
        return last_valid_batch(self.starts or (), epoch)

    def last_repeat(self, epoch: int) -> float:
        """Return the last step at which a run can repeat valid values of earlier runs.

        Minus infinity for the first run. Infinite for a later run if starts are not recorded.

        Args:
            epoch: the number of the run within the trial.
        """
        return self.last_step(epoch - 1) if epoch > 1 else float("-inf")


def run_cuts(state: TrialState) -> RunCuts:
    """Return the limits of the valid reports of a trial's runs.

    The starts are None if the trial's settings do not discard lost metrics.
    """
    return RunCuts(state.run_starts if state.settings.discards_lost_metrics else None)


def cuts_by_first_steps(firsts: Mapping[int, float]) -> dict[int, float]:
    """Return the last valid step of each run, for a trial or group without recorded starts of runs.

    The reports of a run end before the first report of each later run.

    Args:
        firsts: the first reported step of each run, by epoch, which is the run's number within the
            trial.

    Returns:
        By epoch, the step before the lowest first step of all later runs; infinite for the last
        run. Empty without runs.
    """
    return {
        epoch: min((step for later, step in firsts.items() if later > epoch), default=float("inf"))
        - 1
        for epoch in firsts
    }


def join_repeats(repeats: Mapping[int, Iterable[Columns]], epoch: int) -> Replaced:
    """Return the names and steps that runs after `epoch` reported again. Empty without later runs.

    Args:
        repeats: the repeated reports of each run, by the run's epoch (its number within the trial).
        epoch: the epoch of the earlier run.
    """
    replaced: dict[str, set[int]] = {}
    for run_epoch, parts in repeats.items():
        if run_epoch <= epoch:
            continue
        for columns in parts:
            for name, steps in columns.steps_of_names().items():
                replaced.setdefault(name, set()).update(steps)
    return replaced
