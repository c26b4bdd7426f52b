"""Previews of searches before submission, with limits on the server's computing time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from control_plane.access.principals import Principal
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.preview import preview_report
from control_plane.config.problems import ConfigInvalid
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries.answer import Answer
from control_plane.services import Services
from control_plane.simulation.search_simulation import (
    check_simulable,
    simulate_search,
    simulation_report,
    synthetic_curves,
)
from control_plane.suggestions.availability import missing_package_reason
from control_plane.suggestions.in_memory import suggest_from_parts
from control_plane.usecases.config_errors import config_error
from control_plane.usecases.submission import Submission, check_submission

TRIALS_MAX = 20_000
SLOTS_MAX = 10_000

# A process computes a single preview at a time, because other requests share the interpreter.
_computing = Lock()


class PreviewedRung(Answer):
    """A rung of a previewed search: a length that trials train to.

    `reached` trials train to this length or further. In the preview, `stopped` trials end at this
    length. `expected` trials are expected to end there in reality; null if this is not predictable.
    """

    length: int
    reached: int
    stopped: int
    expected: int | None


class PreviewedBracket(Answer):
    """A bracket of a previewed search: trials that are compared with each other.

    `rungs` is sorted by length, the shortest first.
    """

    rungs: list[PreviewedRung]


class SearchEstimate(Answer):
    """The result of simulating the search on `slots` slots, with synthetic learning curves.

    `makespan_seconds` is the time until the search ends. `slot_seconds` is the total time of slots
    in use, and `slot_use` their share of the whole slot time.
    """

    slots: int
    slots_per_trial: int
    makespan_seconds: float
    slot_seconds: float
    slot_use: float
    trials: int
    units: float


class SearchPreview(Answer):
    """The training that a search needs.

    `estimate` is null if the request asks for no estimate or none can be made. In the second case
    `estimate_missing` is the reason.
    """

    searcher: str
    unit: str
    trials: int
    units: int
    batches: int | None
    is_example: bool
    brackets: list[PreviewedBracket]
    estimate: SearchEstimate | None = None
    estimate_missing: str = ""


class _TimeLimitExceeded(Exception):
    """Error that a computation raises after the time limit."""


def preview_submission(
    services: Services,
    submission: Submission,
    caller: Principal,
    slots: int | None,
    unit_seconds: float,
) -> SearchPreview:
    """Check a submission and preview the search, without submitting the experiment. Store nothing.

    An estimate that takes more than `estimate_seconds_max` or is not possible is no error: the
    result has the reason in `estimate_missing`.

    Args:
        services: the services that check the submission.
        submission: the submission.
        caller: the user.
        slots: simulate the search on this many slots to estimate its duration; None for no
            estimate.
        unit_seconds: the assumed duration of a unit of training, which the result's `unit` names.

    Raises:
        RequestError: invalid, for a submission that the cluster refuses, or a search whose lengths
            are not predictable. invalid also for more than TRIALS_MAX trials, or more than
            `preview_seconds_max` of computation without the estimate. unavailable, while this
            process computes another preview.
    """
    config = check_submission(services, submission, caller).config
    if (config.trials or 0) > TRIALS_MAX:
        text = f"would create {config.trials} trials; the cluster previews at most {TRIALS_MAX}"
        raise invalid("config", text, "preview it with `detcloud preview-search`")
    seconds_max = services.limits.preview_seconds_max
    with hold_computing_lock():
        try:
            report = preview_report(config, _time_limit(seconds_max))
        except ConfigInvalid as error:
            raise config_error(error, "the search cannot be previewed") from None
        except _TimeLimitExceeded:
            text = f"takes more than {seconds_max:g} s to preview, which is the limit"
            hint = "preview it with `detcloud preview-search`"
            raise invalid("config", text, hint) from None
        if slots is not None:
            report |= _estimate(services, config, slots, unit_seconds)
    return SearchPreview.model_validate(report)


@contextmanager
def hold_computing_lock() -> Iterator[None]:
    """Hold this process's lock of computations within the block.

    Raises:
        RequestError: unavailable, at once, if another request holds the lock.
    """
    if not _computing.acquire(blocking=False):
        text = "another preview is being computed; try again in a few seconds"
        raise RequestError(Code.UNAVAILABLE, text)
    try:
        yield
    finally:
        _computing.release()


def _time_limit(seconds_max: float) -> Callable[..., None]:
    """Return a function that raises _TimeLimitExceeded from `seconds_max` seconds after now on.

    The function ignores its arguments, so that it can be used as a callback for progress.
    """
    until = time.monotonic() + seconds_max

    def check(*progress: object) -> None:
        if time.monotonic() > until:
            raise _TimeLimitExceeded

    return check


def _estimate(
    services: Services, config: ExperimentConfig, slots: int, unit_seconds: float
) -> dict[str, Any]:
    """Simulate the search; return a dict with `estimate`, or else with `estimate_missing`.

    `estimate_missing` is the reason: a search that cannot be simulated, or a simulation of more
    than `estimate_seconds_max`.
    """
    seconds_max = services.limits.estimate_seconds_max
    try:
        check_simulable(config, slots, missing_package_reason(config.searcher.name))
        outcome = simulate_search(
            config,
            slots,
            synthetic_curves(config, 0, unit_seconds),
            suggest_from_parts,
            on_events=_time_limit(seconds_max),
        )
    except ConfigInvalid as error:
        problems = (problem.text("").strip(": ") for problem in error.problems)
        return {"estimate_missing": "; ".join(problems)}
    except _TimeLimitExceeded:
        text = f"simulating it takes more than {seconds_max:g} s: use `detcloud simulate`"
        return {"estimate_missing": text}
    return {"estimate": simulation_report(config, slots, outcome)}
