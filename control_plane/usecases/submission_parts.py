"""Checks of a submitted configuration against the cluster: search, checkpoint store and pools."""

from collections.abc import Sequence

from control_plane.actors.projects import find_name_problem
from control_plane.actors.records import (
    JobKind,
)
from control_plane.config.experiment import ExperimentConfig
from control_plane.errors import invalid
from control_plane.services import Services
from control_plane.usecases.placement import (
    RUN_SLOTS,
    SLOTS,
    Destination,
    check_fits,
    check_mounts,
    pool_places,
    trial_needs,
)
from control_plane.usecases.run_checks import check_reachable
from control_plane.usecases.storage_check import check_storage


def check_parts(
    services: Services, config: ExperimentConfig, pools: Sequence[Destination], kind: JobKind
) -> None:
    """Check the groups of the search, the checkpoint store, and that the pools can run the job.

    Raises:
        RequestError: invalid, for the first part that is invalid.
    """
    _check_groups(config)
    check_storage(services, config)
    _check_pools(services, pools, config, kind)
    check_reachable(services, pools, kind)


def _check_pools(
    services: Services, pools: Sequence[Destination], config: ExperimentConfig, kind: JobKind
) -> None:
    """Check that each of the pools could run the experiment: trials fit, and mounts are allowed.

    Raises:
        RequestError: invalid, for the first pool that could not. If the configuration names several
            pools, the error's path is that pool; otherwise it is the field, such as the slots.
    """
    needs = trial_needs(config.resources)
    if len(pools) == 1:
        check_fits(services, pools[0], needs, SLOTS if kind is JobKind.EXPERIMENT else RUN_SLOTS)
        check_mounts(pools[0], config)
        return
    for to, place in zip(pools, pool_places(len(pools)), strict=True):
        check_fits(services, to, needs, place)
        check_mounts(to, config, place)


def _check_groups(config: ExperimentConfig) -> None:
    """Check the names of the workspace and the project. Empty names pass.

    Configurations that are already stored may break the rules, so that loading does not check them.

    Raises:
        RequestError: invalid, for the first name that breaks a rule.
    """
    for kind, name in (("workspace", config.workspace), ("project", config.project)):
        if name and (problem := find_name_problem(name)):
            raise invalid(kind, f"{name!a:.140} {problem}")
