"""The suggester: makes the suggestions that experiments have a row in `suggestions` for, one of
each search at a time.

A row is deleted when its experiment has folded the answer, so whatever fails in between is done
again, and an answer that comes twice has no effect the second time. Failures are counted in memory:
a new process counts from 0.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.experiment.suggestions import awaited_suggestion
from control_plane.actors.experiment.trial_summaries import Summaries, TrialSummary
from control_plane.actors.suggestion_rows import SUGGESTIONS
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.engine import Engine
from control_plane.engine.head import PARTS
from control_plane.searchers.method import SuggestedPoints, SuggestionFailed
from control_plane.searchers.methods.bayesian import HPARAMS_BLOBS, parse_hparams
from control_plane.state.table import StateTable, TableError
from control_plane.suggestions.availability import INSTALL_COMMAND
from control_plane.suggestions.model import Observation, Problem, Stage, suggest_point

log = logging.getLogger(__name__)

SENDER = "suggester"
# Tries of one suggestion before the search is told to sample a random point instead. From then on,
# each suggestion of the search has one try, until one succeeds.
TRIES_MAX = 4
PAUSE_MS_FIRST = 1_000
PAUSE_MS_MAX = PAUSE_MS_FIRST << 8
REASON_CHARACTERS_MAX = 200

SuggestionModel = Callable[[Problem, Sequence[Observation], int], Mapping[str, object]]
"""Suggests a point as the answer to the request of that number."""


@dataclass
class _PendingSuggestion:
    """The suggestion that a search waits for, and its tries so far; the next is at `due_ms`."""

    number: int
    tries: int = 0
    due_ms: int = 0


class Suggester:
    """Answers the requests of experiments. Two concurrent suggesters do work twice, without
    harm.
    """

    def __init__(self, engine: Engine, model: SuggestionModel = suggest_point) -> None:
        self._engine = engine
        self._model = model
        self._pending: dict[int, _PendingSuggestion] = {}

    def suggest_all(self) -> bool:
        """Make one suggestion for every search that waits for one; True if an answer was sent.

        Raises:
            TableError: the table does not answer; the next pass goes on.
        """
        waiting = list(_waiting_experiments(self._engine.table))
        for experiment_id in self._pending.keys() - waiting:
            del self._pending[experiment_id]
        return any([self._suggest_for(experiment_id) for experiment_id in waiting])

    def _suggest_for(self, experiment_id: int) -> bool:
        address = addresses.experiment(experiment_id)
        experiment = self._engine.read_state(address)
        number = awaited_suggestion(experiment) if isinstance(experiment, ExperimentState) else None
        if number is None:
            return False
        job = self._pending_suggestion(experiment_id, number)
        now_ms = self._engine.clock()
        if now_ms < job.due_ms <= now_ms + PAUSE_MS_MAX:
            return False
        # An answer that is not folded yet is not repeated at once either.
        job.due_ms = now_ms + min(PAUSE_MS_MAX, PAUSE_MS_FIRST << job.tries)
        job.tries += 1
        answer = self._make_answer(address, experiment, job)
        if answer is not None:
            self._engine.post_message(address, answer, sender=SENDER)
        return answer is not None

    def _pending_suggestion(self, experiment_id: int, number: int) -> _PendingSuggestion:
        known = self._pending.get(experiment_id)
        if known is None or known.number != number:
            gave_up = known is not None and known.tries >= TRIES_MAX
            known = _PendingSuggestion(number, tries=TRIES_MAX - 1 if gave_up else 0)
            self._pending[experiment_id] = known
        return known

    def _make_answer(
        self, address: str, experiment: ExperimentState, job: _PendingSuggestion
    ) -> SuggestedPoints | SuggestionFailed | None:
        try:
            problem, observations = _load_problem(self._engine, address, experiment)
            point = self._model(problem, observations, job.number)
        except TableError:
            raise
        except ImportError as error:
            reason = f"Optuna cannot be used on this server ({error}): {INSTALL_COMMAND}"
        except Exception as error:
            log.exception("suggestion %d for %s failed", job.number, address)
            reason = f"{type(error).__name__}: {error}"
        else:
            job.tries = 0
            return SuggestedPoints(job.number, (point,))
        return SuggestionFailed(job.number, _one_line(reason)) if job.tries >= TRIES_MAX else None


def to_problem(definition: Definition, experiment: ExperimentState) -> Problem:
    """The search problem of an experiment."""
    plan = definition.plan
    maxval_drawn = plan.method.rules.maxval_drawn
    return Problem(plan.space, maxval_drawn, experiment.smaller_is_better, plan.seed)


def to_observations(
    hparams_blobs: Iterable[bytes], summaries: Iterable[TrialSummary]
) -> list[Observation]:
    """The observations of an experiment's trials, from the blobs with their hyperparameters and
    from their summaries, both in the order of the trials' numbers.
    """
    hparams = (one for blob in hparams_blobs for one in parse_hparams(blob))
    # A trial created between the two reads is only in one of them.
    trials = zip(hparams, summaries, strict=False)
    return [_to_observation(one, summary) for one, summary in trials]


def _waiting_experiments(table: StateTable) -> Iterator[int]:
    """Read the ids of the experiments that wait for a suggestion."""
    start: str | None = " "
    while start is not None:
        page = table.query(SUGGESTIONS, start, "\x7f")
        yield from (int(row.key.sort) for row in page.rows)
        start = page.next_sort


def _load_problem(
    engine: Engine, address: str, experiment: ExperimentState
) -> tuple[Problem, list[Observation]]:
    """Load the experiment's problem and its observations. Parts may be newer than the state."""
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
    """Read the parts whose names are a prefix and a number, with their numbers."""
    start: str | None = f"{PARTS}{prefix}"
    last = f"{PARTS}{prefix}~"
    while start is not None:
        page = table.query(address, start, last)
        for row in page.rows:
            yield int(row.key.sort.rpartition("/")[2]), row.body
        start = page.next_sort


def _decode_summaries(address: str, body: bytes) -> tuple[TrialSummary, ...]:
    part = actor_type_at(address).decode_part("trials/", body)
    assert isinstance(part, Summaries)
    return part.trials


def _to_observation(hparams: Mapping[str, object], summary: TrialSummary) -> Observation:
    if summary.reached:
        return Observation(hparams, Stage.COMPLETE, summary.metric)
    stage = Stage.STOPPED if summary.status else Stage.RUNNING
    return Observation(hparams, stage, summary.metric)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS_MAX else line[:REASON_CHARACTERS_MAX] + "..."
