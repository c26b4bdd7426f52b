"""Query of a custom search's method, which runs in a process of the user."""

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.queries.answer import Answer
from control_plane.rows import experiment_rows
from control_plane.searchers.methods.custom import CustomState
from control_plane.services import Services
from control_plane.state.table import Key

LAST_CALL = experiment_rows.METHOD_CALL.sort
"""The sort key of the row, in an experiment's partition, with the time of its search method's last
call.
"""


class MethodView(Answer):
    """The user's process that runs the method of a custom search.

    `heard_ms` is the time of its last recorded call, or null. Calls within half a minute of a
    recorded call are not recorded. `events_waiting` is the number of events that the process has
    not acknowledged.
    """

    heard_ms: int | None
    events_waiting: int


def describe_method(services: Services, state: ExperimentState) -> MethodView | None:
    """Return the last call and the number of unacknowledged events of a custom search's method.

    Return None if the search is not custom.
    """
    method = state.search.method
    if not isinstance(method, CustomState):
        return None
    waiting = method.newest - method.acknowledged
    return MethodView(heard_ms=last_call_ms(services, state.experiment_id), events_waiting=waiting)


def last_call_ms(services: Services, experiment_id: int) -> int | None:
    """Return the time of the last recorded call of the experiment's search method, in epoch ms.

    Return None without a recorded call.
    """
    row = services.table.get(Key(addresses.experiment(experiment_id), LAST_CALL))
    return int(row.body) if row else None
