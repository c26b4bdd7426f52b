"""Query of a search's brackets and rungs, with the progress of the trials.

The rungs of population-based training are its rounds.
"""

from collections.abc import Iterator, Sequence
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.experiment.trial_summaries import Summaries, TrialSummary
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, PARTS
from control_plane.errors import invalid
from control_plane.queries.answer import Answer
from control_plane.queries.experiment import get_experiment
from control_plane.searchers.bracket_progress import BracketProgress, Outcome, SearchedTrial
from control_plane.searchers.registry import spec_of_plan
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Key

# The most trials that an answer lists over all rungs.
LISTED_MAX = 2_000
# The most rungs of a bracket that an answer lists: the last rungs. Only population-based training
# has more.
RUNGS_MAX = 200
# The most bytes of cached answers. An answer has up to 200 KB.
ANSWER_BYTES_MAX = 6_400_000


class RungTrial(Answer):
    """A trial's entry in a rung.

    `metric` is the trial's validation metric at the rung's length, or null.
    """

    id: int
    number: int
    metric: float | None
    outcome: Outcome


class Rung(Answer):
    """A rung of a bracket; docs/api.md describes the fields."""

    number: int
    length: int
    reached: int
    outcomes: dict[Outcome, int]
    best_metric: float | None
    trials: list[RungTrial]


class Bracket(Answer):
    """A bracket: trials that are compared with each other.

    `rungs` is sorted by number, the lowest rung first.
    """

    rungs: list[Rung]


class Rungs(Answer):
    """The brackets of a search.

    `brackets` is empty if the searcher does not compare trials at rungs.
    """

    unit: str
    metric: str
    smaller_is_better: bool
    brackets: list[Bracket]


class RungsCache:
    """Cache of the latest answers about rungs. Safe to share between threads.

    A cached answer is used until the experiment's head changes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[tuple[int, int], tuple[int, bytes]]
        self._kept = BoundedCache(ANSWER_BYTES_MAX)

    def list_rungs_json(self, services: Services, experiment_id: int, shown_max: int) -> bytes:
        """Return the JSON text of the experiment's `Rungs`, from the cache while the experiment is
        unchanged.

        Other threads wait while an answer is computed.

        Args:
            services: the services that read the state.
            experiment_id: the experiment.
            shown_max: the most trials to list in each rung, as in `list_rungs`.

        Raises:
            RequestError: not_found, if the experiment does not exist; invalid, if a search with
                rungs has more than `rung_trials_max` trials.
        """
        key = experiment_id, shown_max
        # Other callers wait. Parallel computations would not be faster, because all threads share
        # an interpreter.
        with self._lock:
            # Read the head first. A change after this read is seen by the next call.
            head = services.table.get(Key(addresses.experiment(experiment_id), HEAD))
            revision = head.revision if head else 0
            known = self._kept.find(key)
            if known is None or known[0] != revision:
                answer = list_rungs(services, experiment_id, shown_max)
                known = revision, answer.model_dump_json().encode()
                self._kept.keep(key, known, len(known[1]))
            return known[1]


def list_rungs(services: Services, experiment_id: int, shown_max: int) -> Rungs:
    """Return the brackets and rungs of the experiment's search.

    The list of brackets is empty for a searcher that does not compare trials at rungs.

    Args:
        services: the services that read the state.
        experiment_id: the experiment.
        shown_max: the most trials to list in each rung. Fewer are listed if all rungs together
            would list more than LISTED_MAX trials.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, if a search with rungs
            has more than `rung_trials_max` trials.
    """
    state, definition = get_experiment(services, experiment_id)
    brackets: list[Bracket] = []
    plan = definition.plan.method
    read_brackets = spec_of_plan(plan).read_brackets
    if read_brackets is not None:
        trials_max = services.limits.rung_trials_max
        if state.trials > trials_max:
            text = f"has {state.trials} trials; rungs are listed for at most {trials_max}"
            raise invalid("experiment_id", text, "list its trials instead")
        summaries = read_summaries(services, experiment_id, state.trials)
        trials = [
            SearchedTrial(trial.metric, trial.is_open(state.run_generation)) for trial in summaries
        ]
        blobs = StoredBlobs(services, experiment_id)
        progress = read_brackets(plan, state.search.method, blobs, trials, shown_max)
        rungs = sum(min(len(bracket.rungs), RUNGS_MAX) for bracket in progress)
        listed_max = min(shown_max, max(1, LISTED_MAX // max(1, rungs)))
        brackets = [
            Bracket(rungs=list(_rungs(bracket, summaries, listed_max))) for bracket in progress
        ]
    return Rungs(
        unit=state.time_metric or definition.settings.lengths.unit,
        metric=state.metric,
        smaller_is_better=state.smaller_is_better,
        brackets=brackets,
    )


def _rungs(
    bracket: BracketProgress, summaries: Sequence[TrialSummary], listed_max: int
) -> Iterator[Rung]:
    """Yield the last RUNGS_MAX rungs of a bracket, each with at most `listed_max` trials."""
    first = max(0, len(bracket.rungs) - RUNGS_MAX)
    for number, rung in enumerate(bracket.rungs[first:], first):
        outcomes = {outcome: rung.outcomes.get(outcome, 0) for outcome in Outcome}
        trials = [
            RungTrial(
                id=summaries[entry.trial].trial_id,
                number=entry.trial,
                metric=entry.metric,
                outcome=entry.outcome,
            )
            for entry in rung.trials[:listed_max]
        ]
        yield Rung(
            number=number,
            length=rung.length,
            reached=sum(outcomes.values()),
            outcomes=outcomes,
            best_metric=rung.best_metric,
            trials=trials,
        )


def read_summaries(services: Services, experiment_id: int, count: int) -> list[TrialSummary]:
    """Read the summaries of the experiment's first `count` trials, sorted by trial number."""
    address = addresses.experiment(experiment_id)
    first = f"{PARTS}trials/"
    parts: dict[int, Summaries] = {}
    for row in read_rows(services.table, address, first, f"{first}~"):
        name = row.key.sort.removeprefix(PARTS)
        part = actor_type_at(address).decode_part(name, row.body)
        if isinstance(part, Summaries):
            parts[int(name.rpartition("/")[2])] = part
    summaries = [trial for number in sorted(parts) for trial in parts[number].trials]
    return summaries[:count]


class StoredBlobs:
    """Read access to the stored blobs of a search.

    The first read of a blob reads all blobs of its folder; later reads of the folder use these.
    """

    def __init__(self, services: Services, experiment_id: int) -> None:
        self._table = services.table
        self._address = addresses.experiment(experiment_id)
        self._folders: dict[str, dict[str, bytes]] = {}

    def read(self, name: str) -> bytes | None:
        """Return the content of a blob, named FOLDER/NAME. Return None if the blob does not
        exist.
        """
        folder, _, rest = name.rpartition("/")
        if folder not in self._folders:
            first = f"{PARTS}search/{folder}/"
            rows = read_rows(self._table, self._address, first, f"{first}~")
            self._folders[folder] = {row.key.sort.removeprefix(first): row.body for row in rows}
        return self._folders[folder].get(rest)

    def write(self, name: str, blob: bytes) -> None:
        """Raise TypeError: a query does not write blobs."""
        raise TypeError(f"{name} is read-only here")
