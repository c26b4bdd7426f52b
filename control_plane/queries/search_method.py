"""The search method of a custom search, a process of the user's, as its experiment shows it."""

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.queries.answer import Answer
from control_plane.searchers.methods.custom import CustomState
from control_plane.services import Services
from control_plane.state.table import Key

LAST_CALL = "H#method"
"""The sort key, among an experiment's rows, of the time of its method's last call."""


class MethodView(Answer):
    """A search method. `heard_ms`: when it last called, or up to half a minute before; null: never.
    `events_waiting`: the number of events that it has not acknowledged.
    """

    heard_ms: int | None
    events_waiting: int


def describe_method(services: Services, state: ExperimentState) -> MethodView | None:
    """Describe the experiment's search method, None where it has none of its own."""
    method = state.search.method
    if not isinstance(method, CustomState):
        return None
    waiting = method.newest - method.acknowledged
    return MethodView(heard_ms=last_call_ms(services, state.experiment_id), events_waiting=waiting)


def last_call_ms(services: Services, experiment_id: int) -> int | None:
    """The time of the last recorded call of the experiment's search method, None for never."""
    row = services.table.get(Key(addresses.experiment(experiment_id), LAST_CALL))
    return int(row.body) if row else None
