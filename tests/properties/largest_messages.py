"""The largest message of each type to an actor, and a cluster for the largest effects.

The cluster has a gang over as many agents as possible, hundreds of open trials, and long texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from control_plane.actors import records
from control_plane.actors.agent.exclusions import REASON_CHARACTERS_MAX as EXCLUSION_CHARACTERS_MAX
from control_plane.actors.agent.machine_faults import FAULTS_MAX
from control_plane.actors.agent.machine_faults import REASON_CHARACTERS_MAX as FAULT_CHARACTERS_MAX
from control_plane.actors.agent.occupancy import REASON_CHARACTERS_MAX as OCCUPANCY_CHARACTERS_MAX
from control_plane.actors.messages import agent as to_agent
from control_plane.actors.messages import experiment as to_experiment
from control_plane.actors.messages import pool as to_pool
from control_plane.actors.messages import trial as to_trial
from control_plane.actors.messages import trial_gang_checks as to_checks
from control_plane.actors.messages.experiment_events import (
    BestValidationDue,
    DeadlineNear,
    TrialAlerted,
    TrialLogMatched,
    WebhooksChanged,
)
from control_plane.actors.messages.experiment_expiry import ExpiryDue, ExpiryRequested
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.messages.pool import PoolConfigured, PoolSettings
from control_plane.actors.messages.trial_deletions import (
    PartialDeletionEnded,
    PartialDeletionRequested,
)
from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.pool_moves import PoolPreferences
from control_plane.actors.records import Availability, CheckpointRef, Place, Retention, Status
from control_plane.actors.trial.log_policies import EXCLUDED_MAX
from control_plane.agents.audit import STALE_PER_MESSAGE_MAX
from control_plane.agents.reports import (
    ALERT_CHARACTERS_MAX,
    DAMAGE_CHARACTERS_MAX,
    LOG_LINE_CHARACTERS_MAX,
    METADATA_BYTES_MAX,
    NOTICE_CHARACTERS_MAX,
)
from control_plane.api.agent_requests import SLOTS_BYTES_MAX, SLOTS_MAX
from control_plane.config.log_policies import NAME_CHARACTERS_MAX
from control_plane.engine.engine import Engine
from control_plane.scheduling.sizes import AGENTS_MAX
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.method import SuggestedPoints, SuggestionFailed
from control_plane.searchers.methods.custom import CustomPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.posted_operations import (
    HPARAMS_BYTES_MAX,
    OPERATIONS_MAX,
    PostedOperations,
    parse_operations,
)
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Const, Group
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Delete, Key, Put, StateTable, Write
from detcloud.shared.file_patterns import PATTERN_LENGTH_MAX, PATTERNS_MAX
from detcloud.shared.line_patterns.syntax import PATTERN_CHARACTERS_MAX
from simulator.faults.table_faults import TableDecorator
from tests.engine_timing import UNHURRIED
from tests.properties.largest_kind import MIXED_KIND
from tests.properties.largest_quiet_hours import largest_quiet_hours
from tests.properties.largest_run_reports import REASON, RUN_REPORTS, USE, text
from tests.unit.actors.sample_messages import (
    experiment_submitted,
    single_plan,
    trial_created,
    trial_settings,
)
from tests.unit.searchers.custom_search import create_operation

NOW_MS = 1_700_000_000_000
# A definition has the hyperparameters twice, in the configuration and in the plan.
HPARAMS_BYTES = 190_000
# More trials than a commit has operations, on a separate agent.
OPEN_TRIALS = 150
GANG, CROWD, CUSTOM, ENDED, SOLE = "experiment#1", "experiment#2", "experiment#3", 4, "experiment#5"
POOL, CROWDED_POOL, EMPTY_POOL = "pool#default", "pool#crowded", "pool#empty"
# The gang's trial occupies all slots of the pool, and later trials wait.
TRIAL, TRIAL_ID, WAITING_TRIAL = "trial#1", 1, "trial#2"
CROWDED_AGENT, ALL_SLOTS = "crowded", tuple(range(SLOTS_MAX))


def agent_name(number: int) -> str:
    return f"a{number:062d}"


PLACES = tuple(Place(agent_name(n), ALL_SLOTS) for n in range(AGENTS_MAX))
AGENTS = tuple(place.agent for place in PLACES)
CLOSED = Availability(False, True, ALL_SLOTS)
CHECKPOINTS = tuple(f"{n:08x}-0000-4000-8000-000000000001" for n in range(to_trial.COLLECTED_MAX))
PATTERNS = (text(PATTERN_LENGTH_MAX),) * PATTERNS_MAX
UUID_LAST = CHECKPOINTS[-1]
HPARAMS: Mapping[str, object] = {"x": text(HPARAMS_BYTES)}


class MailboxTable(TableDecorator):
    """A table that records unfolded mail rows and dead letters."""

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self.waiting: set[Key] = set()
        self.letters: set[Key] = set()

    def commit(self, writes: Sequence[Write]) -> None:
        super().commit(writes)
        for write in writes:
            if isinstance(write, Put) and write.key.sort.startswith("M#"):
                self.waiting.add(write.key)
            elif isinstance(write, Delete):
                self.waiting.discard(write.key)
            elif write.key.sort.startswith("D#"):
                self.letters.add(write.key)


def new_engine(table: StateTable) -> Engine:
    return Engine(table, lambda: NOW_MS, UNHURRIED)


def enrolment(name: str, pool: str, slots: int, bytes_max: int = 0) -> to_agent.AgentEnrolled:
    """Return an enrolment; `bytes_max` sets the approximate size of the slots."""
    long = "u" * (bytes_max // slots // 2 - 20)
    listed = tuple((number, "cuda", long, long) for number in range(slots))
    installation, host = f"{'f' * 32}/{'f' * 32}", "a" * 253
    memory_mib = (2**31,) * slots
    return to_agent.AgentEnrolled(
        name, pool, listed, text(200), "", host, "docker", installation, memory_mib, code="f" * 64
    )


def large_experiment(number: int, trials: int) -> to_experiment.ExperimentSubmitted:
    """Return an experiment with a definition as large as a row, and a gang over all agents."""
    plan = SearchPlan(RandomPlan(100, trials, 0, LENGTH_ERA), Group({"x": Const(HPARAMS["x"])}), 7)
    sample = experiment_submitted(plan, experiment_id=number)
    settings = trial_settings(slots=AGENTS_MAX * SLOTS_MAX)
    return replace(sample, config=text(HPARAMS_BYTES), settings=settings)


def crowded_experiment() -> to_experiment.ExperimentSubmitted:
    """Return an experiment with more open trials than a commit has operations."""
    plan = SearchPlan(RandomPlan(100, OPEN_TRIALS, 0, LENGTH_ERA), Group({"x": Const(1)}), 7)
    settings = replace(trial_settings(slots=1), pool="crowded")
    pools = PoolPreferences(("crowded", "default"), 600_000)
    return replace(experiment_submitted(plan, experiment_id=2), settings=settings, pools=pools)


def fill_table() -> MemoryTable:
    """Return a table in which every actor has the maximum of data."""
    table = MemoryTable()
    engine = new_engine(table)
    for pool in ("default", "crowded", "empty"):
        engine.execute_command(f"pool#{pool}", PoolConfigured(pool))
    for name in AGENTS:
        joins = enrolment(name, "default", SLOTS_MAX, SLOTS_BYTES_MAX)
        engine.execute_command(f"agent#{name}", joins)
    engine.execute_command(
        f"agent#{CROWDED_AGENT}", enrolment(CROWDED_AGENT, "crowded", SLOTS_MAX, SLOTS_BYTES_MAX)
    )
    engine.execute_command(GANG, large_experiment(1, 3))
    engine.execute_command(CROWD, crowded_experiment())
    custom = SearchPlan(CustomPlan("batches", LENGTH_ERA), Group({}), 7)
    submitted = experiment_submitted(custom, experiment_id=3, searcher="custom")
    engine.execute_command(CUSTOM, submitted)
    engine.execute_command(f"experiment#{ENDED}", experiment_submitted(experiment_id=ENDED))
    engine.execute_command(f"experiment#{ENDED}", to_experiment.KillRequested())
    engine.advance_until_idle((GANG, CROWD, CUSTOM, f"experiment#{ENDED}", POOL, CROWDED_POOL))
    for uuid in CHECKPOINTS:
        engine.post_message(TRIAL, checkpoint_reported(uuid), sender="agent")
    assert len(engine.read_state(TRIAL).allocation.places) == AGENTS_MAX
    assert engine.read_state(CROWD).trials_open == OPEN_TRIALS
    return table


def checkpoint_reported(uuid: str) -> to_trial.CheckpointReported:
    reference = CheckpointRef(uuid, TRIAL_ID, 5, f"1/1/1/{uuid}", "0" * 64)
    metadata = {"note": text(METADATA_BYTES_MAX - 20)}
    return to_trial.CheckpointReported(1, reference, 1 << 52, 1 << 52, metadata)


def checkpoint_uploaded(uuid: str) -> to_trial.CheckpointUploaded:
    reported = checkpoint_reported(uuid)
    return to_trial.CheckpointUploaded(
        reported.checkpoint, 1 << 52, 1 << 52, text(200), reported.metadata
    )


def largest_post() -> to_experiment.OperationsPosted:
    hparams = {"x": text(HPARAMS_BYTES_MAX - 20)}
    operations = [create_operation(number, hparams) for number in range(OPERATIONS_MAX)]
    return to_experiment.OperationsPosted(PostedOperations(1, 0, parse_operations(operations)))


def settings_changed() -> to_experiment.SettingsChanged:
    return to_experiment.SettingsChanged(
        name=text(1_000),
        description=text(10_000),
        labels=tuple(f"{n:04d}" + text(196) for n in range(100)),
        max_slots=1,
        max_slots_given=True,
        retention=Retention(9, 9, 9),
        weight=2.0,
        priority=50,
        max_cost=1e8,
        max_cost_given=True,
    )


@dataclass(frozen=True)
class Largest:
    """A largest message: the address of the actor, and the builder of the message."""

    address: str
    build: Callable[[], object]


_REF = CheckpointRef(CHECKPOINTS[0], 2, 5, f"1/2/1/{CHECKPOINTS[0]}", "0" * 64)
_RELEASED = to_pool.SlotsReleased(TRIAL_ID, 1, "t" * 40, AGENTS, 1)
_ENDED = f"experiment#{ENDED}"

TRIAL_MESSAGES: Mapping[type, Largest] = {
    to_trial.TrialCreated: Largest(
        "trial#9000", lambda: replace(trial_created(hparams=dict(HPARAMS)), trial_id=9000)
    ),
    to_trial.CheckpointRequested: Largest(TRIAL, lambda: to_trial.CheckpointRequested(2)),
    to_trial.CheckpointHandedOver: Largest(
        WAITING_TRIAL, lambda: to_trial.CheckpointHandedOver(1, _REF)
    ),
    to_trial.TrialContinued: Largest(
        TRIAL, lambda: to_trial.TrialContinued(1, trial_settings(slots=1), 200)
    ),
    to_trial.TrialKillRequested: Largest(TRIAL, to_trial.TrialKillRequested),
    to_trial.TrialMoved: Largest(TRIAL, lambda: to_trial.TrialMoved("p" * 63)),
    to_trial.TerminationOverdue: Largest(TRIAL, lambda: to_trial.TerminationOverdue(1)),
    to_trial.DurationExceeded: Largest(TRIAL, lambda: to_trial.DurationExceeded(1)),
    to_trial.RestartDue: Largest(TRIAL, lambda: to_trial.RestartDue(1)),
    to_trial.CheckpointDeletionRequested: Largest(
        TRIAL, lambda: to_trial.CheckpointDeletionRequested(CHECKPOINTS, deletes_experiment=True)
    ),
    to_trial.CheckpointFilesDeleted: Largest(
        TRIAL, lambda: to_trial.CheckpointFilesDeleted(CHECKPOINTS)
    ),
    PartialDeletionRequested: Largest(
        TRIAL,
        lambda: PartialDeletionRequested(CHECKPOINTS[0], PATTERNS, (), 1, 1, CHECKPOINTS[1]),
    ),
    PartialDeletionEnded: Largest(TRIAL, lambda: PartialDeletionEnded(CHECKPOINTS[0], PATTERNS)),
    to_trial.TrialDeleted: Largest(TRIAL, to_trial.TrialDeleted),
    DataExpired: Largest(TRIAL, lambda: DataExpired(logs=True, metrics=True)),
    to_trial.WorkAssigned: Largest(TRIAL, lambda: to_trial.WorkAssigned(200, False)),
    to_trial.ExperimentStatusChanged: Largest(
        TRIAL, lambda: to_trial.ExperimentStatusChanged(Status.STOPPING_KILLED, forced=True)
    ),
    to_trial.SlotsAssigned: Largest(WAITING_TRIAL, lambda: to_trial.SlotsAssigned(1, PLACES)),
    to_trial.PreemptionRequested: Largest(
        TRIAL, lambda: to_trial.PreemptionRequested(1, REASON, forced=True)
    ),
    to_trial.AllocationLost: Largest(TRIAL, lambda: to_trial.AllocationLost(1, REASON)),
    to_trial.ContainerStateReported: Largest(
        TRIAL, lambda: to_trial.ContainerStateReported(1, "R" * 32, 28, AGENTS_MAX)
    ),
    to_trial.CheckpointUploaded: Largest(TRIAL, lambda: checkpoint_uploaded("e" * 8 + "-0" * 14)),
    to_trial.CheckpointReported: Largest(TRIAL, lambda: checkpoint_reported("f" * 8 + "-0" * 14)),
    to_trial.CheckpointDamageReported: Largest(
        TRIAL,
        lambda: to_trial.CheckpointDamageReported(
            1, CHECKPOINTS[0], text(DAMAGE_CHARACTERS_MAX), CHECKPOINTS[: to_trial.FALLBACKS_MAX]
        ),
    ),
    to_trial.CheckpointVerified: Largest(
        TRIAL, lambda: to_trial.CheckpointVerified(CHECKPOINTS[0])
    ),
    **{kind: Largest(TRIAL, make) for kind, make in RUN_REPORTS.items()},
    to_trial.AllocationExited: Largest(
        TRIAL,
        lambda: to_trial.AllocationExited(
            1,
            "errored",
            1,
            7,
            REASON,
            28,
            AGENTS_MAX,
            text(NOTICE_CHARACTERS_MAX),
            fingerprint="0123456789abcdef",
        ),
    ),
}

EXPERIMENT_MESSAGES: Mapping[type, Largest] = {
    to_experiment.ExperimentSubmitted: Largest("experiment#9", lambda: large_experiment(9, 30)),
    to_experiment.ActivateRequested: Largest(CROWD, to_experiment.ActivateRequested),
    to_experiment.PauseRequested: Largest(CROWD, to_experiment.PauseRequested),
    to_experiment.CancelRequested: Largest(CROWD, to_experiment.CancelRequested),
    to_experiment.KillRequested: Largest(CROWD, to_experiment.KillRequested),
    to_experiment.SettingsChanged: Largest(CROWD, settings_changed),
    to_experiment.PoolChanged: Largest(CROWD, lambda: to_experiment.PoolChanged("default")),
    to_experiment.WaitEnded: Largest(
        CROWD, lambda: to_experiment.WaitEnded("crowded", 0, NOW_MS, text(600))
    ),
    to_experiment.JobAudited: Largest(CROWD, lambda: to_experiment.JobAudited("default")),
    to_experiment.ClusterRestored: Largest(CROWD, to_experiment.ClusterRestored),
    to_experiment.ArchiveRequested: Largest(_ENDED, to_experiment.ArchiveRequested),
    to_experiment.UnarchiveRequested: Largest(_ENDED, to_experiment.UnarchiveRequested),
    to_experiment.DeleteRequested: Largest(_ENDED, to_experiment.DeleteRequested),
    to_experiment.ContinueRequested: Largest(
        _ENDED,
        lambda: to_experiment.ContinueRequested(text(HPARAMS_BYTES), single_plan(), 100),
    ),
    to_experiment.OperationsPosted: Largest(CUSTOM, largest_post),
    to_experiment.CollectionEnded: Largest(
        CROWD, lambda: to_experiment.CollectionEnded(1, failure=REASON, expires_ms=NOW_MS)
    ),
    to_experiment.DeletionContinued: Largest(_ENDED, to_experiment.DeletionContinued),
    to_experiment.SearchContinued: Largest(GANG, to_experiment.SearchContinued),
    SuggestedPoints: Largest(
        CROWD, lambda: SuggestedPoints(0, tuple({"x": text(2_000)} for _ in range(100)))
    ),
    SuggestionFailed: Largest(CROWD, lambda: SuggestionFailed(0, REASON)),
    to_experiment.TrialValidationReported: Largest(
        CROWD,
        lambda: to_experiment.TrialValidationReported(1, 5.0, None, missing_metric_reason=REASON),
    ),
    to_experiment.TrialMetricsDiscarded: Largest(
        CROWD, lambda: to_experiment.TrialMetricsDiscarded(1, 1 / 3)
    ),
    to_experiment.TrialProgressReported: Largest(
        CROWD, lambda: to_experiment.TrialProgressReported(1, 1 / 3)
    ),
    to_experiment.TrialLengthReached: Largest(
        CROWD, lambda: to_experiment.TrialLengthReached(1, 100, 0.5, True, REASON)
    ),
    to_experiment.TrialEnded: Largest(
        CROWD, lambda: to_experiment.TrialEnded(1, Status.ERROR, "INVALID_HP", REASON)
    ),
    to_experiment.TrialMetered: Largest(
        CROWD, lambda: to_experiment.TrialMetered(1, 1, 10**15, 10**12, NOW_MS, True, USE)
    ),
    to_experiment.NoticeEnded: Largest(CROWD, lambda: to_experiment.NoticeEnded(1, 1, "finished")),
    to_experiment.CostCheckDue: Largest(CROWD, to_experiment.CostCheckDue),
    to_experiment.TrialPlaced: Largest(CROWD, lambda: to_experiment.TrialPlaced(1, 0, NOW_MS)),
    to_experiment.DurationEnded: Largest(CROWD, lambda: to_experiment.DurationEnded(0)),
    ExpiryDue: Largest(CROWD, ExpiryDue),
    ExpiryRequested: Largest(_ENDED, lambda: ExpiryRequested(records.DataRetention(0, 0))),
    DeadlineNear: Largest(CROWD, lambda: DeadlineNear(0)),
    BestValidationDue: Largest(CROWD, BestValidationDue),
    TrialUsedLittle: Largest(CROWD, lambda: TrialUsedLittle(1, REASON, True)),
    TrialAlerted: Largest(
        CROWD, lambda: TrialAlerted(1, text(ALERT_CHARACTERS_MAX), REASON, "error")
    ),
    WebhooksChanged: Largest(CROWD, WebhooksChanged),
    TrialLogMatched: Largest(
        CROWD,
        lambda: TrialLogMatched(
            1,
            text(PATTERN_CHARACTERS_MAX),
            text(LOG_LINE_CHARACTERS_MAX),
            text(NAME_CHARACTERS_MAX),
        ),
    ),
    to_experiment.TrialSignaled: Largest(
        CROWD, lambda: to_experiment.TrialSignaled(1, text(NAME_CHARACTERS_MAX))
    ),
}

POOL_MESSAGES: Mapping[type, Largest] = {
    PoolConfigured: Largest(
        CROWDED_POOL,
        lambda: PoolConfigured(
            "crowded", PoolSettings(provider=text(64 * 1024), description=text(10_000))
        ),
    ),
    to_pool.PoolRemoved: Largest(EMPTY_POOL, to_pool.PoolRemoved),
    to_pool.SlotsRequested: Largest(
        POOL,
        lambda: to_pool.SlotsRequested(
            9000,
            1,
            AGENTS_MAX * SLOTS_MAX,
            "t" * 40,
            1,
            tuple(text(40) for _ in range(EXCLUDED_MAX)),
        ),
    ),
    to_pool.JobChanged: Largest(CROWDED_POOL, lambda: to_pool.JobChanged(2)),
    to_pool.SlotsReleased: Largest(POOL, lambda: _RELEASED),
    to_pool.AgentJoined: Largest(
        CROWDED_POOL,
        lambda: to_pool.AgentJoined(CROWDED_AGENT, 2, ALL_SLOTS, CLOSED, text(200), MIXED_KIND),
    ),
    to_pool.AgentAvailabilityChanged: Largest(
        CROWDED_POOL, lambda: to_pool.AgentAvailabilityChanged(CROWDED_AGENT, 1, CLOSED)
    ),
    to_pool.AgentLost: Largest(
        CROWDED_POOL, lambda: to_pool.AgentLost(CROWDED_AGENT, 1, REASON, NOW_MS)
    ),
    to_pool.StaleAllocationsFound: Largest(
        POOL, lambda: to_pool.StaleAllocationsFound((_RELEASED,) * STALE_PER_MESSAGE_MAX)
    ),
    to_pool.BudgetChecked: Largest(CROWDED_POOL, lambda: to_pool.BudgetChecked(True)),
    to_pool.QuietHoursChecked: Largest(CROWDED_POOL, largest_quiet_hours),
    to_pool.SupplyChecked: Largest(
        CROWDED_POOL, lambda: to_pool.SupplyChecked(text(600), NOW_MS + 1)
    ),
    to_pool.ExclusionRequested: Largest(
        CROWDED_POOL,
        lambda: to_pool.ExclusionRequested(
            CROWDED_AGENT, text(EXCLUSION_CHARACTERS_MAX), by_check=True
        ),
    ),
    to_pool.GangChecked: Largest(
        POOL,
        lambda: to_pool.GangChecked(AGENTS, text(to_checks.DEVICE_CHARACTERS_MAX), 1e9 / 3),
    ),
    to_pool.PatienceEnded: Largest(CROWDED_POOL, lambda: to_pool.PatienceEnded(2, NOW_MS)),
    to_pool.SchedulingContinued: Largest(CROWDED_POOL, to_pool.SchedulingContinued),
}

_AGENT, _CROWDED = f"agent#{AGENTS[0]}", f"agent#{CROWDED_AGENT}"
AGENT_MESSAGES: Mapping[type, Largest] = {
    to_agent.AgentEnrolled: Largest(
        _CROWDED,
        lambda: replace(
            enrolment(CROWDED_AGENT, "crowded", SLOTS_MAX, SLOTS_BYTES_MAX),
            occupancy=(text(OCCUPANCY_CHARACTERS_MAX), True),
        ),
    ),
    to_agent.AllocationPlaced: Largest(
        _AGENT, lambda: to_agent.AllocationPlaced(9000, 1, ALL_SLOTS, 28, AGENTS_MAX)
    ),
    to_agent.AllocationRemoved: Largest(_CROWDED, lambda: to_agent.AllocationRemoved(10, 1)),
    to_agent.AgentDeclaredLost: Largest(_CROWDED, lambda: to_agent.AgentDeclaredLost(1)),
    to_agent.AgentForgotten: Largest(_CROWDED, lambda: to_agent.AgentForgotten(1)),
    to_agent.AgentUpgradeRequested: Largest(
        _CROWDED, lambda: to_agent.AgentUpgradeRequested("f" * 64)
    ),
    to_agent.AgentEnableRequested: Largest(_CROWDED, to_agent.AgentEnableRequested),
    to_agent.FaultsReported: Largest(
        _CROWDED,
        lambda: to_agent.FaultsReported(
            1,
            tuple((slot, text(FAULT_CHARACTERS_MAX)) for slot in range(FAULTS_MAX)),
            (text(OCCUPANCY_CHARACTERS_MAX), True),
        ),
    ),
    to_agent.AgentDisableRequested: Largest(
        _CROWDED, lambda: to_agent.AgentDisableRequested(drain=False)
    ),
    to_agent.AgentExcluded: Largest(
        _CROWDED,
        lambda: to_agent.AgentExcluded(text(EXCLUSION_CHARACTERS_MAX), NOW_MS + 1),
    ),
    to_agent.ExclusionEnded: Largest(_CROWDED, to_agent.ExclusionEnded),
    to_agent.TunnelOpened: Largest(_AGENT, lambda: to_agent.TunnelOpened("t" * 64, TRIAL_ID, 1)),
    to_agent.TunnelClosed: Largest(_CROWDED, lambda: to_agent.TunnelClosed("t" * 64)),
}

LARGEST: Mapping[str, Mapping[type, Largest]] = {
    "trial": TRIAL_MESSAGES,
    "experiment": EXPERIMENT_MESSAGES,
    "pool": POOL_MESSAGES,
    "agent": AGENT_MESSAGES,
}
# Requests of users and services: folded within the call, never sent as mail.
COMMANDS = frozenset(
    {
        to_trial.TrialKillRequested,
        to_trial.CheckpointDeletionRequested,
        PartialDeletionRequested,
        to_experiment.ExperimentSubmitted,
        to_experiment.ActivateRequested,
        to_experiment.PauseRequested,
        to_experiment.CancelRequested,
        to_experiment.KillRequested,
        to_experiment.SettingsChanged,
        to_experiment.PoolChanged,
        to_experiment.ArchiveRequested,
        to_experiment.UnarchiveRequested,
        to_experiment.DeleteRequested,
        ExpiryRequested,
        to_experiment.ContinueRequested,
        to_experiment.OperationsPosted,
        PoolConfigured,
        to_pool.PoolRemoved,
        to_agent.AgentEnrolled,
        to_agent.AgentForgotten,
        to_agent.AgentEnableRequested,
        to_agent.AgentDisableRequested,
        to_agent.FaultsReported,
        to_agent.TunnelOpened,
        to_agent.TunnelClosed,
    }
)
