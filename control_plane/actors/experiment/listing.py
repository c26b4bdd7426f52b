"""The row of an experiment in the cluster's list: what the list is filtered by, and the figures by
which it is sorted.

The figures are a function of the state, and the row is written with every change of them. While an
experiment runs they would change with each report, so that its row has none: its state has them.
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
from control_plane.actors.projects import UNCATEGORIZED
from control_plane.actors.records import JobKind, Status
from control_plane.actors.step import StepContext


class Figures(NamedTuple):
    """The figures by which the list is sorted."""

    metric: float | None
    progress: float | None
    cost_micros: int


class ListingRow(NamedTuple):
    """An experiment's row in the cluster's list. Without `figures` its state has them: it runs, or
    a release created it whose rows had none.
    """

    state: str
    user: str
    name: str = ""
    labels: tuple[str, ...] = ()
    archived: bool = False
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    kind: JobKind = JobKind.EXPERIMENT
    figures: Figures | None = None


def figures_of(state: ExperimentState) -> Figures | None:
    """The figures of an experiment that has ended or not begun, None for any other."""
    figures = Figures(state.best_metric, state.progress, state.bill.cost_micros)
    is_settled = state.status.is_final or not any(figures)
    return figures if is_settled and not state.bill.rate_micros else None


def write_listing_row(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Write the experiment's listing row; to be called when something in it has changed."""
    settings = settings_of(context)
    row: dict[str, object] = {
        "state": state.status,
        "user": state.owner,
        "name": state.name,
        "labels": settings.labels,
        "archived": state.archived,
    }
    # Left out where they are the default, as in the rows of releases that have none.
    groups = {"workspace": settings.workspace, "project": settings.project}
    row |= {kind: name for kind, name in groups.items() if name != UNCATEGORIZED}
    if state.kind is not JobKind.EXPERIMENT:
        row["kind"] = state.kind
    if state.lists_figures and (figures := figures_of(state)) is not None:
        row["figures"] = figures
    context.write_row(LISTING, listing_sort_key(state.experiment_id), json.dumps(row).encode())
    return state


def update_figures(
    before: ExperimentState | None, after: ExperimentState | None, context: StepContext
) -> ExperimentState | None:
    """Write the listing row again if a step has changed the figures; returns the state after it."""
    if before is None or after is None or not after.lists_figures:
        return after
    if after.status is Status.DELETED or figures_of(before) == figures_of(after):
        return after
    return write_listing_row(after, context)


def decode_listing(body: bytes) -> ListingRow:
    """Decode a listing row; old ones are two lines, state and user."""
    return decode_listings([body])[0]


def decode_listings(bodies: Iterable[bytes]) -> list[ListingRow]:
    """Decode listing rows, in their order; thousands take a fraction of the time that they take one
    by one.
    """
    texts = [body if body.startswith(b"{") else _encode_old_row(body) for body in bodies]
    return [_listing_row(fields) for fields in json.loads(b"[%s]" % b",".join(texts))]


def _encode_old_row(body: bytes) -> bytes:
    state, _, user = body.decode().partition("\n")
    return json.dumps({"state": state, "user": user}).encode()


def _listing_row(fields: Mapping[str, Any]) -> ListingRow:
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
        None if figures is None else Figures(*figures),
    )
