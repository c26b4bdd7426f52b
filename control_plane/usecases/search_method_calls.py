"""The time of the last call of a custom search's method, recorded for its experiment's answer."""

from control_plane.actors import addresses
from control_plane.actors.experiment.custom_search import custom_state
from control_plane.queries import experiment as experiments
from control_plane.queries.search_method import LAST_CALL, last_call_ms
from control_plane.services import Services
from control_plane.state.table import Expect, Key, Put

# The least time between two records, however often a method calls.
RECORD_INTERVAL_MS = 30_000


def record_method_call(services: Services, experiment_id: int) -> None:
    """Record that the experiment's search method called.

    Raises:
        RequestError: not_found.
        CommandRefused: the search is not driven by a user's method.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    custom_state(state)
    now_ms = services.now_ms()
    before_ms = last_call_ms(services, experiment_id)
    if before_ms is None or abs(now_ms - before_ms) >= RECORD_INTERVAL_MS:
        key = Key(addresses.experiment(experiment_id), LAST_CALL)
        services.table.commit((Put(key, 1, b"%d" % now_ms, Expect.ANYTHING),))
