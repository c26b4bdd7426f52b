"""The listing row of an experiment: the values by which lists of experiments are filtered and
sorted.

The figures are computed from the state, and the row is written when they change. The figures of a
running experiment change with each report, so its row has none. Readers take them from the state.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from control_plane.actors.experiment.state import (
    LISTING,
    ExperimentState,
    listing_sort_key,
    settings_of,
)
from control_plane.actors.experiment.values import write_values_row
from control_plane.actors.projects import UNCATEGORIZED
from control_plane.actors.records import JobKind, Status
from control_plane.actors.step import StepContext


class Figures(NamedTuple):
    """The figures by which lists of experiments are sorted."""

    metric: float | None
    """The best searcher metric, or None."""
    progress: float | None
    """The progress of the search, from 0 to 1, or None."""
    cost_micros: int
    """The cost of ended allocations, in micro-dollars."""


class ListingRow(NamedTuple):
    """An experiment's row in the list of all experiments."""

    state: str
    """The status of the experiment."""
    user: str
    """The name of the owner."""
    name: str = ""
    labels: tuple[str, ...] = ()
    archived: bool = False
    """Whether lists leave the experiment out."""
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    kind: JobKind = JobKind.EXPERIMENT
    figures: Figures | None = None
    """The figures. None: the experiment's state has them, since the experiment runs or was created
    by an older release.
    """
    has_failed_trials: bool | None = None
    """Whether a trial has failed. None: the experiment was created by an older release."""


def figures_of(state: ExperimentState) -> Figures | None:
    """Return the figures of an experiment that has ended, or that has no metric, progress and cost
    yet.

    Return None for any other experiment, and while a trial still costs money: the figures change
    too often for the listing row.
    """
    figures = Figures(state.best_metric, state.progress, state.bill.cost_micros)
    is_settled = state.status.is_final or not any(figures)
    return figures if is_settled and not state.bill.rate_micros else None


def write_listing_row(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Write the experiment's listing row. Return the state unchanged.

    The row has figures if `listing_has_figures` is set and `figures_of` returns figures, and
    failures if `listing_has_failures` is set. Callers call this function after every change of a
    value in the row.
    """
    settings = settings_of(context)
    row: dict[str, object] = {
        "state": state.status,
        "user": state.owner,
        "name": state.name,
        "labels": settings.labels,
        "archived": state.archived,
    }
    # Default names are left out, as in the rows of older releases.
    groups = {"workspace": settings.workspace, "project": settings.project}
    row |= {kind: name for kind, name in groups.items() if name != UNCATEGORIZED}
    if state.kind is not JobKind.EXPERIMENT:
        row["kind"] = state.kind
    if state.listing_has_figures and (figures := figures_of(state)) is not None:
        row["figures"] = figures
    if state.listing_has_failures:
        row["failed"] = _has_failed_trials(state)
    context.write_row(LISTING, listing_sort_key(state.experiment_id), json.dumps(row).encode())
    return state


def update_figures(
    before: ExperimentState | None, after: ExperimentState | None, context: StepContext
) -> ExperimentState | None:
    """Write the listing row again if the figures differ between two states, or if the first trial
    failed. Return `after`.

    If the new row has figures, the values row is written again, too. Nothing is written for a new,
    missing or deleted experiment, or if the experiment's listing row has neither
    (`listing_has_figures`, `listing_has_failures`).
    """
    if before is None or after is None or after.status is Status.DELETED:
        return after
    changed = after.listing_has_figures and figures_of(before) != figures_of(after)
    if changed and figures_of(after) is not None:
        write_values_row(after, context)
    if after.listing_has_failures:
        changed = changed or _has_failed_trials(before) != _has_failed_trials(after)
    return write_listing_row(after, context) if changed else after


def _has_failed_trials(state: ExperimentState) -> bool:
    """Return whether a trial has failed since the experiment was created or continued."""
    return state.trials_errored > 0


def decode_listing(body: bytes) -> ListingRow:
    """Decode a listing row. Rows of old releases have two lines: status and user.

    Raises:
        ValueError: the body is not JSON, or its `kind` is no JobKind.
        KeyError: the status or the user is missing.
    """
    return decode_listings([body])[0]


def decode_listings(bodies: Iterable[bytes]) -> list[ListingRow]:
    """Decode listing rows, in order. Decoding thousands in a single call is many times faster.

    Raises ValueError and KeyError as `decode_listing` does, if any row is invalid.
    """
    texts = [body if body.startswith(b"{") else _encode_old_row(body) for body in bodies]
    return [_listing_row(fields) for fields in json.loads(b"[%s]" % b",".join(texts))]


def _encode_old_row(body: bytes) -> bytes:
    """Convert a row of an old release, with status and user in two lines, to JSON."""
    state, _, user = body.decode().partition("\n")
    return json.dumps({"state": state, "user": user}).encode()


def _listing_row(fields: Mapping[str, Any]) -> ListingRow:
    """Build a listing row from decoded JSON. Unknown keys are ignored.

    Missing keys get defaults, except `state` and `user`, for which KeyError is raised. A `kind`
    that is no JobKind raises ValueError.
    """
    get = fields.get
    kind, figures = get("kind"), get("figures")
    return ListingRow(
        fields["state"],
        fields["user"],
        get("name", ""),
        tuple(get("labels", ())),
        get("archived", False),
        get("workspace", UNCATEGORIZED),
        get("project", UNCATEGORIZED),
        JobKind.EXPERIMENT if kind is None else JobKind(kind),
        None if figures is None else Figures(*figures[: len(Figures._fields)]),
        get("failed"),
    )
