"""Previews of searches: the search method runs with simulated trials and made-up metrics.

All simulated trials succeed. The preview runs the search method without its driver, because the
driver would draw hyperparameters. The preview needs hyperparameters only for batch sizes.
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
"""Receives the number of finished simulated trials, from time to time."""


class Rung(NamedTuple):
    """The trials of a bracket that train to a certain length."""

    length: int
    """The length, in the configuration's unit or as a value of the time metric."""
    reached: int
    """The number of trials that train at least to this length."""
    stopped: int
    """The number of trials that stop at this length."""
    expected: int | None
    """The number of trials that are expected to stop at this length in a real search. Equal to
    `stopped` if results do not matter. None if no estimate is possible.
    """


class Bracket(NamedTuple):
    """A group of trials that the search compares with each other."""

    rungs: tuple[Rung, ...]
    """The rungs, the shortest length first."""


class Preview(NamedTuple):
    """The previewed training of a search."""

    brackets: tuple[Bracket, ...]
    batches: int | None
    """The number of batches of all trials together. None if a time metric measures training, or
    only the trials know the number of batches in an epoch.
    """
    is_example: bool
    """Whether real results could lead to other lengths than the preview."""


class NotPreviewable(ValueError):
    """The error for a search without a preview, because the user's code decides the training."""


def preview_search(
    config: ExperimentConfig, report_progress: ReportProgress = lambda done: None
) -> Preview:
    """Simulate a search and return the trials by bracket and final length.

    Each validation of the bracket's trial number i reports the metric i. Results arrive in the
    order of the search's requests. Batch sizes are drawn with the experiment's seed.

    Args:
        report_progress: receives the number of finished trials, every EVENTS_PER_REPORT events.

    Raises:
        NotPreviewable: a custom search method or the training code decides the lengths.
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
    """Return the preview of a search as JSON values, for `detcloud preview-search`.

    The keys are `searcher`, `unit`, `trials`, `units`, `batches`, `is_example` and `brackets`.
    `unit` is the unit of all lengths, or the name of the time metric. `trials` is the number of all
    trials, and `units` the sum of all lengths. `Preview` documents `batches` and `is_example`. Each
    bracket has the key `rungs`, a list of maps with the fields of `Rung`.

    Args:
        report_progress: as in `preview_search`.

    Raises:
        ConfigInvalid: a custom search method or the training code decides the lengths.
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
    """Return the batch sizes of a simulated part's trials, in the order of the trials' numbers.

    A size that is not an integer is None. If all trials have the same size, the result is an
    endless iterator. Random sizes are drawn from `generator`, which advances.
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
    """A simulation of a part of a search.

    `lengths` are the lengths that trials have trained to so far, by the number of the trial.
    `grid_points` are the grid points of the trials in the same order. Empty without a grid.
    """

    def __init__(self, part: PreviewPart, plan: SearchPlan) -> None:
        """Prepare the simulation of `part`. The method of `plan` must be the plan of the part."""
        self._method = make_method(plan, MemoryBlobStore())
        self._times = part.report_times
        # Most methods ignore created trials, so that the preview need not describe the trials.
        self._notes_trials = (
            type(self._method).on_trial_created is not SearchMethod.on_trial_created
        )
        # The queue of events. A number n >= 0 is a result of trial n; ~n is the end of trial n.
        self._waiting: deque[int] = deque()
        self._closing = bytearray()
        self._with_results = self._closed = 0
        self.lengths = array("q")
        self.grid_points = array("q")

    def run(self) -> Iterator[int]:
        """Run the simulation until the search waits for no event.

        Every EVENTS_PER_REPORT events, yield the number of finished trials. A trial with a result
        counts half until it has ended. The simulation can run only once.
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
        """Report the trials with numbers from `first` on to the method as created.

        Return the method's next state, or `state` itself if the method ignores created trials.
        """
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
            # Trials report first results in the order of the trials' numbers.
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
