"""The restart of a cluster from an older copy of its state.

Nothing else may use the state during the restart. Every step can be repeated, and the new
incarnation is written last. So after a crash, a second restart repeats all steps.

1. Skip the ids that may have been assigned after the copy was taken.
2. Mark all agents as lost, so that every run starts again from its latest checkpoint. The copy does
   not contain later events, so a live agent may already run a trial's next allocation.
3. Let experiments discard the ids that they have reserved for their trials.
4. Start a new incarnation, which tells agents to delete their allocations.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from control_plane.actors import addresses
from control_plane.actors.experiment.state import LISTING, ExperimentState
from control_plane.actors.identifiers import COUNTERS
from control_plane.actors.job_row import POOLS
from control_plane.actors.messages.experiment import ClusterRestored
from control_plane.actors.records import Status
from control_plane.agents.leases import mark_all_agents
from control_plane.engine.due_rows import process_due_rows
from control_plane.engine.engine import Engine
from control_plane.engine.mailbox import RECOVERY_DELAY_MS
from control_plane.restoration.incarnation import incarnation_write
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Expect, Key, Put, StateTable

SKIPPED_IDS: Mapping[str, int] = {
    "experiment": 1_000,
    "report": 1_000,
    "token": 1_000,
    "trial": 1_000_000,
}
"""The ids of each counter to skip if the newest state is lost."""
REASON = "the cluster was restored from an older copy of its state"
_BUDGET_MS = 600_000
"""The time for processing mail. Actors with mail left continue when the cluster runs."""


@dataclass(frozen=True)
class RestartReport:
    """The outcome of a restart."""

    incarnation: str
    """The name of the new incarnation."""
    next_ids: Mapping[str, int]
    """The next id of each counter."""
    agents: tuple[str, ...]
    """The agents that were marked as lost."""
    experiments: int
    """The number of experiments that have not ended."""


def read_next_ids(table: StateTable) -> dict[str, int]:
    """Read the next id of each counter that has a row."""
    return {row.key.sort: int(row.body) for row in read_rows(table, COUNTERS)}


def keep_used_ids(table: StateTable, copied: Mapping[str, int]) -> None:
    """Advance the counters of `table` that are behind the counters of a restored copy.

    A counter at or above the copy's value is exact and stays. A missing or smaller counter was
    lost: it becomes the copy's value plus `SKIPPED_IDS`. A repeated call changes nothing further.

    Args:
        copied: the next id of each counter in the copy.
    """
    for name, next_id in sorted(copied.items()):
        key = Key(COUNTERS, name)
        row = table.get(key)
        if row is not None and int(row.body) >= next_id:
            continue
        revision = 0 if row is None else row.revision
        skipped = SKIPPED_IDS.get(name, max(SKIPPED_IDS.values()))
        body = b"%d" % (next_id + skipped)
        table.commit((Put(key, revision + 1, body, revision or Expect.ABSENT),))


def begin_incarnation(
    engine: Engine,
    given_ids: Mapping[str, int] | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> RestartReport:
    """Make an older copy of a state safe to use, and start a new incarnation.

    Skip ids, mark all agents as lost, process the mail that is due, and notify the experiments.
    Nothing else may use the state meanwhile.

    Args:
        given_ids: the next ids of the newest state. None if that state is lost; then `SKIPPED_IDS`
            are skipped.
        on_step: called with the name of each step before the step.
    """
    on_step("skipping ids")
    next_ids = _skip_ids(engine.table, given_ids)
    on_step("giving up agents")
    follow = partial(engine.advance_until_idle, budget_ms=_BUDGET_MS)
    agents = tuple(
        agent
        for pool in [row.key.sort for row in read_rows(engine.table, POOLS)]
        for agent in mark_all_agents(engine.table, pool, engine.clock(), follow, REASON)
    )
    # Process mail that the cluster had left when the copy was taken, or an aborted restart. The
    # clock is ahead, so that all mail of the recovery delay is due.
    ahead = Engine(engine.table, lambda: engine.clock() + RECOVERY_DELAY_MS)
    process_due_rows(ahead, expiry_shards=(), budget_ms=_BUDGET_MS)
    on_step("telling experiments")
    experiments = 0
    for row in read_rows(engine.table, LISTING):
        experiments += _notify_experiment(engine, row.key)
    incarnation = str(uuid.uuid4())
    engine.table.commit((incarnation_write(incarnation),))
    return RestartReport(incarnation, next_ids, agents, experiments)


def _skip_ids(table: StateTable, given: Mapping[str, int] | None) -> dict[str, int]:
    """Advance all counters in the state table, and return the next ids.

    Without `given`, advance each counter by `SKIPPED_IDS`, and other counters by the largest of
    these numbers. With `given`, advance each counter to the given id unless it is already higher.
    """
    rows = {row.key.sort: row for row in read_rows(table, COUNTERS)}
    next_ids = {}
    for name in sorted({*rows, *SKIPPED_IDS, *(given or ())}):
        row = rows.get(name)
        first = 1 if row is None else int(row.body)
        skipped = SKIPPED_IDS.get(name, max(SKIPPED_IDS.values()))
        next_ids[name] = first + skipped if given is None else max(first, given.get(name, 1))
        revision = 0 if row is None else row.revision
        body = b"%d" % next_ids[name]
        expect = revision or Expect.ABSENT
        table.commit((Put(Key(COUNTERS, name), revision + 1, body, expect),))
    return next_ids


def _notify_experiment(engine: Engine, key: Key) -> bool:
    """Send `ClusterRestored` to an experiment, and return whether the experiment has not ended.

    An ended experiment only gets the message if it still has reserved ids. Return False for a
    deleted experiment.

    Args:
        key: the key of the experiment's row in the listing.
    """
    address = addresses.experiment(int(key.sort))
    state = engine.read_state(address)
    if not isinstance(state, ExperimentState) or state.status is Status.DELETED:
        return False
    is_active = not state.status.is_final
    if is_active or state.ids.first < state.ids.end:
        engine.execute_command(address, ClusterRestored())
    return is_active
