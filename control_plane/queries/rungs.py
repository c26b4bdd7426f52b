"""The brackets and rungs of a search, or its rounds, with the progress of its trials."""

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
from control_plane.queries.row_pages import read_rows
from control_plane.searchers.bracket_progress import BracketProgress, Outcome, SearchedTrial
from control_plane.searchers.registry import spec_of_plan
from control_plane.services import Services
from control_plane.state.table import Key

# The trials that one request looks through, and those that one answer lists in all rungs together.
TRIALS_MAX = 50_000
LISTED_MAX = 2_000
# Rungs of a bracket: of population-based training with more rounds the latest are listed.
RUNGS_MAX = 200
# Bytes of the answers that are kept, of up to 200 KB each.
ANSWER_BYTES_MAX = 6_400_000


class RungTrial(Answer):
    """A trial in a rung, with its metric there, null where it has none."""

    id: int
    number: int
    metric: float | None
    outcome: Outcome


class Rung(Answer):
    """A rung; docs/api.md has the fields."""

    number: int
    length: int
    reached: int
    outcomes: dict[Outcome, int]
    best_metric: float | None
    trials: list[RungTrial]


class Bracket(Answer):
    """Trials that are compared with each other; the rungs go up."""

    rungs: list[Rung]


class Rungs(Answer):
    """The brackets of a search; none where its trials are not compared at rungs."""

    unit: str
    metric: str
    smaller_is_better: bool
    brackets: list[Bracket]


class RungsCache:
    """The answers about some experiments' rungs that were given last, each good as long as nothing
    changes in its experiment. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[tuple[int, int], tuple[int, bytes]]
        self._kept = BoundedCache(ANSWER_BYTES_MAX)

    def list_rungs_json(self, services: Services, experiment_id: int, shown_max: int) -> bytes:
        """Encode the Rungs of an experiment; raises as `list_rungs` does."""
        key = experiment_id, shown_max
        # Who asks meanwhile waits: all compute on the same interpreter.
        with self._lock:
            # Before anything else is read: what is newer than this is computed again next time.
            head = services.table.get(Key(addresses.experiment(experiment_id), HEAD))
            revision = head.revision if head else 0
            known = self._kept.find(key)
            if known is None or known[0] != revision:
                answer = list_rungs(services, experiment_id, shown_max)
                known = revision, answer.model_dump_json().encode()
                self._kept.keep(key, known, len(known[1]))
            return known[1]


def list_rungs(services: Services, experiment_id: int, shown_max: int) -> Rungs:
    """List the brackets of the experiment's search with their rungs, and of each rung at most so
    many trials.

    Raises:
        RequestError: not_found; invalid for a search of too many trials.
    """
    state, definition = get_experiment(services, experiment_id)
    brackets: list[Bracket] = []
    plan = definition.plan.method
    read_brackets = spec_of_plan(plan).read_brackets
    if read_brackets is not None:
        if state.trials > TRIALS_MAX:
            text = f"has {state.trials} trials; rungs are listed for at most {TRIALS_MAX}"
            raise invalid("experiment_id", text, "list its trials instead")
        summaries = _summaries(services, experiment_id, state.trials)
        trials = [SearchedTrial(one.metric, one.is_open(state.life)) for one in summaries]
        blobs = _StoredBlobs(services, experiment_id)
        found = read_brackets(plan, state.search.method, blobs, trials, shown_max)
        rungs = sum(min(len(bracket.rungs), RUNGS_MAX) for bracket in found)
        listed = min(shown_max, max(1, LISTED_MAX // max(1, rungs)))
        brackets = [Bracket(rungs=list(_rungs(bracket, summaries, listed))) for bracket in found]
    return Rungs(
        unit=state.time_metric or definition.settings.lengths.unit,
        metric=state.metric,
        smaller_is_better=state.smaller_is_better,
        brackets=brackets,
    )


def _rungs(
    bracket: BracketProgress, summaries: Sequence[TrialSummary], listed: int
) -> Iterator[Rung]:
    first = max(0, len(bracket.rungs) - RUNGS_MAX)
    for number, rung in enumerate(bracket.rungs[first:], first):
        outcomes = {outcome: rung.outcomes.get(outcome, 0) for outcome in Outcome}
        trials = [
            RungTrial(
                id=summaries[one.trial].trial_id,
                number=one.trial,
                metric=one.metric,
                outcome=one.outcome,
            )
            for one in rung.trials[:listed]
        ]
        yield Rung(
            number=number,
            length=rung.length,
            reached=sum(outcomes.values()),
            outcomes=outcomes,
            best_metric=rung.best_metric,
            trials=trials,
        )


def _summaries(services: Services, experiment_id: int, count: int) -> list[TrialSummary]:
    """The summaries of the experiment's first `count` trials, in the order of their numbers."""
    address = addresses.experiment(experiment_id)
    first = f"{PARTS}trials/"
    parts: dict[int, Summaries] = {}
    for row in read_rows(services.table, address, first, f"{first}~"):
        name = row.key.sort.removeprefix(PARTS)
        part = actor_type_at(address).decode_part(name, row.body)
        if isinstance(part, Summaries):
            parts[int(name.rpartition("/")[2])] = part
    found = [trial for number in sorted(parts) for trial in parts[number].trials]
    return found[:count]


class _StoredBlobs:
    """The stored blobs of a search, for reading only: all those of a folder at its first read."""

    def __init__(self, services: Services, experiment_id: int) -> None:
        self._table = services.table
        self._address = addresses.experiment(experiment_id)
        self._folders: dict[str, dict[str, bytes]] = {}

    def read(self, name: str) -> bytes | None:
        """Read a blob; see BlobStore."""
        folder, _, rest = name.rpartition("/")
        if folder not in self._folders:
            first = f"{PARTS}search/{folder}/"
            rows = read_rows(self._table, self._address, first, f"{first}~")
            self._folders[folder] = {row.key.sort.removeprefix(first): row.body for row in rows}
        return self._folders[folder].get(rest)

    def write(self, name: str, blob: bytes) -> None:
        """Raise TypeError: these blobs are only read."""
        raise TypeError(f"{name} is read-only here")
