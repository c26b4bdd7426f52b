"""Checks before and against the deletion of an experiment."""

from control_plane.actors import addresses
from control_plane.actors.pins import PINS, decode_pin
from control_plane.actors.records import Status
from control_plane.actors.trial.checkpoints import CHECKPOINTS
from control_plane.engine.head import HEAD
from control_plane.errors import Code, RequestError
from control_plane.queries import experiment as experiments
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Check, Key

DELETION_STATUSES = (Status.DELETING, Status.DELETE_FAILED)


def check_unpinned(services: Services, experiment_id: int) -> None:
    """Check, before the deletion of an experiment, that no checkpoint of the experiment is pinned.

    Pins belong to model versions, to users, and to other experiments that started from the
    checkpoint.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict, naming the holders of
            the first pinned checkpoint.
    """
    experiments.get_experiment(services, experiment_id)
    for row in read_rows(services.table, PINS, " ", "~"):
        pin = decode_pin(row.body)
        is_held = pin.is_held(experiment_id)
        source = services.table.get(Key(CHECKPOINTS, row.key.sort)) if is_held else None
        trial = services.experiments.read_trial(int(source.body)) if source else None
        if trial is not None and trial.experiment_id == experiment_id:
            if pin.versions:
                text = f"{pin.versions_text()} its checkpoint {row.key.sort}"
                raise RequestError(Code.CONFLICT, f"{text}; `detcloud model delete` releases it")
            if pin.users:
                text = f"{', '.join(pin.users)} pinned its checkpoint {row.key.sort}"
                raise RequestError(
                    Code.CONFLICT, f"{text}; `detcloud checkpoint unpin` releases it"
                )
            other = next(by for by in pin.experiments if by != experiment_id)
            text = f"experiment {other} started from its checkpoint {row.key.sort}"
            raise RequestError(Code.CONFLICT, f"{text}; delete that experiment first")


def deletion_checks(services: Services, experiment_id: int) -> tuple[Check, ...]:
    """Return checks that make a commit fail with Conflict after the experiment's deletion began.

    Return an empty tuple for an experiment that has not ended, because only ended experiments can
    be deleted. Otherwise the check expects the present revision of the experiment's head row.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict, if the experiment is
            being deleted.
    """
    head = services.table.get(Key(addresses.experiment(experiment_id), HEAD))
    # Read the state after the head's row, so that the checked revision is not newer than the state.
    state, _ = experiments.get_experiment(services, experiment_id)
    if head is None or state.status in DELETION_STATUSES:
        raise RequestError(Code.CONFLICT, f"experiment {experiment_id} is being deleted")
    return (Check(head.key, head.revision),) if state.status.is_final else ()
