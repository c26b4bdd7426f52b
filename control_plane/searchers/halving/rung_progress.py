"""The progress of halvings: the trials in each rung, with results and outcomes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from control_plane.searchers.blob_store import BlobStore, PrefixedBlobStore
from control_plane.searchers.bracket_progress import (
    BracketProgress,
    Outcome,
    RungProgress,
    RungTrial,
    SearchedTrial,
    rank_key,
)
from control_plane.searchers.halving.bracket import RungPlan
from control_plane.searchers.halving.multi_bracket import BracketPlan, MultiBracketPlan
from control_plane.searchers.halving.ranking import Ranking
from control_plane.searchers.halving.rungs import WORST_RESULT, signed_metric
from control_plane.searchers.halving.trial_statuses import TrialStatus, TrialStatuses


def read_bracket(
    plan: BracketPlan,
    state: object,
    blobs: BlobStore,
    trials: Sequence[SearchedTrial],
    shown_max: int,
) -> list[BracketProgress]:
    """Read the progress of a search with a single bracket; see ReadBrackets."""
    statuses = TrialStatuses(PrefixedBlobStore(blobs, "roster/"), ())
    return [_read_rungs(plan, blobs, statuses, range(len(trials)), trials, shown_max)]


def read_multi_bracket(
    plan: MultiBracketPlan,
    state: object,
    blobs: BlobStore,
    trials: Sequence[SearchedTrial],
    shown_max: int,
) -> list[BracketProgress]:
    """Read the progress of a search with several brackets; see ReadBrackets."""
    first = [bracket.first_trials for bracket in plan.brackets]
    statuses = TrialStatuses(PrefixedBlobStore(blobs, "roster/"), first)
    members: list[list[int]] = [[] for _ in plan.brackets]
    for trial in range(len(trials)):
        members[statuses.bracket_of(trial)].append(trial)
    return [
        _read_rungs(
            bracket, PrefixedBlobStore(blobs, f"{number}/"), statuses, own, trials, shown_max
        )
        for number, (bracket, own) in enumerate(zip(plan.brackets, members, strict=True))
    ]


def _read_rungs(
    plan: RungPlan,
    blobs: BlobStore,
    statuses: TrialStatuses,
    members: Sequence[int],
    trials: Sequence[SearchedTrial],
    shown_max: int,
) -> BracketProgress:
    """Read the progress of one bracket.

    Args:
        blobs: the blobs of the bracket.
        members: the numbers of the bracket's trials.
        trials: all trials of the search, by number.
        shown_max: the largest number of trials to return for each rung.
    """
    lengths = plan.lengths
    members_read = _Members(statuses, members, trials, len(lengths) - 1)
    rungs: list[RungProgress] = []
    for rung, outcomes in enumerate(members_read.count_outcomes()):
        if rung == members_read.top:
            shown = _top_trials(members_read, plan.smaller_is_better)
        else:
            ranking = Ranking(blobs, f"rung{rung}")
            shown = _compared_trials(members_read, rung, ranking, plan.smaller_is_better)
        some = tuple(islice(shown, shown_max))
        best = some[0].metric if some else None
        rungs.append(RungProgress(lengths[rung], outcomes, best, some))
    return BracketProgress(tuple(rungs))


class _Members:
    """The trials of one bracket."""

    def __init__(
        self,
        statuses: TrialStatuses,
        members: Sequence[int],
        trials: Sequence[SearchedTrial],
        top: int,
    ) -> None:
        """Read the statuses of the bracket's trials.

        Args:
            members: the numbers of the bracket's trials.
            trials: all trials of the search, by number.
            top: the index of the last rung.
        """
        self.statuses = {trial: statuses.status_of(trial) for trial in members}
        self.trials = trials
        self.top = top

    def count_outcomes(self) -> list[dict[Outcome, int]]:
        """Return the number of trials with each outcome, for each rung from the first."""
        # Few statuses differ, so each distinct status is converted to an outcome only once.
        trials_by_status = Counter(
            (status, self.trials[trial].is_open) for trial, status in self.statuses.items()
        )
        counts = [dict.fromkeys(Outcome, 0) for _ in range(self.top + 1)]
        for (status, is_open), count in trials_by_status.items():
            counts[status.rung][_outcome(status, self.top, is_open=is_open)] += count
            for rung in range(status.rung):
                counts[rung][Outcome.PROMOTED] += count
        return counts

    def outcome_at(self, rung: int, trial: int) -> Outcome:
        """Return a trial's outcome in a rung: PROMOTED if the trial is in a later rung.

        Otherwise, return the outcome in the trial's current rung: EXITED, FINISHED, STOPPED,
        WAITING or TRAINING.

        Args:
            rung: the index of a rung that the trial has reached.
            trial: the trial's number within the search. Raise KeyError if it is not in the
                bracket.
        """
        status = self.statuses[trial]
        if status.rung > rung:
            return Outcome.PROMOTED
        return _outcome(status, self.top, is_open=self.trials[trial].is_open)


def _outcome(status: TrialStatus, top: int, *, is_open: bool) -> Outcome:
    """Return the outcome of a trial in the trial's current rung."""
    if status.exited:
        return Outcome.EXITED
    if status.closed:
        return Outcome.FINISHED if status.rung == top else Outcome.STOPPED
    outcome = Outcome.WAITING if status.reported else Outcome.TRAINING
    return outcome.for_trial(is_open=is_open)


def _compared_trials(
    members: _Members, rung: int, ranking: Ranking, smaller_is_better: bool
) -> Iterator[RungTrial]:
    """Yield the trials that reached a rung: the best result first, trials without a result last.

    For any rung but the last.
    """
    shown = set[int]()
    for result in ranking:
        status = members.statuses.get(result.trial)
        # The ranking may be newer than the statuses: both are read while the search writes.
        if status is not None and status.rung >= rung and result.metric != WORST_RESULT:
            shown.add(result.trial)
            metric = signed_metric(result.metric, smaller_is_better)
            yield RungTrial(result.trial, metric, members.outcome_at(rung, result.trial))
    for trial, status in members.statuses.items():
        if status.rung >= rung and trial not in shown:
            yield RungTrial(trial, None, members.outcome_at(rung, trial))


def _top_trials(members: _Members, smaller_is_better: bool) -> Iterator[RungTrial]:
    """Yield the trials of the last rung, sorted by the best metric of the whole training.

    The last rung has no ranking. Trials that have not finished have no metric and come last.
    """
    entries: list[RungTrial] = []
    for trial, status in members.statuses.items():
        if status.rung == members.top:
            outcome = members.outcome_at(members.top, trial)
            metric = members.trials[trial].metric if outcome is Outcome.FINISHED else None
            entries.append(RungTrial(trial, metric, outcome))
    yield from sorted(entries, key=lambda entry: rank_key(entry, smaller_is_better))
