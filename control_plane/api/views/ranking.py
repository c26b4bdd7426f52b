"""The best trials of an experiment, by the summaries it keeps of them: no trial's head is read."""

from collections import OrderedDict
from heapq import nsmallest
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.experiment_summaries import Summaries
from control_plane.api.views.rows import all_rows
from control_plane.dispatch.head import PARTS
from control_plane.dispatch.kinds import kind_at
from control_plane.state.table import Row, StateTable

EXPERIMENTS_MAX = 32
BEST_MAX = 50

Ranked = tuple[bool, float, int]
"""Whether a trial has no metric, its metric (less is better), its id: in order of rank."""


class Rankings:
    """The best trials of the experiments looked at last: a part of the summaries that has not
    changed is not read again. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[int, dict[str, tuple[int, list[Ranked]]]] = OrderedDict()

    def best(
        self, table: StateTable, experiment_id: int, trials: int, *, smaller_is_better: bool
    ) -> list[int]:
        """Ids of the at most `trials` (up to BEST_MAX) best ones; those without a metric, which
        come last, in the order of their ids.
        """
        address = addresses.experiment(experiment_id)
        first = f"{PARTS}trials/"
        rows = all_rows(table, address, first, f"{first}~")
        with self._lock:
            known = self._kept.get(experiment_id, {})
        parts = {}
        for row in rows:
            before = known.get(row.key.sort)
            is_known = before is not None and before[0] == row.revision
            ranked = before[1] if before and is_known else _ranked(row, smaller_is_better)
            parts[row.key.sort] = row.revision, ranked
        self._keep(experiment_id, parts)
        best = nsmallest(trials, (trial for _, ranked in parts.values() for trial in ranked))
        return [trial_id for _, _, trial_id in best]

    def _keep(self, experiment_id: int, parts: dict[str, tuple[int, list[Ranked]]]) -> None:
        with self._lock:
            self._kept[experiment_id] = parts
            self._kept.move_to_end(experiment_id)
            while len(self._kept) > EXPERIMENTS_MAX:
                self._kept.popitem(last=False)


def _ranked(row: Row, smaller_is_better: bool) -> list[Ranked]:
    part = kind_at(row.key.partition).decode_part(row.key.sort.removeprefix(PARTS), row.body)
    trials = part.trials if isinstance(part, Summaries) else ()
    sign = 1 if smaller_is_better else -1
    return nsmallest(
        BEST_MAX,
        ((trial.metric is None, sign * (trial.metric or 0.0), trial.trial_id) for trial in trials),
    )
