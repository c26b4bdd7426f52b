"""Routes for forks: the family of an experiment, and the measured pace of the training."""

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ExperimentId, ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import family, pace

router = guarded_router("experiments")


@router.get("/experiments/{experiment_id}/family")
@require_role(*USER_ROLES)
def describe_family(experiment_id: ExperimentId, services: ServicesParameter) -> family.Family:
    """Return the experiment with all originals, siblings and forks, as a tree.

    Siblings are forks of the same original. Each fork has the differences of the hyperparameters
    and the search from the original's. Errors: `not_found` for an unknown or deleted experiment.
    """
    return family.describe_family(services, experiment_id)


@router.get("/experiments/{experiment_id}/pace")
@require_role(*USER_ROLES)
def describe_pace(experiment_id: ExperimentId, services: ServicesParameter) -> pace.Pace:
    """Return the measured time and cost of a unit of the experiment's training, for estimates.

    Errors: `not_found` for an unknown or deleted experiment.
    """
    return pace.describe_pace(services, experiment_id)
