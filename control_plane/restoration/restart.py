"""The restart of a cluster from an older copy of its state.

Nobody may use the state meanwhile. Each step may be done again, so after a crash all of them are:
the new incarnation is written last.

1. Ids that may have been given after the copy was taken are skipped.
2. All agents count as lost, so that every run begins again from its latest checkpoint. What went on
   after the copy was taken is not in it: an agent that is still there may have a trial's next run.
3. Experiments give up the ids that they have reserved for their trials.
4. The state gets a new incarnation, by which agents know that they have to drop what they have.
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
from control_plane.fleet.rows import read_rows
from control_plane.restoration.incarnation import incarnation_write
from control_plane.state.table import Expect, Key, Put, StateTable

# How many ids may have been given since the copy was taken, where nobody knows.
SKIPPED_IDS: Mapping[str, int] = {"experiment": 1_000, "trial": 1_000_000, "token": 1_000}
REASON = "the cluster was restored from an older copy of its state"
# An actor that does not come to rest within this time goes on when the cluster runs.
_BUDGET_MS = 600_000


@dataclass(frozen=True)
class RestartReport:
    """The outcome of a restart: the incarnation, the next id of each counter, the agents that were
    given up, and how many experiments have not ended.
    """

    incarnation: str
    next_ids: Mapping[str, int]
    agents: tuple[str, ...]
    experiments: int


def read_next_ids(table: StateTable) -> dict[str, int]:
    """Read the next id of each counter that was used."""
    return {row.key.sort: int(row.body) for row in read_rows(table, COUNTERS)}


def begin_incarnation(
    engine: Engine,
    given_ids: Mapping[str, int] | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> RestartReport:
    """Make the older copy of a state, on which nothing runs, safe to be used.

    `given_ids` are the next ids as of the newest state there was; None: it is lost, and
    SKIPPED_IDS are skipped. `on_step` hears what is being done.
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
    # What a restart left that was cut short, or the cluster when the copy was taken.
    late = Engine(engine.table, lambda: engine.clock() + RECOVERY_DELAY_MS)
    process_due_rows(late, expiry_shards=(), budget_ms=_BUDGET_MS)
    on_step("telling experiments")
    experiments = 0
    for row in read_rows(engine.table, LISTING):
        experiments += _notify_experiment(engine, row.key)
    incarnation = str(uuid.uuid4())
    engine.table.commit((incarnation_write(incarnation),))
    return RestartReport(incarnation, next_ids, agents, experiments)


def _skip_ids(table: StateTable, given: Mapping[str, int] | None) -> dict[str, int]:
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
    """Tell an experiment of the listing row unless it needs no ids any more; whether it goes on."""
    address = addresses.experiment(int(key.sort))
    state = engine.read_state(address)
    if not isinstance(state, ExperimentState) or state.status is Status.DELETED:
        return False
    goes_on = not state.status.is_final
    if goes_on or state.ids.first < state.ids.end:
        engine.execute_command(address, ClusterRestored())
    return goes_on
