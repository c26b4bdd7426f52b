"""The numbers of running and queued allocations of jobs, from the rows of pools.

The pool stores the numbers of a job in a leaf of a tree. Each level of the tree is read for all
jobs in one call, so that a list of many jobs needs as many calls as a list of one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.pool.groups import Group
from control_plane.actors.pool.state import job_queue_of
from control_plane.actors.records import Status
from control_plane.engine.head import PARTS
from control_plane.engine.read_only import PartMissing, PrefetchedParts, read_only_context
from control_plane.queries.conditions import ExperimentCondition, experiment_condition
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Key


class JobCounts(NamedTuple):
    """The number of allocations of a job."""

    running: int = 0
    """The number of allocations that hold slots."""
    queued: int = 0
    """The number of requests for slots in the queue."""


def experiment_conditions(
    services: Services, states: Iterable[ExperimentState]
) -> dict[int, ExperimentCondition]:
    """Return the conditions of experiments, by id. Reads the pools of active experiments."""
    known = list(states)
    active = {state.experiment_id: state.pool for state in known if state.status is Status.ACTIVE}
    counts = read_job_counts(services, active)
    none = JobCounts()
    return {
        state.experiment_id: experiment_condition(
            state.status, **counts.get(state.experiment_id, none)._asdict()
        )
        for state in known
    }


def read_job_counts(services: Services, pools: Mapping[int, str]) -> dict[int, JobCounts]:
    """Read the allocations of jobs. Jobs that neither hold nor request slots are left out.

    The number of calls to the table depends on the depth of the pools' trees, not on the number of
    jobs, except that a call reads at most GET_MAX rows. Rows of different moments may be combined
    if a pool changes during the read; the next read corrects the numbers.

    Args:
        services: the services that read the state table.
        pools: the pool of each job, by experiment id.
    """
    parts = {
        pool: PrefetchedParts(services.engine, addresses.pool(pool)) for pool in pools.values()
    }
    counts: dict[int, JobCounts] = {}
    open_jobs = dict(pools)
    while open_jobs:
        missing: dict[Key, tuple[str, str]] = {}
        waiting: dict[int, str] = {}
        for number, pool in open_jobs.items():
            try:
                group = _find_group(services, parts[pool], number)
            except PartMissing as error:
                key = Key(parts[pool].address, PARTS + error.name)
                missing[key] = pool, error.name
                waiting[number] = pool
                continue
            if group is not None and not group.is_idle:
                counts[number] = JobCounts(group.running, sum(group.pending.values()))
        _read_missing(services, parts, missing)
        open_jobs = waiting
    return counts


def _find_group(services: Services, parts: PrefetchedParts, number: int) -> Group | None:
    """Return a job of a pool from the parts of the pool. Return None for an idle or unknown job.

    Raises:
        PartMissing: a part of the pool is not read yet.
    """
    context = read_only_context(services.engine, parts.address, parts)
    return job_queue_of(context).group_at_work(number)


def _read_missing(
    services: Services,
    parts: Mapping[str, PrefetchedParts],
    missing: Mapping[Key, tuple[str, str]],
) -> None:
    """Read rows, and add each row to the parts of the pool.

    Args:
        services: the services that read the state table.
        parts: the parts by the name of the pool.
        missing: the pool's name and the part's name, by the key of the row.
    """
    keys = list(missing)
    for first in range(0, len(keys), GET_MAX):
        batch = keys[first : first + GET_MAX]
        for key, row in zip(batch, services.table.get_many(batch), strict=True):
            pool, name = missing[key]
            parts[pool].add(name, row)
