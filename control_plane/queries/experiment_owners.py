"""Ownership of experiments and trials, which decides who may change an experiment or trial."""

from control_plane.access.ownership import Action, OwnedObject, find_refusal
from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.errors import Code, RequestError
from control_plane.services import Services

_ALTERNATIVE = "create your own from its configuration"


def find_owned_experiment(
    services: Services, experiment_id: int, name: str = ""
) -> tuple[OwnedObject, ...]:
    """Return the ownership of an experiment in a tuple, even if the experiment was deleted.

    The submitter owns the experiment.

    Args:
        services: the services that read the state.
        experiment_id: the experiment.
        name: the name of the owned object in messages, such as a trial of the experiment; empty for
            the experiment itself.

    Raises:
        RequestError: not_found, if the experiment never existed.
    """
    state = services.engine.read_state(addresses.experiment(experiment_id))
    if not isinstance(state, ExperimentState):
        raise RequestError(Code.NOT_FOUND, f"there is no experiment {experiment_id}")
    name = name or f"experiment {experiment_id}"
    return (OwnedObject(name, (state.owner,), _ALTERNATIVE),)


def find_owned_trial(services: Services, trial_id: int) -> tuple[OwnedObject, ...]:
    """Return the ownership of a trial, which is that of the trial's experiment.

    A deleted trial has an owner, too.

    Raises:
        RequestError: not_found, if the trial does not exist.
    """
    state = services.experiments.read_trial(trial_id)
    if state is None:
        raise RequestError(Code.NOT_FOUND, f"there is no trial {trial_id}")
    number = state.experiment_id
    return find_owned_experiment(services, number, f"trial {trial_id} of experiment {number}")


def may_change_experiment(services: Services, experiment_id: int, caller: Principal) -> bool:
    """Return whether the caller may change the experiment, as owner or by role.

    Raises:
        RequestError: not_found, if the experiment never existed.
    """
    [owned] = find_owned_experiment(services, experiment_id)
    return find_refusal(caller, Action.CHANGE, owned) is None
