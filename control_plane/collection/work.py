"""What the collector does for one experiment, in steps that may end anywhere and be taken again.

Progress is in the table alone: a checkpoint is condemned by its trial, which leaves a row that
names it; its files go; its trial takes the row away. A step that was taken before does nothing.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import groupby

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import CollectionEnded
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.records import Retention
from control_plane.actors.trial_messages import COLLECTED_MAX, CheckpointsUnwanted
from control_plane.collection.erasure import erased
from control_plane.collection.pins import is_pinned
from control_plane.collection.ranking import Candidate, unwanted
from control_plane.collection.removal import condemned_files, uploads_cut_short
from control_plane.collection.stores import CollectionFailed, Stores
from control_plane.collection.survey import (
    Survey,
    candidates_of,
    newest_of,
    survey,
)
from control_plane.dispatch.engine import Engine
from control_plane.dispatch.kinds import parse_json
from control_plane.state.table import Check, Row

SENDER = "collector"
# Surveys of a collection in which trials went on to change what had been decided upon.
SURVEYS_MAX = 3

_NOTHING = Retention(0, 0, 0)


@dataclass(frozen=True)
class Request:
    """A row of `collections`: keep what `retention` says or, with `delete`, nothing at all."""

    row: Row
    generation: int
    retention: Retention
    delete: bool


def request_of(row: Row) -> Request:
    """The row as a request."""
    fields = parse_json(row.body)
    retention = _NOTHING if fields["delete"] else Retention(*fields["retention"])
    return Request(row, fields["generation"], retention, fields["delete"])


def collected(stores: Stores, experiment: ExperimentState, request: Request) -> Iterator[None]:
    """Carries a request out and reports its end, resting after every short step.

    Raises:
        CollectionFailed: something cannot be removed.
        Conflict: the request was replaced by a later one.
    """
    yield from _condemned(stores.engine, experiment, request)
    yield from condemned_files(stores, experiment.experiment_id, ended=experiment.status.final)
    if experiment.status.final:
        yield from uploads_cut_short(stores, experiment)
    if request.delete:
        yield from erased(stores, experiment)
    report(stores.engine, experiment.experiment_id, request)


def report(engine: Engine, experiment_id: int, request: Request, failure: str = "") -> None:
    """Tells the experiment that its collection is over."""
    ended = CollectionEnded(request.generation, failure)
    engine.post(addresses.experiment(experiment_id), ended, sender=SENDER)


def surveyed(
    engine: Engine, experiment: ExperimentState, retention: Retention, *, whole: bool = False
) -> Generator[None, None, tuple[Survey, list[Candidate]]]:
    """What there is and, of it, what a collection with that retention would delete, by trial. If
    the `whole` experiment goes, its own trials hold nothing.
    """
    found = yield from survey(engine, experiment)
    but = experiment.experiment_id if whole else 0

    def is_held(one: Candidate) -> bool:
        return one.uuid in found.newest or is_pinned(engine.table, one.uuid, but)

    smaller = experiment.smaller_is_better
    return found, unwanted(found.candidates(), retention, smaller, is_held)


def _condemned(engine: Engine, experiment: ExperimentState, request: Request) -> Iterator[None]:
    """Has the trials condemn what the retention does not keep."""
    for _ in range(SURVEYS_MAX):
        found, going = yield from surveyed(
            engine, experiment, request.retention, whole=request.delete
        )
        if request.delete:
            _check_all_go(found, going)
        changed = False
        for trial_id, group in groupby(going, key=lambda one: one.trial_id):
            before = found.by_trial[trial_id]
            # Its trial may have gone on: what was the worst may have been validated since.
            if candidates_of(engine.table, trial_id) == before:
                yield from _condemned_of(engine, request, trial_id, before, list(group))
            else:
                changed = True
            yield
        if not changed:
            return


def _check_all_go(found: Survey, going: list[Candidate]) -> None:
    """Nothing is deleted of an experiment of which something must stay."""
    gone = {one.uuid for one in going}
    for one in found.candidates():
        if one.uuid not in gone:
            text = f"another experiment started from its checkpoint {one.uuid}"
            raise CollectionFailed(text, passing=False)


def _condemned_of(
    engine: Engine,
    request: Request,
    trial_id: int,
    known: tuple[Candidate, ...],
    going: list[Candidate],
) -> Iterator[None]:
    gone = {one.uuid for one in going}
    newest = newest_of(one for one in known if one.uuid not in gone)
    # A request that was replaced meanwhile, by one that keeps more, must not go on.
    current = Check(request.row.key, request.row.revision)
    for start in range(0, len(going), COLLECTED_MAX):
        some = tuple(one.uuid for one in going[start : start + COLLECTED_MAX])
        instead = newest.uuid if newest else ""
        message = CheckpointsUnwanted(some, instead, whole=request.delete)
        address = addresses.trial(trial_id)
        reply = engine.command(address, message, beside=lambda reply: (current,))
        if request.delete and reply != some:
            # Somebody was faster; the next try sees who.
            raise CollectionFailed(f"checkpoints of trial {trial_id} are needed")
        yield
