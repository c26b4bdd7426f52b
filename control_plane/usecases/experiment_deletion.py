"""The conditions for deleting an experiment or something of it: who may, and that nothing needs
one of its checkpoints.
"""

from control_plane.access.principals import Principal, Role
from control_plane.actors.pins import PINS, decode_pin
from control_plane.actors.trial.checkpoints import CHECKPOINTS
from control_plane.errors import Code, RequestError
from control_plane.queries import experiment as experiments
from control_plane.queries.row_pages import read_rows
from control_plane.services import Services
from control_plane.state.table import Key


def check_may_delete(services: Services, experiment_id: int, caller: Principal) -> None:
    """Check that the experiment is the caller's own, or the caller an admin: what is deleted does
    not come back.

    Raises:
        RequestError: not_found; forbidden, naming the owner.
    """
    check_is_owner(services, experiment_id, caller, "delete of it")


def check_is_owner(services: Services, experiment_id: int, caller: Principal, action: str) -> None:
    """Check that the experiment is the caller's own, or the caller an admin. Raises as
    `check_may_delete`.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    if caller.role is not Role.ADMIN and state.owner != caller.user:
        text = f"experiment {experiment_id} is {state.owner}'s: only they or an admin {action}"
        raise RequestError(Code.FORBIDDEN, text)


def check_unpinned(services: Services, experiment_id: int) -> None:
    """Check that no other experiment started from a checkpoint of this one, no model version
    holds one and nobody pinned one.

    Raises:
        RequestError: not_found; conflict, naming what does.
    """
    experiments.get_experiment(services, experiment_id)
    for row in read_rows(services.table, PINS, " ", "~"):
        pin = decode_pin(row.body)
        is_held = pin.is_held(experiment_id)
        source = services.table.get(Key(CHECKPOINTS, row.key.sort)) if is_held else None
        trial = services.agents.read_trial(int(source.body)) if source else None
        if trial is not None and trial.experiment_id == experiment_id:
            if pin.versions:
                text = f"{pin.versions_text()} its checkpoint {row.key.sort}"
                raise RequestError(Code.CONFLICT, f"{text}; `detcloud model delete` releases it")
            if pin.users:
                text = f"{', '.join(pin.users)} pinned its checkpoint {row.key.sort}"
                raise RequestError(
                    Code.CONFLICT, f"{text}; `detcloud checkpoint unpin` releases it"
                )
            other = next(by for by in pin.by if by != experiment_id)
            text = f"experiment {other} started from its checkpoint {row.key.sort}"
            raise RequestError(Code.CONFLICT, f"{text}; delete that experiment first")
