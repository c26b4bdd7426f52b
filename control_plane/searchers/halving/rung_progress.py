"""How far the trials of halvings have come: who stands in which rung, and with which result."""

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
    """Read the only bracket of a search; see ReadBrackets."""
    statuses = TrialStatuses(PrefixedBlobStore(blobs, "roster/"), ())
    return [_read_rungs(plan, blobs, statuses, range(len(trials)), trials, shown_max)]


def read_multi_bracket(
    plan: MultiBracketPlan,
    state: object,
    blobs: BlobStore,
    trials: Sequence[SearchedTrial],
    shown_max: int,
) -> list[BracketProgress]:
    """Read the brackets of a search that has several; see ReadBrackets."""
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
    """The trials of one bracket, whose last rung is `top`, with their `statuses`."""

    def __init__(
        self,
        statuses: TrialStatuses,
        members: Sequence[int],
        trials: Sequence[SearchedTrial],
        top: int,
    ) -> None:
        self.statuses = {trial: statuses.status_of(trial) for trial in members}
        self.trials = trials
        self.top = top

    def count_outcomes(self) -> list[dict[Outcome, int]]:
        """Count the trials of each rung by their outcome there."""
        # Few statuses differ: an outcome is looked up once for each of them.
        counts = Counter(
            (status, self.trials[trial].is_open) for trial, status in self.statuses.items()
        )
        found = [dict.fromkeys(Outcome, 0) for _ in range(self.top + 1)]
        for (status, is_open), count in counts.items():
            found[status.rung][_outcome(status, self.top, is_open=is_open)] += count
            for rung in range(status.rung):
                found[rung][Outcome.PROMOTED] += count
        return found

    def outcome_at(self, rung: int, trial: int) -> Outcome:
        """Return the outcome of a trial in a rung that it has come to."""
        status = self.statuses[trial]
        if status.rung > rung:
            return Outcome.PROMOTED
        return _outcome(status, self.top, is_open=self.trials[trial].is_open)


def _outcome(status: TrialStatus, top: int, *, is_open: bool) -> Outcome:
    """Return the outcome of a trial in the rung in which it stands."""
    if status.exited:
        return Outcome.EXITED
    if status.closed:
        return Outcome.FINISHED if status.rung == top else Outcome.STOPPED
    outcome = Outcome.WAITING if status.reported else Outcome.TRAINING
    return outcome.for_trial(is_open=is_open)


def _compared_trials(
    members: _Members, rung: int, ranking: Ranking, smaller_is_better: bool
) -> Iterator[RungTrial]:
    """Yield the trials of a rung in the order of its results, then those without one."""
    shown = set[int]()
    for result in ranking:
        status = members.statuses.get(result.trial)
        # A ranking that is read while it is written may be ahead of the trials.
        if status is not None and status.rung >= rung and result.metric != WORST_RESULT:
            shown.add(result.trial)
            metric = signed_metric(result.metric, smaller_is_better)
            yield RungTrial(result.trial, metric, members.outcome_at(rung, result.trial))
    for trial, status in members.statuses.items():
        if status.rung >= rung and trial not in shown:
            yield RungTrial(trial, None, members.outcome_at(rung, trial))


def _top_trials(members: _Members, smaller_is_better: bool) -> Iterator[RungTrial]:
    """Yield the trials of the last rung, which compares none: the best ones by what they reached in
    all.
    """
    found: list[RungTrial] = []
    for trial, status in members.statuses.items():
        if status.rung == members.top:
            outcome = members.outcome_at(members.top, trial)
            metric = members.trials[trial].metric if outcome is Outcome.FINISHED else None
            found.append(RungTrial(trial, metric, outcome))
    yield from sorted(found, key=lambda one: rank_key(one, smaller_is_better))
