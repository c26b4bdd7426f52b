"""Previews a search: runs its method with trials that all succeed and report made-up metrics.

The method alone decides; its driver would draw hyperparameters, which only batch sizes need.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, repeat
from typing import Any, NamedTuple
from uuid import UUID

from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.field_types import BATCH_SIZE
from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.method import (
    Close,
    Create,
    CreateTrial,
    Event,
    Operation,
    SearchMethod,
    Stop,
    TrainTo,
    TrialClosed,
    TrialLengthReached,
    TrialValidationReported,
)
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.registry import searcher_spec
from control_plane.searchers.search import SearchPlan, begin_search, expand_creates, make_method
from control_plane.searchers.space import Const, grid_point
from control_plane.searchers.spec import PreviewPart

CLOSE_MAX = 256
EVENTS_PER_REPORT = 1_000

ReportProgress = Callable[[int], None]
"""Takes how many trials are done, every now and then."""


class Rung(NamedTuple):
    """A length, in the configuration's unit or of its time metric, that trials of a bracket train
    to.
    """

    length: int
    reached: int
    """Trials that train to it or beyond."""
    stopped: int
    """Trials that train to it and no further."""
    expected: int | None
    """How many are to be expected to train no further; `stopped` where results change nothing, None
    where nothing is known before them.
    """


class Bracket(NamedTuple):
    """Trials that are compared with each other; the rungs go up."""

    rungs: tuple[Rung, ...]


class Preview(NamedTuple):
    """The training of a search; `is_example` where real results would change it."""

    brackets: tuple[Bracket, ...]
    batches: int | None
    """Batches of all trials together; None where a time metric measures them, and where only the
    trials know how many an epoch has.
    """
    is_example: bool


class NotPreviewable(ValueError):
    """A search cannot be previewed: code of the user's decides what it asks for."""


def preview_search(
    config: ExperimentConfig, report_progress: ReportProgress = lambda done: None
) -> Preview:
    """Compute the trials of a search by bracket and by the length that each reaches.

    The trial with number i validates at i wherever it stops, and results come in the order in which
    they were asked for; where lengths depend on results, these are an example.

    Raises:
        NotPreviewable: nobody can say what the search will do.
    """
    plan = config.search_plan()
    spec = searcher_spec(config.searcher.name)
    if spec.preview is None:
        raise NotPreviewable(
            f"{spec.name} is driven by your own search method, whose operations cannot be previewed"
        )
    if config.searcher.is_open_ended:
        raise NotPreviewable(
            f"without max_length the trials, {config.trials} of them, train until their "
            "code ends, which cannot be previewed"
        )
    parts = spec.preview(plan.method)
    generator = Generator.from_seed(plan.seed)
    done, brackets = 0, list[Bracket]()
    trained = Counter[tuple[int, int | None]]()
    for part in parts:
        search = _PreviewedSearch(part, replace(plan, method=part.plan))
        for done_here in search.run():
            report_progress(done + done_here)
        done += len(search.lengths)
        brackets.append(Bracket(tuple(_rungs(part, Counter(search.lengths)))))
        sizes = _batch_sizes(search, plan, generator)
        trained.update(zip(search.lengths, sizes, strict=False))
    batches = None
    if not config.time_metric and not config.counts_epochs:
        batches = sum(
            trials * config.batches(length, {} if size is None else {BATCH_SIZE: size})
            for (length, size), trials in trained.items()
        )
    return Preview(tuple(brackets), batches, any(part.depends_on_results for part in parts))


def preview_report(
    config: ExperimentConfig, report_progress: ReportProgress = lambda done: None
) -> dict[str, Any]:
    """Report the preview of a search as JSON values, as `detcloud preview-search` shows it.

    Raises:
        ConfigInvalid: nobody can say what the search will do.
    """
    try:
        found = preview_search(config, report_progress)
    except NotPreviewable as error:
        raise ConfigInvalid([Problem("searcher.name", None, None, str(error))]) from None
    rungs = [rung for bracket in found.brackets for rung in bracket.rungs]
    return {
        "searcher": config.searcher.name,
        "unit": config.time_metric or config.unit,
        "trials": sum(rung.stopped for rung in rungs),
        "units": sum(rung.stopped * rung.length for rung in rungs),
        "batches": found.batches,
        "is_example": found.is_example,
        "brackets": [
            {"rungs": [rung._asdict() for rung in bracket.rungs]} for bracket in found.brackets
        ],
    }


def _rungs(part: PreviewPart, stopped: Counter[int]) -> Iterator[Rung]:
    expected = stopped if part.expected_stops is None else part.expected_stops
    lengths = sorted({*stopped, *expected}, reverse=True)
    reached = list(accumulate(stopped[length] for length in lengths))
    for length, count in zip(reversed(lengths), reversed(reached), strict=True):
        guess = expected.get(length, 0) if part.has_expectation else None
        yield Rung(length, count, stopped[length], guess)


