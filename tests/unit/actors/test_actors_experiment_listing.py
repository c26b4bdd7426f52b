"""The listing row: the figures, and the changes that write the row."""

import json
from dataclasses import replace

from control_plane.actors.experiment.listing import (
    Figures,
    ListingRow,
    decode_listing,
    decode_listings,
)
from control_plane.actors.messages.experiment import (
    CancelRequested,
    ContinueRequested,
    TrialEnded,
    TrialMetered,
    TrialValidationReported,
)
from control_plane.actors.records import JobKind, Status
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.sample_messages import LENGTH, experiment_submitted, random_plan

ROW = ("experiments", "000000000001")
# A dollar an hour.
RATE = 1_000_000


def experiment(*, listing_has_figures: bool = True) -> ActorHarness:
    """Create a search with two trials of LENGTH each."""
    actor = ActorHarness("experiment#1")
    actor.deliver(
        replace(experiment_submitted(random_plan(2)), listing_has_figures=listing_has_figures)
    )
    return actor


def experiment_with_failures() -> ActorHarness:
    """Create a search with two trials, whose listing row has failures but no figures."""
    actor = ActorHarness("experiment#1")
    actor.deliver(replace(experiment_submitted(random_plan(2)), listing_has_failures=True))
    return actor


def figures(actor: ActorHarness) -> Figures | None:
    return decode_listing(actor.row(*ROW).body).figures


def has_failed_trials(actor: ActorHarness) -> bool | None:
    return decode_listing(actor.row(*ROW).body).has_failed_trials


def writes(actor: ActorHarness) -> int:
    """Return how often the listing row was written."""
    return actor.row(*ROW).revision


def test_new_experiment_has_figures() -> None:
    assert figures(experiment()) == Figures(None, 0.0, 0)


def test_running_experiment_has_no_figures_in_the_row() -> None:
    actor = experiment()
    assert writes(actor) == 1
    actor.deliver(TrialMetered(0, 1, 0, RATE, START_MS, True))
    assert (figures(actor), writes(actor)) == (None, 2)
    for steps, metric in ((10, 0.5), (20, 0.4), (30, 0.3)):
        actor.deliver(TrialValidationReported(0, steps, metric))
    assert (figures(actor), writes(actor)) == (None, 2)


def test_ended_experiment_has_figures_in_the_row() -> None:
    actor = experiment()
    actor.deliver(TrialValidationReported(0, LENGTH, 0.25), TrialEnded(0, Status.COMPLETED, ""))
    actor.deliver(TrialEnded(1, Status.COMPLETED, ""))
    assert actor.state.status is Status.COMPLETED
    assert figures(actor) == Figures(0.25, 1.0, 0)


def test_late_bill_updates_the_row() -> None:
    actor = experiment()
    actor.deliver(TrialMetered(0, 1, 0, RATE, START_MS, True))
    actor.deliver(CancelRequested(), *(TrialEnded(n, Status.CANCELED, "") for n in range(2)))
    assert actor.state.status is Status.CANCELED
    assert figures(actor) is None
    actor.deliver(TrialMetered(0, 1, 2_500, 0, START_MS + 9_000, False))
    assert figures(actor) == Figures(None, 0.0, 2_500)


def test_continued_experiment_has_no_figures_in_the_row() -> None:
    actor = experiment()
    actor.deliver(TrialValidationReported(0, LENGTH, 0.25), TrialEnded(0, Status.COMPLETED, ""))
    actor.deliver(TrialEnded(1, Status.ERROR, "ERRORED"))
    assert figures(actor) is not None
    actor.deliver(ContinueRequested())
    assert decode_listing(actor.row(*ROW).body).state == Status.ACTIVE
    assert figures(actor) is None


def test_first_failed_trial_updates_the_row() -> None:
    actor = experiment_with_failures()
    assert (has_failed_trials(actor), writes(actor)) == (False, 1)
    actor.deliver(TrialValidationReported(0, 10, 0.5))
    assert writes(actor) == 1
    actor.deliver(TrialEnded(0, Status.ERROR, "ERRORED"))
    assert (has_failed_trials(actor), writes(actor)) == (True, 2)
    assert actor.state.status is Status.ACTIVE


def test_continued_experiment_has_no_failed_trials() -> None:
    actor = experiment_with_failures()
    actor.deliver(TrialValidationReported(0, LENGTH, 0.25), TrialEnded(0, Status.COMPLETED, ""))
    actor.deliver(TrialEnded(1, Status.ERROR, "ERRORED"))
    assert has_failed_trials(actor) is True
    actor.deliver(ContinueRequested())
    assert has_failed_trials(actor) is False


def test_rows_of_older_releases_have_no_failures() -> None:
    assert has_failed_trials(experiment()) is None


def test_rows_of_older_releases_stay_without_figures() -> None:
    actor = experiment(listing_has_figures=False)
    actor.deliver(TrialValidationReported(0, LENGTH, 0.25), TrialEnded(0, Status.COMPLETED, ""))
    actor.deliver(TrialEnded(1, Status.COMPLETED, ""))
    assert json.loads(actor.row(*ROW).body) == {
        "state": "COMPLETED",
        "user": "ada",
        "name": "digits",
        "labels": [],
        "archived": False,
    }


def test_rows_of_all_releases_are_decoded_together() -> None:
    rows = [
        b"ACTIVE\nada",
        b'{"state": "PAUSED", "user": "bob", "name": "n", "labels": ["a", "b"], "archived": true}',
        b'{"state": "ACTIVE", "user": "", "name": "", "labels": [], "archived": false,'
        b' "workspace": "W", "project": "P", "kind": "command", "figures": [NaN, null, 7]}',
    ]
    old, plain, whole = decode_listings(rows)
    assert old == ListingRow("ACTIVE", "ada")
    assert plain == ListingRow("PAUSED", "bob", "n", ("a", "b"), True)
    assert (whole.workspace, whole.project, whole.kind) == ("W", "P", JobKind.COMMAND)
    assert whole.figures is not None
    assert whole.figures.metric != whole.figures.metric
    assert whole.figures[1:] == (None, 7)
    assert decode_listings([]) == []
