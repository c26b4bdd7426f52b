"""Checks of submitted experiments, commands, notebooks and shells against the cluster."""

from collections.abc import Sequence

from control_plane.actors.records import JobKind
from control_plane.config.run_limits import LimitRules, RunLimits
from control_plane.errors import invalid
from control_plane.findings import path_text
from control_plane.services import Services
from control_plane.usecases.placement import Destination


def check_limits(rules: LimitRules, kind: JobKind, limits: RunLimits) -> None:
    """Check the limits of a submitted job against the cluster's longest limits.

    Raises:
        RequestError: invalid, if a limit is longer than the cluster allows, or null.
    """
    if problem := rules.find_problem(kind, limits):
        raise invalid(path_text(problem.loc), problem.message, problem.hint)


def check_reachable(services: Services, pools: Sequence[Destination], kind: JobKind) -> None:
    """Check that a user can connect to the machines of the pools, for notebooks and shells.

    Other kinds of jobs pass, and all kinds on a cluster with a relay. Pools without a provider, or
    with the provider `local`, pass too.

    Raises:
        RequestError: invalid, for a pool of machines in a cloud, which are reached over a relay
            only.
    """
    if kind not in (JobKind.NOTEBOOK, JobKind.SHELL) or services.relay is not None:
        return
    for to in pools:
        if to.pool.provider is not None and to.pool.provider.type != "local":
            raise invalid(
                "resources.resource_pool",
                f"is {to.name}, whose machines in a cloud are reached over a relay, and this"
                " cluster has no relay",
                f"start the {kind} on a cluster with a relay or on your own machine (`detcloud"
                " up`), or run a program with `detcloud command run`",
            )
