"""Mutants of the whole system, each with a disabled condition, fence, intent or check.

A mutant names the faults under which a simulated cluster must break an invariant.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from control_plane.actors.pool import scheduling
from control_plane.actors.pool.agent_slots import AgentSlots
from control_plane.actors.trial import exits, lifecycle
from control_plane.agents import desired_state as desired
from control_plane.agents import sync_acceptance
from control_plane.engine import due_rows, fold_steps, mailbox, redrive
from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import AllocationRequest, Placement
from control_plane.state.table import Expect, Put, Row, StateTable, Write
from provisioner import (
    consolidation,
    engine_pools,
    launcher,
    observations,
    reconcile_pass,
    sizing,
)
from provisioner.clouds.provider import CloudProvider
from provisioner.consolidation import SpareMarks
from provisioner.model import ConnectedAgent, Launch
from provisioner.request_shapes import RequestShape
from simulator.checks.state_checker import CheckedTable, StateChecker
from simulator.faults.fault_rates import NO_FAULTS, FaultRates
from simulator.faults.table_faults import TableDecorator
from simulator.seeded import simulated_cluster
from simulator.seeded.simulated_cluster import ClusterSize
from tests.simulation.conditions import Family, WithoutCondition

Patch = Callable[[pytest.MonkeyPatch], None]


SMALL = ClusterSize(experiments=2, pools=1, machines_max=2, hours=1.0)


@dataclass(frozen=True)
class Mutant:
    """A mutation of the system, and the faults under which a simulated cluster breaks."""

    name: str
    takes_away: Patch
    """Patches the system."""
    rates: FaultRates
    seen: str = ""
    """Pattern of the message of the broken invariant; empty for any message."""
    size: ClusterSize = SMALL
    first_seed: int = 1
    """First seed to run. Earlier seeds are known to break no invariant."""


def without_family(*families: Family) -> Patch:
    """Return a patch that drops the conditions of `families` from commits."""
    return _table_patch(lambda table: WithoutCondition(table, frozenset(families)))


def without_conditions_on(*partitions: str) -> Patch:
    """Return a patch that drops conditions on rows in partitions with the prefixes `partitions`."""
    return _table_patch(lambda table: UnconditionalTable(table, partitions))


def patch_attribute(target: object, name: str, value: object) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(target, name, value)


def combine_patches(*patches: Patch) -> Patch:
    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        for patch in patches:
            patch(monkeypatch)

    return apply


def share_one_token() -> Patch:
    """Give all launches an equal token, in all zones."""
    new_intents = launcher.Launcher.new_intents

    def intents_with_one_token(self: Any, launches: Any) -> Any:
        return [replace(intent, token="token") for intent in new_intents(self, launches)]

    return patch_attribute(launcher.Launcher, "new_intents", intents_with_one_token)


class TokenRenamingCloud:
    """A cloud that replaces the token of each launch by a new one."""

    def __init__(self, cloud: CloudProvider, numbers: Iterator[int]) -> None:
        self._cloud = cloud
        self._numbers = numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)

    def launch(self, request: Any) -> Any:
        return self._cloud.launch(replace(request, token=f"{next(self._numbers)}"))


def renew_token_each_time() -> Patch:
    """Retry unanswered launches with a new token."""
    numbers, attempt = iter(range(10**6)), launcher.Launcher.attempt

    def attempt_with_new_token(self: Any, cloud: CloudProvider, intent: Any, **named: Any) -> Any:
        renaming: Any = TokenRenamingCloud(cloud, numbers)
        return attempt(self, renaming, intent, **named)

    return patch_attribute(launcher.Launcher, "attempt", attempt_with_new_token)


def ignore_pending_launches() -> Patch:
    """Hide pending launches from the fleet snapshot."""
    seen = reconcile_pass.ReconcilePass._fleet_snapshot
    return patch_attribute(
        reconcile_pass.ReconcilePass,
        "_fleet_snapshot",
        lambda *given: replace(seen(*given), pending=()),
    )


def launch_for_gangs_again() -> Patch:
    """Ignore idle connected agents when sizing launches for gangs."""
    size_gangs = sizing._launches_for_gangs

    def size_without_agents(
        demand: Any, shapes: Any, offering: Any, capacity: Any, *more: Any
    ) -> tuple[list[Launch], set[RequestShape]]:
        starting = [item for item in capacity if not item.is_connected]
        return size_gangs(demand, shapes, offering, starting, *more)

    return patch_attribute(sizing, "_launches_for_gangs", size_without_agents)


def serve_own_market_only(self: sizing.FreeCapacity, shape: RequestShape) -> bool:
    """Return False for a spot request on an on-demand instance."""
    return shape.market in (None, self.market)


def place_anywhere(self: AgentSet, request: AllocationRequest) -> tuple[Placement, ...]:
    """Return placements as if the request excluded no agent."""
    return self._find_placements(request)


def keep_no_idle(*given: object) -> int:
    """Return 0, so that no idle instance is kept for waiting requests."""
    return 0


def trust_marks(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    """Return `mark_ms` unchanged, even from a clock that was ahead; set a missing mark to now."""
    return now_ms if mark_ms is None and holds else mark_ms


def forget_spare(*given: object) -> SpareMarks:
    """Return no marks, so that only idleness ends an instance."""
    return {}


def see_no_work(agent: AgentSlots) -> ConnectedAgent:
    """Return the agent as idle, even if the agent runs work."""
    availability, free_slots = agent.availability, agent.free_count
    is_closed = availability.is_closed_by_user
    return ConnectedAgent(True, availability.enabled, (), free_slots, is_closed)


def _table_patch(made: Callable[[StateTable], StateTable]) -> Patch:
    def table(rows: StateTable, checker: StateChecker) -> StateTable:
        return made(CheckedTable(rows, checker))

    return patch_attribute(simulated_cluster, "CheckedTable", table)


class UnconditionalTable(TableDecorator):
    """A table that drops conditions on rows in partitions with given prefixes."""

    def __init__(self, table: StateTable, partitions: tuple[str, ...]) -> None:
        super().__init__(table)
        self._partitions = partitions

    def commit(self, writes: Sequence[Write]) -> None:
        """Commit `writes` without conditions on rows of the partitions."""
        kept = [
            replace(write, expect=Expect.ANYTHING)
            if write.key.partition.startswith(self._partitions)
            else write
            for write in writes
        ]
        self.table.commit(kept)


# Messages that may get lost. The audit repairs the missing effects.
AUDITED = (
    "SlotsReleased",
    "AgentJoined",
    "AgentLost",
    "AllocationPlaced",
    "AllocationRemoved",
    "JobChanged",
)
LOST_SHARE = 0.05


class ForgetfulTable(TableDecorator):
    """A table that loses some mail of AUDITED messages. The engine never loses mail."""

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self._random = Random(1)

    def commit(self, writes: Sequence[Write]) -> None:
        """Commit `writes` without the lost mail."""
        kept = [write for write in writes if not self._is_lost(write)]
        if kept:
            self.table.commit(kept)

    def _is_lost(self, write: Write) -> bool:
        if not isinstance(write, Put) or not write.key.sort.startswith(mailbox.MAIL):
            return False
        names = {name for name, _ in mailbox.read_mail(row_of(write)).messages}
        return names.issubset(AUDITED) and self._random.random() < LOST_SHARE


def row_of(put: Put) -> Row:
    return Row(put.key, put.revision, put.body, put.due_ms)


def nothing(*given: object, **named: object) -> None:
    """Do nothing in place of a removed function."""


forgetting = _table_patch(ForgetfulTable)
unaudited = patch_attribute(simulated_cluster, "audit_pool", nothing)
unswept = patch_attribute(simulated_cluster.SimulatedCluster, "_terminate_orphans", nothing)

CALM = NO_FAULTS
MATCHING = replace(NO_FAULTS, matching_logs=0.5)
AHEAD = replace(NO_FAULTS, clocks_ahead=0.3)
RACING = replace(NO_FAULTS, races=0.15, duplicates=0.05, reordering=0.1, crashes=0.01)
STORMY = replace(NO_FAULTS, races=0.5, lost_triggers=0.4, duplicates=0.2, torn_queries=0.5)
LATE = replace(
    NO_FAULTS, reordering=0.3, duplicates=0.3, agent_restarts_hourly=10.0, lost_calls=0.1
)
LOST = replace(NO_FAULTS, zombies_hourly=6.0, agent_restarts_hourly=8.0, lost_calls=0.1)
SILENT = replace(NO_FAULTS, lost_triggers=0.4)
HEAVY = replace(SILENT, out_of_memory=0.6)
CLOUDY = replace(NO_FAULTS, no_capacity=0.3, lost_calls=0.4, replayed_tokens=0.8, crashes=0.02)
SOLD_OUT = replace(CLOUDY, no_capacity=0.6)
CROWDED_SKY = replace(
    CLOUDY,
    races=0.9,
    reordering=0.6,
    dead_boots=0.6,
    notices_hourly=20.0,
    losses_hourly=10.0,
)
MANY = ClusterSize(experiments=4, pools=1, machines_max=6, hours=1.0)
ROOMY = ClusterSize(experiments=3, pools=1, machines_max=9, hours=1.0)
TOGETHER = ClusterSize(experiments=6, pools=1, machines_max=2, hours=0.02)

MUTANTS = (
    Mutant(
        "no condition on heads",
        without_family(Family.HEAD),
        RACING,
        "skips a revision",
        first_seed=22,
    ),
    Mutant(
        "no condition on births",
        without_family(Family.BIRTH),
        RACING,
        "skips a revision",
        first_seed=3,
    ),
    Mutant(
        "no condition on attempts",
        without_family(Family.ATTEMPTS),
        STORMY,
        "folds",
        first_seed=7,
    ),
    Mutant("no condition on sessions", without_family(Family.SESSION), replace(LATE, races=0.3)),
    Mutant("no guards", without_family(Family.GUARD), STORMY, size=TOGETHER),
    Mutant(
        "no condition on fleets",
        without_conditions_on("fleets"),
        CROWDED_SKY,
        "it may have|belongs to another request",
        size=MANY,
        first_seed=5,
    ),
    Mutant("no fence of leases", patch_attribute(sync_acceptance, "renew_lease", nothing), LOST),
    Mutant(
        "no fence of slots",
        patch_attribute(desired, "_is_crowded", nothing),
        LOST,
        "on slots of",
        first_seed=7,
    ),
    Mutant(
        "no pass over due rows",
        patch_attribute(due_rows, "process_due_rows", nothing),
        SILENT,
        "never at rest",
    ),
    Mutant(
        "no isolated fold",
        combine_patches(
            patch_attribute(redrive, "ISOLATE_FROM_ATTEMPTS", 99),
            patch_attribute(fold_steps, "ISOLATE_FROM_ATTEMPTS", 99),
        ),
        HEAVY,
    ),
    Mutant(
        "no quiet hours",
        patch_attribute(scheduling, "startable_jobs", lambda jobs, period: jobs),
        CALM,
        "in the quiet hours",
        first_seed=2,
    ),
    Mutant(
        "no limit of a trial's time",
        patch_attribute(lifecycle, "remaining_time_ms", nothing),
        CALM,
        "runs beyond its max_trial_duration",
        first_seed=2,
    ),
    Mutant(
        "no failures in the restart window",
        patch_attribute(exits, "counted_failures", lambda state, now_ms: 0),
        MATCHING,
        "restarts after failures",
        first_seed=2,
    ),
    Mutant("no audit", combine_patches(forgetting, unaudited), NO_FAULTS),
    Mutant(
        "no distinct launch tokens",
        share_one_token(),
        CLOUDY,
        "belongs to another request",
        first_seed=4,
    ),
    Mutant("no launches under way", ignore_pending_launches(), CLOUDY, "it may have", first_seed=5),
    Mutant("no sweep", unswept, SOLD_OUT, "is nobody's", first_seed=4),
    Mutant(
        "no frozen token and no sweep",
        combine_patches(renew_token_each_time(), unswept),
        CLOUDY,
        "is nobody's",
    ),
    Mutant("no idle agents for gangs", launch_for_gangs_again(), CALM, "never at rest", ROOMY, 6),
    Mutant(
        "no spot request on on-demand instances",
        patch_attribute(sizing.FreeCapacity, "may_serve", serve_own_market_only),
        CALM,
        "instances in an hour",
        ROOMY,
        first_seed=5,
    ),
    Mutant(
        "no idle instance kept",
        patch_attribute(sizing, "count_kept_idle", keep_no_idle),
        CALM,
        "are needed by waiting requests",
        ROOMY,
        first_seed=16,
    ),
    Mutant(
        "no exclusion of agents",
        patch_attribute(AgentSet, "find_placements", place_anywhere),
        MATCHING,
        "runs on the excluded",
    ),
    Mutant(
        "no correction of marks ahead",
        combine_patches(
            patch_attribute(observations, "_mark_once", trust_marks),
            patch_attribute(consolidation, "updated_marks", forget_spare),
        ),
        AHEAD,
        "never at rest",
        first_seed=2,
    ),
    Mutant(
        "no check for work",
        patch_attribute(engine_pools, "_connected_agent", see_no_work),
        CALM,
        "is ended while it works",
    ),
)
CONTROLS = (
    Mutant("an audit", forgetting, NO_FAULTS),
    *(
        Mutant(name, nothing, rates, size=size)
        for name, rates, size in (
            ("racing", RACING, SMALL),
            ("stormy", STORMY, SMALL),
            ("together", STORMY, TOGETHER),
            ("late", replace(LATE, races=0.3), SMALL),
            ("lost", LOST, SMALL),
            ("heavy", HEAVY, SMALL),
            ("sold out", SOLD_OUT, SMALL),
            ("crowded sky", CROWDED_SKY, SMALL),
            ("calm", CALM, ROOMY),
            ("ahead", AHEAD, SMALL),
        )
    ),
)
