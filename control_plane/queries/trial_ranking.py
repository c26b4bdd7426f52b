"""Ranking of an experiment's trials by metric.

The metrics come from the experiment's trial summaries, so that no trial's own state is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.experiment.trial_summaries import Summaries
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, PARTS
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Key, Row, StateTable

# The most trials in the cache over all experiments, of about 150 bytes each.
KEPT_TRIALS_MAX = 300_000
BEST_MAX = 200

TrialRank = tuple[bool, float, int]
"""Sort key of a trial, best first.

The fields: whether the trial has no metric; the metric, negated if larger is better; the trial's
id.
"""


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The ranks of an experiment's trials."""

    revision: int
    """The revision of the experiment's head at which the ranks were read."""
    parts: dict[str, tuple[int, list[TrialRank]]]
    """For each part of the summaries, by sort key, its revision and the ranks of its trials."""

    def ranks(self) -> Iterable[TrialRank]:
        """Yield the ranks of the trials of all parts, in no order."""
        return (trial for _, ranks in self.parts.values() for trial in ranks)


class TrialRankings:
    """Cache of trial rankings. Safe to share between threads.

    While an experiment's head does not change, only the head is read. After a change, all parts of
    the summaries are read, and only changed parts are decoded.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[int, _Ranking] = BoundedCache(KEPT_TRIALS_MAX)

    def best(
        self, table: StateTable, experiment_id: int, trials: int, *, smaller_is_better: bool
    ) -> list[int]:
        """Return the ids of the experiment's best trials, best first.

        Trials without a metric come last, by id. Empty for an experiment that does not exist.

        Args:
            table: the state table.
            experiment_id: the experiment.
            trials: the most ids to return, at most BEST_MAX.
            smaller_is_better: whether smaller metrics are better.
        """
        # Read the head before the summaries. A summary that changes in between is then read again
        # by the next call.
        head = table.get(Key(addresses.experiment(experiment_id), HEAD))
        revision = head.revision if head else 0
        with self._lock:
            ranking = self._kept.find(experiment_id)
        if ranking is None or ranking.revision != revision:
            known = {} if ranking is None else ranking.parts
            parts = _rank_parts(table, experiment_id, known, smaller_is_better)
            ranking = _Ranking(revision, parts)
            weight = sum(len(ranks) for _, ranks in parts.values())
            with self._lock:
                self._kept.keep(experiment_id, ranking, weight)
        return [trial_id for _, _, trial_id in nsmallest(trials, ranking.ranks())]


def _rank_parts(
    table: StateTable,
    experiment_id: int,
    known: dict[str, tuple[int, list[TrialRank]]],
    smaller_is_better: bool,
) -> dict[str, tuple[int, list[TrialRank]]]:
    """Read the summaries and return the revision and ranks of each part, by sort key.

    Parts whose revision is that in `known` are taken from `known`. Return {} without summaries.
    """
    first = f"{PARTS}trials/"
    parts = {}
    for row in read_rows(table, addresses.experiment(experiment_id), first, f"{first}~"):
        before = known.get(row.key.sort)
        is_known = before is not None and before[0] == row.revision
        ranks = before[1] if before and is_known else _rank_trials(row, smaller_is_better)
        parts[row.key.sort] = row.revision, ranks
    return parts


def _rank_trials(row: Row, smaller_is_better: bool) -> list[TrialRank]:
    """Return the ranks of at most BEST_MAX trials of a part of the trial summaries, best first.

    Trials without a metric come last, by id; equal trials are in the order of ids.
    """
    part = actor_type_at(row.key.partition).decode_part(row.key.sort.removeprefix(PARTS), row.body)
    trials = part.trials if isinstance(part, Summaries) else ()
    sign = 1 if smaller_is_better else -1
    return nsmallest(
        BEST_MAX,
        ((trial.metric is None, sign * (trial.metric or 0.0), trial.trial_id) for trial in trials),
    )
