"""The suggester: works off the rows of `suggestions`, one suggestion of each search at a time.

A row goes when its experiment has folded the answer, so whatever fails in between is done again,
and an answer that comes twice is late the second time. What it knows of failures is in memory: a
process that starts begins to count anew.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment_state import Definition, ExperimentState
from control_plane.actors.experiment_suggestions import SUGGESTIONS, awaited
from control_plane.actors.experiment_summaries import Summaries, TrialSummary
from control_plane.dispatch.engine import Engine
from control_plane.dispatch.head import PARTS
from control_plane.dispatch.kinds import kind_at
from control_plane.searchers.bayesian import TRIED, tried
from control_plane.searchers.method import Suggested, SuggestionFailed
from control_plane.state.table import StateTable, TableError
from control_plane.suggestions.installed import INSTALL
from control_plane.suggestions.model import Observation, Problem, Stage, suggested

log = logging.getLogger(__name__)

SENDER = "suggester"
# Tries of one suggestion before a point is drawn instead. A search that came to that has one try
# for each further suggestion, until one succeeds.
TRIES_MAX = 4
PAUSE_MS_FIRST = 1_000
WHY_CHARACTERS_MAX = 200

Model = Callable[[Problem, Sequence[Observation], int], Mapping[str, object]]
"""Suggests a point for the request of that number."""


@dataclass
class _Job:
    """The suggestion that a search waits for."""

    number: int
    tries: int = 0
    due_ms: int = 0


class Suggester:
    """Answers what experiments ask for. Two at once are a waste and no harm."""

    def __init__(self, engine: Engine, model: Model = suggested) -> None:
        self._engine = engine
        self._model = model
        self._jobs: dict[int, _Job] = {}

    def suggest(self) -> bool:
        """One suggestion for every search that waits for one; whether there was any to make.

        Raises:
            TableError: the table does not answer; the next pass goes on.
        """
        waiting = list(_waiting(self._engine.table))
        for experiment_id in self._jobs.keys() - waiting:
            del self._jobs[experiment_id]
        return any([self._advance(experiment_id) for experiment_id in waiting])

    def _advance(self, experiment_id: int) -> bool:
        address = addresses.experiment(experiment_id)
        experiment = self._engine.state(address)
        number = awaited(experiment) if isinstance(experiment, ExperimentState) else None
        if number is None:
            return False
        job = self._job(experiment_id, number)
        now_ms = self._engine.clock()
        if job.due_ms > now_ms:
            return False
        # An answer that is not folded is not repeated at once either.
        job.due_ms = now_ms + (PAUSE_MS_FIRST << min(job.tries, 8))
        job.tries += 1
        answer = self._answer(address, experiment, job)
        if answer is not None:
            self._engine.post(address, answer, sender=SENDER)
        return answer is not None

    def _job(self, experiment_id: int, number: int) -> _Job:
        known = self._jobs.get(experiment_id)
        if known is None or known.number != number:
            gave_up = known is not None and known.tries >= TRIES_MAX
            known = _Job(number, tries=TRIES_MAX - 1 if gave_up else 0)
            self._jobs[experiment_id] = known
        return known

    def _answer(
        self, address: str, experiment: ExperimentState, job: _Job
    ) -> Suggested | SuggestionFailed | None:
        try:
            problem, observations = _seen(self._engine, address, experiment)
            point = self._model(problem, observations, job.number)
        except TableError:
            raise
        except ImportError as error:
            why = f"Optuna cannot be used on this server ({error}): {INSTALL}"
        except Exception as error:
            log.exception("suggestion %d for %s failed", job.number, address)
            why = f"{type(error).__name__}: {error}"
        else:
            job.tries = 0
            return Suggested(job.number, (point,))
        return SuggestionFailed(job.number, _short(why)) if job.tries >= TRIES_MAX else None


def _waiting(table: StateTable) -> Iterator[int]:
    """The experiments that have a row."""
    start: str | None = " "
    while start is not None:
        page = table.query(SUGGESTIONS, start, "\x7f")
        yield from (int(row.key.sort) for row in page.rows)
        start = page.next_sort


def _seen(
    engine: Engine, address: str, experiment: ExperimentState
) -> tuple[Problem, list[Observation]]:
    """What is searched and what is known of its trials. Parts may be newer than the state."""
    definition = engine.part(address, "definition")
    assert isinstance(definition, Definition)
    problem = problem_of(definition, experiment)
    hparams = (
        one
        for _, piece in sorted(_parts(engine.table, address, f"search/{TRIED}"))
        for one in tried(piece)
    )
    summaries = [
        summary
        for _, part in sorted(_parts(engine.table, address, "trials/"))
        for summary in _summaries(address, part)
    ]
    # A trial that one has and the other has not yet was made in between.
    known = zip(hparams, summaries, strict=False)
    return problem, [observation(one, summary) for one, summary in known]


def _parts(table: StateTable, address: str, prefix: str) -> Iterator[tuple[int, bytes]]:
    """The parts whose names are a prefix and a number, by number."""
    start: str | None = f"{PARTS}{prefix}"
    last = f"{PARTS}{prefix}~"
    while start is not None:
        page = table.query(address, start, last)
        for row in page.rows:
            yield int(row.key.sort.rpartition("/")[2]), row.body
        start = page.next_sort


def _summaries(address: str, body: bytes) -> tuple[TrialSummary, ...]:
    part = kind_at(address).decode_part("trials/", body)
    assert isinstance(part, Summaries)
    return part.trials


def problem_of(definition: Definition, experiment: ExperimentState) -> Problem:
    """What the experiment searches."""
    plan = definition.plan
    drawn = plan.method.rules.maxval_drawn
    return Problem(plan.space, drawn, experiment.smaller_is_better, plan.seed)


def observation(hparams: Mapping[str, object], summary: TrialSummary) -> Observation:
    """What the experiment knows of a trial, as the model sees it."""
    if summary.reached:
        return Observation(hparams, Stage.COMPLETE, summary.metric)
    stage = Stage.STOPPED if summary.status else Stage.RUNNING
    return Observation(hparams, stage, summary.metric)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WHY_CHARACTERS_MAX else line[:WHY_CHARACTERS_MAX] + "..."
