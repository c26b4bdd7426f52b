"""Record of the last call of a custom search's method."""

from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.experiment.custom_search import custom_state
from control_plane.queries import experiment as experiments
from control_plane.queries.experiment_owners import may_change_experiment
from control_plane.queries.search_method import LAST_CALL, last_call_ms
from control_plane.services import Services
from control_plane.state.table import Expect, Key, Put

# The minimum time between two records.
RECORD_INTERVAL_MS = 30_000


def record_method_call(services: Services, experiment_id: int, caller: Principal) -> None:
    """Store the time of the search method's last call as a row, at most every 30 seconds.

    Store nothing if the caller may not change the experiment, because the caller is then not the
    search method. Store nothing within RECORD_INTERVAL_MS of the last record. The errors are raised
    for every caller and every call.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict (CommandRefused), if the
            experiment's search is not a custom search.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    custom_state(state)
    if not may_change_experiment(services, experiment_id, caller):
        return
    now_ms = services.now_ms()
    before_ms = last_call_ms(services, experiment_id)
    if before_ms is None or abs(now_ms - before_ms) >= RECORD_INTERVAL_MS:
        key = Key(addresses.experiment(experiment_id), LAST_CALL)
        services.table.commit((Put(key, 1, b"%d" % now_ms, Expect.ANYTHING),))
