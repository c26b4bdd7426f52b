"""The suggester: answers the suggestion requests of experiments, one at a time for each search.

An experiment with an open request has a row in the partition `suggestions`. The experiment deletes
the row when the experiment processes the answer. If anything fails before that, a later pass makes
the suggestion again. A repeated answer has no effect. Failures are counted in memory, so a new
process starts at 0.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.experiment.suggestions import awaited_suggestion
from control_plane.actors.experiment.trial_summaries import Summaries, TrialSummary
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.engine import Engine
from control_plane.engine.head import PARTS
from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.searchers.method import SuggestedPoints, SuggestionFailed
from control_plane.searchers.methods.bayesian import HPARAMS_BLOBS, parse_hparams
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import StateTable, TableError
from control_plane.suggestions.availability import INSTALL_COMMAND
from control_plane.suggestions.model import Observation, Problem, Stage, suggest_point

log = logging.getLogger(__name__)

SENDER = "suggester"
TRIES_MAX = 4
"""The number of tries for a request. After that, the search samples a random point instead.

After such a failure, each later request of the search has only one try until a try succeeds.
"""
PAUSE_MS_FIRST = 1_000
PAUSE_MS_MAX = PAUSE_MS_FIRST << 8
REASON_CHARACTERS_MAX = 200

SuggestionModel = Callable[[Problem, Sequence[Observation], int], Mapping[str, object]]
"""A function that suggests hyperparameters; see `suggest_point`."""


@dataclass
class _PendingSuggestion:
    """The open request of a search."""

    number: int
    """The number of the request."""
    tries: int = 0
    """The number of tries so far."""
    due_ms: int = 0
    """The time of the next try, in ms of the engine's clock."""


class Suggester:
    """Answers the open requests of all experiments. Concurrent suggesters are harmless, but repeat
    the same work.
    """

    def __init__(self, engine: Engine, model: SuggestionModel = suggest_point) -> None:
        self._engine = engine
        self._model = model
        self._pending: dict[int, _PendingSuggestion] = {}

    def suggest_all(self) -> bool:
        """Try to answer one request of every waiting search. Return whether any answer was sent.

        An answer is a suggestion or, after TRIES_MAX failed tries, a failure. Requests that are not
        due yet are skipped.

        Raises:
            TableError: the state table does not respond. Call again later.
        """
        waiting = list(_waiting_experiments(self._engine.table))
        for experiment_id in self._pending.keys() - waiting:
            del self._pending[experiment_id]
        return any([self._try_suggest_for(experiment_id) for experiment_id in waiting])

    def _try_suggest_for(self, experiment_id: int) -> bool:
        """Call `_suggest_for`. Return False and log the error if the rows of the experiment cannot
        be read, so that the other searches are not blocked.
        """
        try:
            return self._suggest_for(experiment_id)
        except ValueError:
            log.exception("no suggestion: experiment %d cannot be read", experiment_id)
            return False

    def _suggest_for(self, experiment_id: int) -> bool:
        """Try to answer the open request of an experiment. Return whether an answer was sent."""
        address = addresses.experiment(experiment_id)
        experiment = self._engine.read_state(address)
        number = awaited_suggestion(experiment) if isinstance(experiment, ExperimentState) else None
        if number is None:
            return False
        pending = self._pending_suggestion(experiment_id, number)
        now_ms = self._engine.clock()
        # A later due time than any pause shows that the clock was set back.
        if now_ms < pending.due_ms <= now_ms + PAUSE_MS_MAX:
            return False
        # The pause also applies after a success, while the experiment has not processed the answer.
        pending.due_ms = now_ms + min(PAUSE_MS_MAX, PAUSE_MS_FIRST << pending.tries)
        pending.tries += 1
        answer = self._make_answer(address, experiment, pending)
        if answer is not None:
            self._engine.post_message(address, answer, sender=SENDER)
        return answer is not None

    def _pending_suggestion(self, experiment_id: int, number: int) -> _PendingSuggestion:
        """Return the record of request `number`. A new request replaces the experiment's old one.

        A new request has one try left if the previous request used all tries.
        """
        pending = self._pending.get(experiment_id)
        if pending is None or pending.number != number:
            gave_up = pending is not None and pending.tries >= TRIES_MAX
            pending = _PendingSuggestion(number, tries=TRIES_MAX - 1 if gave_up else 0)
            self._pending[experiment_id] = pending
        return pending

    def _make_answer(
        self, address: str, experiment: ExperimentState, pending: _PendingSuggestion
    ) -> SuggestedPoints | SuggestionFailed | None:
        """Return a suggestion or, if all tries failed, the failure. None: try again later."""
        try:
            problem, observations = _load_problem(self._engine, address, experiment)
            point = self._model(problem, observations, pending.number)
        except TableError:
            raise
        except ImportError as error:
            reason = f"Optuna cannot be used on this server ({error}): {INSTALL_COMMAND}"
        except Exception as error:
            log.exception("suggestion %d for %s failed", pending.number, address)
            reason = f"{type(error).__name__}: {error}"
        else:
            pending.tries = 0
            return SuggestedPoints(pending.number, (point,))
        if pending.tries < TRIES_MAX:
            return None
        return SuggestionFailed(pending.number, _one_line(reason))


