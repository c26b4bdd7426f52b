"""Previews of searches, before they are paid for and within bounds of the cluster's own time."""

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
PREVIEW_SECONDS_MAX = 2.0
ESTIMATE_SECONDS_MAX = 4.0
SLOTS_MAX = 10_000

# One at a time in a process: they compute, and others wait for the same interpreter.
_computing = Lock()


class PreviewedRung(Answer):
    """A length that trials train to; docs/api.md has the fields."""

    length: int
    reached: int
    stopped: int
    expected: int | None


class PreviewedBracket(Answer):
    """Trials that are compared with each other; the rungs go up."""

    rungs: list[PreviewedRung]


class SearchEstimate(Answer):
    """The search simulated on so many slots, on curves that were made up."""

    slots: int
    slots_per_trial: int
    makespan_seconds: float
    slot_seconds: float
    slot_use: float
    trials: int
    units: float


class SearchPreview(Answer):
    """The training of a search; `estimate` is null where none was asked for or can be made, and
    then `estimate_missing` says why.
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
    """A computation took longer than it may."""


def preview_submission(
    services: Services,
    submission: Submission,
    caller: Principal,
    slots: int | None,
    unit_seconds: float,
) -> SearchPreview:
    """Preview the search of an experiment that could be submitted; with `slots` also estimate how
    long it takes on them, where a unit of training takes `unit_seconds`.

    Raises:
        RequestError: invalid, for a configuration that is not or a search that is too large;
            unavailable while another preview is computed.
    """
    config = check_submission(services, submission, caller).config
    if (config.trials or 0) > TRIALS_MAX:
        text = f"would create {config.trials} trials; the cluster previews at most {TRIALS_MAX}"
        raise invalid("config", text, "preview it with `detcloud preview-search`")
    with _hold_computing_lock():
        try:
            report = preview_report(config, _time_limit(PREVIEW_SECONDS_MAX))
        except ConfigInvalid as error:
            raise config_error(error, "the search cannot be previewed") from None
        except _TimeLimitExceeded:
            text = f"takes more than {PREVIEW_SECONDS_MAX:g} s to preview, which is the limit"
            hint = "preview it with `detcloud preview-search`"
            raise invalid("config", text, hint) from None
        if slots is not None:
            report |= _estimate(config, slots, unit_seconds)
    return SearchPreview.model_validate(report)


@contextmanager
def _hold_computing_lock() -> Iterator[None]:
    if not _computing.acquire(blocking=False):
        text = "another preview is being computed; try again in a few seconds"
        raise RequestError(Code.UNAVAILABLE, text)
    try:
        yield
    finally:
        _computing.release()


def _time_limit(seconds_max: float) -> Callable[..., None]:
    """Make a function that raises once so many seconds have passed."""
    until = time.monotonic() + seconds_max

    def check(*progress: object) -> None:
        if time.monotonic() > until:
            raise _TimeLimitExceeded

    return check


def _estimate(config: ExperimentConfig, slots: int, unit_seconds: float) -> dict[str, Any]:
    try:
        check_simulable(config, slots, missing_package_reason(config.searcher.name))
        outcome = simulate_search(
            config,
            slots,
            synthetic_curves(config, 0, unit_seconds),
            suggest_from_parts,
            on_events=_time_limit(ESTIMATE_SECONDS_MAX),
        )
    except ConfigInvalid as error:
        return {"estimate_missing": "; ".join(one.text("").strip(": ") for one in error.problems)}
    except _TimeLimitExceeded:
        text = f"simulating it takes more than {ESTIMATE_SECONDS_MAX:g} s: use `detcloud simulate`"
        return {"estimate_missing": text}
    return {"estimate": simulation_report(config, slots, outcome)}
