"""The search method of a custom search, as its experiment shows it: a process of the user's, which
is there or is not.
"""

from control_plane.actors import addresses
from control_plane.actors.experiment_state import ExperimentState
from control_plane.api.bodies import Body
from control_plane.api.services import Services
from control_plane.searchers.custom import CustomState
from control_plane.state.table import Expect, Key, Put

# A method that calls is noted down so often, and no oftener.
NOTED_EACH_MS = 30_000

_HEARD = "H#method"


class MethodView(Body):
    """`heard_ms`: when it last called, or up to half a minute before; null: never. So many of the
    `events_waiting` it has not acknowledged.
    """

    heard_ms: int | None
    events_waiting: int


def note(services: Services, experiment_id: int) -> None:
    """Notes that the experiment's search method called."""
    now_ms = services.now_ms()
    before_ms = _heard_ms(services, experiment_id)
    if before_ms is None or abs(now_ms - before_ms) >= NOTED_EACH_MS:
        key = Key(addresses.experiment(experiment_id), _HEARD)
        services.table.commit((Put(key, 1, b"%d" % now_ms, Expect.ANYTHING),))


def method_view(services: Services, state: ExperimentState) -> MethodView | None:
    """The experiment's search method, None where it has none of its own."""
    method = state.search.method
    if not isinstance(method, CustomState):
        return None
    waiting = method.newest - method.acknowledged
    return MethodView(heard_ms=_heard_ms(services, state.experiment_id), events_waiting=waiting)


def _heard_ms(services: Services, experiment_id: int) -> int | None:
    row = services.table.get(Key(addresses.experiment(experiment_id), _HEARD))
    return int(row.body) if row else None