def _batch_sizes(
    search: _PreviewedSearch, plan: SearchPlan, generator: Generator
) -> Iterable[int | None]:
    """Return the batch size of each trial in the order of their numbers; endless where all have the
    same.
    """
    size = plan.space.members.get(BATCH_SIZE)
    if size is None or isinstance(size, Const):
        return repeat(_integer_or_none(size.value if size else None))
    if search.grid_points:
        points = (grid_point(plan.space, index) for index in search.grid_points)
        return [_integer_or_none(point[BATCH_SIZE]) for point in points]
    trials = len(search.lengths)
    at_once = RandomPlan(plan.method.max_length, trials, 0, plan.method.rules)
    drawn = replace(plan, method=at_once)
    state = replace(begin_search(drawn).state, position=generator.position)
    created = expand_creates(drawn, state, generator, trials).operations
    hparams = (one.hparams for one in created if isinstance(one, CreateTrial))
    return [_integer_or_none(one[BATCH_SIZE]) for one in hparams]


def _integer_or_none(size: object) -> int | None:
    return size if isinstance(size, int) else None


class _PreviewedSearch:
    """The trials of a part of a search under way: by number their `lengths` so far and, where the
    part takes them from a grid, their `grid_points`.
    """

    def __init__(self, part: PreviewPart, plan: SearchPlan) -> None:
        self._method = make_method(plan, MemoryBlobStore())
        self._times = part.report_times
        # Most methods take no note of the trials that are created.
        self._notes_trials = (
            type(self._method).on_trial_created is not SearchMethod.on_trial_created
        )
        # Trials with an event to be answered: the number or, to be closed, its complement.
        self._waiting: deque[int] = deque()
        self._closing = bytearray()
        self._with_results = self._closed = 0
        self.lengths = array("q")
        self.grid_points = array("q")

    def run(self) -> Iterator[int]:
        """Run until the search waits for nothing; yield every now and then how many trials are
        done, one that has a result being half done.
        """
        method, waiting = self._method, self._waiting
        step = method.first_step()
        answered = 0
        while True:
            created = len(self.lengths)
            for operation in step.operations:
                self._execute(operation)
            state = self._note_trials(step.state, created)
            if state.is_closing:
                step = method.close_more(state, len(self.lengths), CLOSE_MAX)
                continue
            if not waiting:
                return
            event = self._next_event(waiting.popleft())
            step = method.on_event(state, event)
            if (
                isinstance(event, TrialValidationReported)
                and Stop(event.trial) not in step.operations
            ):
                self._train(event.trial, next(one for one in self._times if one > event.time))
            answered += 1
            if answered % EVENTS_PER_REPORT == 0:
                yield (self._with_results + self._closed) // 2

    def _note_trials(self, state: Any, first: int) -> Any:
        """Tell the method of the trials from `first` on; its next state."""
        if not self._notes_trials:
            return state
        for trial in range(first, len(self.lengths)):
            request_id = str(UUID(int=trial))
            created = CreateTrial(trial, request_id, 0, {}, length=None, closed=False)
            state = self._method.on_trial_created(state, created)
        return state

    def _next_event(self, waiting: int) -> Event:
        if waiting < 0:
            self._closed += 1
            return TrialClosed(~waiting, float(self.lengths[~waiting]))
        if waiting == self._with_results:
            # The first results come in the order of the trials.
            self._with_results += 1
        length, metric = self.lengths[waiting], float(waiting)
        if self._times:
            return TrialValidationReported(waiting, length, metric)
        return TrialLengthReached(waiting, length, metric)

    def _execute(self, operation: Operation) -> None:
        match operation:
            case Create(count=count, length=length, closed=closed):
                if operation.hparams == "FromGrid":
                    point, step = operation.first_point, operation.point_step
                    self.grid_points.extend(range(point, point + count * step, step))
                first = len(self.lengths)
                self.lengths.extend(repeat(0, count))
                self._closing.extend(bytes(count))
                for trial in range(first, first + count):
                    if length is not None:
                        self._train(trial, self._times[0] if self._times else length)
                    if closed:
                        self._close(trial)
            case TrainTo(trial=trial, length=length):
                self._train(trial, length)
            case Close(trial=trial) | Stop(trial=trial):
                self._close(trial)
            case _:
                pass

    def _train(self, trial: int, length: int) -> None:
        self.lengths[trial] = length
        self._waiting.append(trial)

    def _close(self, trial: int) -> None:
        if not self._closing[trial]:
            self._closing[trial] = True
            self._waiting.append(~trial)