def to_problem(definition: Definition, experiment: ExperimentState) -> Problem:
    """Return the settings of an experiment's search for the model."""
    plan = definition.plan
    maxval_drawn = plan.method.rules.maxval_drawn
    return Problem(plan.space, maxval_drawn, experiment.smaller_is_better, plan.seed)


def to_observations(
    hparams_blobs: Iterable[bytes], summaries: Iterable[TrialSummary]
) -> list[Observation]:
    """Return the observations of an experiment's trials.

    Args:
        hparams_blobs: the trials' hyperparameters; see BayesianSearch.on_trial_created.
        summaries: the trials' summaries. Both arguments are in the order of the trials' numbers.
    """
    all_hparams = (hparams for blob in hparams_blobs for hparams in parse_hparams(blob))
    # A trial that was created between the reads of the two arguments is only in one of the two.
    trials = zip(all_hparams, summaries, strict=False)
    return [_to_observation(hparams, summary) for hparams, summary in trials]


def _waiting_experiments(table: StateTable) -> Iterator[int]:
    """Yield the ids of the experiments with an open request, from the partition `suggestions`."""
    return (int(row.key.sort) for row in read_rows(table, SUGGESTION.partition))


def _load_problem(
    engine: Engine, address: str, experiment: ExperimentState
) -> tuple[Problem, list[Observation]]:
    """Read the experiment's parts, and return the problem and the observations for the model.

    The parts may be newer than `experiment`.
    """
    definition = engine.read_part(address, "definition")
    assert isinstance(definition, Definition)
    blobs = _read_numbered_parts(engine.table, address, f"search/{HPARAMS_BLOBS}")
    hparams_blobs = [blob for _, blob in sorted(blobs)]
    summaries = [
        summary
        for _, part in sorted(_read_numbered_parts(engine.table, address, "trials/"))
        for summary in _decode_summaries(address, part)
    ]
    return to_problem(definition, experiment), to_observations(hparams_blobs, summaries)


def _read_numbered_parts(
    table: StateTable, address: str, prefix: str
) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each part named `prefix` and a number."""
    for row in read_rows(table, address, f"{PARTS}{prefix}", f"{PARTS}{prefix}~"):
        yield int(row.key.sort.rpartition("/")[2]), row.body


def _decode_summaries(address: str, body: bytes) -> tuple[TrialSummary, ...]:
    part = actor_type_at(address).decode_part("trials/", body)
    assert isinstance(part, Summaries)
    return part.trials


def _to_observation(hparams: Mapping[str, object], summary: TrialSummary) -> Observation:
    """Return the observation of a trial from the hyperparameters and the summary."""
    if summary.reached:
        return Observation(hparams, Stage.COMPLETE, summary.metric)
    stage = Stage.STOPPED if summary.status else Stage.RUNNING
    return Observation(hparams, stage, summary.metric)


def _one_line(text: str) -> str:
    """Return the text without line breaks, cut after REASON_CHARACTERS_MAX characters."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS_MAX else line[:REASON_CHARACTERS_MAX] + "..."
