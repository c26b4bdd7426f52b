"""The best trials of an experiment, by the summaries in it: no trial's own state is read."""

from collections import OrderedDict
from heapq import nsmallest
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.experiment.trial_summaries import Summaries
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import PARTS
from control_plane.queries.row_pages import read_rows
from control_plane.state.table import Row, StateTable

EXPERIMENTS_MAX = 32
BEST_MAX = 200

TrialRank = tuple[bool, float, int]
"""Orders trials by rank: true without a metric, the metric (less is better), the trial's id."""


class TrialRankings:
    """A cache of the best trials of some experiments: a part of the summaries that has not changed
    is not decoded again. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._cache: OrderedDict[int, dict[str, tuple[int, list[TrialRank]]]] = OrderedDict()

    def best(
        self, table: StateTable, experiment_id: int, trials: int, *, smaller_is_better: bool
    ) -> list[int]:
        """The ids of the at most `trials` (up to BEST_MAX) best ones; those without a metric, which
        come last, in the order of their ids.
        """
        address = addresses.experiment(experiment_id)
        first = f"{PARTS}trials/"
        rows = read_rows(table, address, first, f"{first}~")
        with self._lock:
            known = self._cache.get(experiment_id, {})
        parts = {}
        for row in rows:
            before = known.get(row.key.sort)
            is_known = before is not None and before[0] == row.revision
            ranks = before[1] if before and is_known else _rank_trials(row, smaller_is_better)
            parts[row.key.sort] = row.revision, ranks
        self._store(experiment_id, parts)
        best = nsmallest(trials, (trial for _, ranks in parts.values() for trial in ranks))
        return [trial_id for _, _, trial_id in best]

    def _store(self, experiment_id: int, parts: dict[str, tuple[int, list[TrialRank]]]) -> None:
        with self._lock:
            self._cache[experiment_id] = parts
            self._cache.move_to_end(experiment_id)
            while len(self._cache) > EXPERIMENTS_MAX:
                self._cache.popitem(last=False)


def _rank_trials(row: Row, smaller_is_better: bool) -> list[TrialRank]:
    part = actor_type_at(row.key.partition).decode_part(row.key.sort.removeprefix(PARTS), row.body)
    trials = part.trials if isinstance(part, Summaries) else ()
    sign = 1 if smaller_is_better else -1
    return nsmallest(
        BEST_MAX,
        ((trial.metric is None, sign * (trial.metric or 0.0), trial.trial_id) for trial in trials),
    )
