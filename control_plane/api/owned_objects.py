"""Declarations for the option `changes` of routes: each finds the objects that a request changes.

A declaration is a function, a dependency of FastAPI, and reads the path and the body like a
handler. A route names the function itself, such as `changes=only_own`; FastAPI calls the function
for each request.
"""

from functools import partial

from control_plane.access.ownership import FindOwned, OwnedObject
from control_plane.api.dependencies import ExperimentId, ServicesParameter, TrialId
from control_plane.queries.experiment_owners import find_owned_experiment, find_owned_trial


def experiment_in_path(experiment_id: ExperimentId, services: ServicesParameter) -> FindOwned:
    """Return a function that finds the ownership of the experiment in the path.

    The function raises RequestError not_found if the experiment never existed.
    """
    return partial(find_owned_experiment, services, experiment_id)


def trial_in_path(trial_id: TrialId, services: ServicesParameter) -> FindOwned:
    """Return a function that finds the ownership of the trial in the path.

    The owner of the trial's experiment is the owner. The function raises RequestError not_found if
    the trial does not exist.
    """
    return partial(find_owned_trial, services, trial_id)


def only_own() -> FindOwned:
    """Return a function that finds no objects, for a route that changes nothing of other users.

    For example, the route creates an object for the caller, or changes the caller's own pin. Write
    `changes=only_own` without a call: `only_own` itself is the dependency that FastAPI calls.
    """
    return _nothing


def _nothing() -> tuple[OwnedObject, ...]:
    return ()
