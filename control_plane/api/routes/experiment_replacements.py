"""The route of an experiment's replacements."""

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ExperimentId, ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries.experiment_replacements import (
    ExperimentReplacements,
    experiment_replacements,
)

router = guarded_router("experiments")


@router.get("/experiments/{experiment_id}/replacements")
@require_role(*USER_ROLES)
def sum_experiment_replacements(
    experiment_id: ExperimentId, services: ServicesParameter
) -> ExperimentReplacements:
    """Sum up the replacements of the experiment's trials, by cause and phase.

    Errors: `not_found` for an unknown experiment.
    """
    return experiment_replacements(services, experiment_id)
