"""The scenarios to record: the simulation's, and scenarios for the remaining messages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from control_plane.actors.messages.agent import AgentDisableRequested, AgentEnableRequested
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    ArchiveRequested,
    JobAudited,
    KillRequested,
    OperationsPosted,
    PauseRequested,
    PoolChanged,
    SettingsChanged,
    UnarchiveRequested,
)
from control_plane.actors.messages.pool import (
    PoolConfigured,
    PoolRemoved,
    PoolSettings,
    SlotsReleased,
    StaleAllocationsFound,
)
from control_plane.actors.messages.trial import (
    CheckpointDeletionRequested,
    CheckpointFilesDeleted,
    TrialKillRequested,
    WorkAssigned,
)
from control_plane.actors.pool.scheduling import STARTS_MAX
from control_plane.engine import mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.fleet.budget import check_budgets
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode_row, instance_key
from control_plane.scheduling.model import SchedulerRules
from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.synchronous import RungLadder
from control_plane.searchers.method import MethodPlan
from control_plane.searchers.methods.adaptive_asha import plan_adaptive_asha
from control_plane.searchers.methods.adaptive_simple import plan_adaptive_simple
from control_plane.searchers.methods.bayesian import BayesianPlan
from control_plane.searchers.methods.custom import CustomPlan
from control_plane.searchers.methods.grid import GridPlan
from control_plane.searchers.methods.pbt import PopulationPlan
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.posted_operations import PostedOperations, parse_operations
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Categorical, Group
from control_plane.state.table import Expect, Put
from control_plane.suggestions.model import Observation, Problem
from control_plane.suggestions.suggester import Suggester
from simulator.machines.report_stream import Line
from simulator.stepped.scripted_agent import Run, Script, ScriptedAgent
from simulator.stepped.small_search import POOL, submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.simulation.scenarios import (
    EXPERIMENT,
    SCENARIOS,
    fail_twice,
    hold,
    ignore_all_but_a_kill,
    train_in_rounds,
)
from tests.simulation.scripts import checkpoint, metric_of, train_at_once
from tests.unit.searchers.custom_search import (
    close_operation,
    create_operation,
    shutdown_operation,
    validate_after_operation,
)

TRIAL = "trial#1"
# 1,000 micro-dollars a second, and a limit of 40 seconds of that.
RENTED = Offering("small", "small", "a", Market.ON_DEMAND, 2, price_per_hour=3.6)
MAX_COST = 0.04
# Used up by the end of the minute that follows 35 seconds.
BUDGET = PoolSettings(budget_micros=95_000)
PREEMPTING = SchedulerRules("priority", preemption=True)
# Enough for two trials to train to every assigned length.
ROUNDS = 10
# Rungs at 1, 2 and 4 batches.
HALVING = HalvingPlan(4, 3, 2.0, 8, 3, smaller_is_better=True, rules=LENGTH_ERA)
EXPLORATION = Exploration(resample_probability=0.5, perturb_factor=0.2)
POPULATION = PopulationPlan(4, 4, 3, 0.5, EXPLORATION, smaller_is_better=True, rules=STEP_ERA)
LADDER = RungLadder(4, 2.0, smaller_is_better=True, rules=LENGTH_ERA)


def search_scenario(
    method: MethodPlan, script: Script, time_metric: str = ""
) -> Callable[[SteppedCluster], None]:
    """Return a scenario: a search of 2 x 2 points, run to the end on an agent of 2 slots."""

    def play(cluster: SteppedCluster) -> None:
        cluster.add_pool()
        cluster.add_agent("a", 2, script)
        space = Group({"x": Categorical((0.25, 0.5)), "y": Categorical((1, 2))})
        plan = SearchPlan(method, space, 7)
        message = replace(submission(1, 1), plan=plan, time_metric=time_metric)
        cluster.command(EXPERIMENT, message)
        cluster.run_to_rest()

    return play


def suggest_without_model(cluster: SteppedCluster) -> None:
    """Run a search with a failing model: points are drawn instead."""

    def fail(problem: Problem, observations: Sequence[Observation], number: int) -> NoReturn:
        raise ImportError(f"no model for suggestion {number}")

    cluster.host.suggester = Suggester(cluster.engine, fail)
    search_scenario(BayesianPlan(4, 4, 2, 1, LENGTH_ERA), train_at_once)(cluster)


def kill_trial_then_experiment(cluster: SteppedCluster) -> None:
    """Run 3 trials on 2 slots; kill a trial, then the experiment."""
    cluster.add_pool()
    cluster.add_agent("a", 2, hold)
    cluster.submit(3)
    cluster.round()
    cluster.command(TRIAL, TrialKillRequested())
    cluster.round()
    cluster.engine.execute_command(EXPERIMENT, KillRequested(), by="ana")
    cluster.run_to_rest()


def fold_a_dead_letter(cluster: SteppedCluster) -> None:
    """Turn a message into a dead letter: its trial ends in ERROR, the other trial continues."""
    cluster.add_pool()
    cluster.submit(2)
    cluster.command(EXPERIMENT, PauseRequested())
    clock = mailbox.next_clock(0, cluster.now_ms) + 1_000
    key = mailbox.mail_key(TRIAL, clock, "somebody")
    encoded = [encode_message_for(TRIAL, WorkAssigned(3, False))]
    put = mailbox.mail_write(key, "somebody", mailbox.UNKNOWN, clock, encoded, cluster.now_ms)
    cluster.engine.table.commit([put])
    row = cluster.engine.table.get(key)
    assert row is not None
    cluster.engine.advance_until_idle(cluster.engine.dead_letter_mail(mailbox.read_mail(row)))
    cluster.command(EXPERIMENT, KillRequested())
    cluster.run_to_rest()


def disable_and_enable(cluster: SteppedCluster) -> None:
    """Disable an agent with running trials, which continue after the agent is enabled."""
    cluster.add_pool()
    cluster.add_agent("a", 2, train_in_rounds)
    cluster.submit(2)
    cluster.round()
    cluster.command("agent#a", AgentDisableRequested())
    cluster.round()
    cluster.command("agent#a", AgentEnableRequested())
    cluster.command("agent#a", AgentDisableRequested(slot=1, drain=True))
    cluster.run_to_rest()


def collect(cluster: SteppedCluster) -> None:
    """Delete a trial's first checkpoint with the files, and audit the pool."""
    paused = next(scenario for scenario in SCENARIOS if scenario.name == "pause")
    paused.play(cluster)
    prefix = "P#checkpoint/"
    parts = [k.sort for k in cluster.checker.rows if k[0] == TRIAL and k.sort.startswith(prefix)]
    uuid = min(parts).removeprefix(prefix)
    cluster.command(TRIAL, CheckpointDeletionRequested((uuid,)))
    cluster.command(TRIAL, CheckpointFilesDeleted((uuid,)))
    cluster.post(f"pool#{POOL}", StaleAllocationsFound((SlotsReleased(1, 1, "", ("a",)),)))
    cluster.command(EXPERIMENT, ArchiveRequested())
    cluster.command(EXPERIMENT, UnarchiveRequested())
    cluster.run_to_rest()


def start_many(cluster: SteppedCluster) -> None:
    """Start more trials together than a commit of the pool can start."""
    cluster.add_pool()
    cluster.submit(STARTS_MAX + 1)
    cluster.add_agent("a", STARTS_MAX + 1, train_at_once)
    cluster.run_to_rest()


def move(cluster: SteppedCluster) -> None:
    """Move a running and a waiting trial to a second pool; remove a third pool.

    The audit of the second pool finds differences.
    """
    cluster.add_pool()
    for pool in ("spot", "spare"):
        cluster.command(f"pool#{pool}", PoolConfigured(pool, PoolSettings(PREEMPTING)))
    cluster.add_agent("a", 1, train_in_rounds)
    cluster.submit(2)
    cluster.round()
    cluster.add_agent("b", 1, train_in_rounds, "spot")
    cluster.command(EXPERIMENT, PoolChanged("spot"))
    cluster.command(EXPERIMENT, SettingsChanged(weight=2.0, priority=1, position="17.5"))
    cluster.post(EXPERIMENT, JobAudited(POOL))
    cluster.post(EXPERIMENT, JobAudited("spot"))
    cluster.command("pool#spare", PoolRemoved())
    cluster.run_to_rest()


def spend(cluster: SteppedCluster) -> None:
    """Run three trials on two slots until the experiment's cost limit; no trial obeys the stop.

    The limit is raised, but the pool waits until its budget is raised too.
    """
    cluster.add_pool()
    cluster.command(f"pool#{POOL}", PoolConfigured(POOL, BUDGET))
    agent = _add_rented_agent(cluster, "a", ignore_all_but_a_kill)
    message = submission(1, 3)
    settings = replace(message.settings, max_cost=MAX_COST)
    cluster.command(EXPERIMENT, replace(message, settings=settings))
    cluster.until(lambda: cluster.checker.actor_state(EXPERIMENT).bill.is_limited, "at its limit")
    cluster.until(lambda: not agent.processes, "stopped")
    check_budgets(cluster.engine, [POOL])
    cluster.command(EXPERIMENT, SettingsChanged(max_cost=2 * MAX_COST, max_cost_given=True))
    cluster.command(EXPERIMENT, ActivateRequested())
    cluster.round()
    assert cluster.checker.actor_state(f"pool#{POOL}").wait_reason.startswith(
        "waits: the budget of pool"
    )
    agent.script = train_in_rounds
    raised = replace(BUDGET, over_budget=True, budget_micros=1_000_000)
    cluster.command(f"pool#{POOL}", PoolConfigured(POOL, raised))
    check_budgets(cluster.engine, [POOL])
    cluster.run_to_rest()


def _add_rented_agent(cluster: SteppedCluster, name: str, script: Script) -> ScriptedAgent:
    """Add the agent of an instance that is launched now."""
    state, now_ms = InstanceState.RUNNING, cluster.now_ms
    row = InstanceRow(name, POOL, RENTED, state, now_ms, "launch")
    cluster.engine.table.commit([Put(instance_key(row), 1, encode_row(row), Expect.ABSENT)])
    return cluster.add_agent(name, RENTED.slots, script)


def train_on(run: Run) -> list[Line]:
    """Validate in every round until stopped."""
    if run.directives["preempt"]:
        return [*checkpoint(run, run.rounds), {"kind": "exited", "reason": "preempted"}]
    metrics = {run.spec["metric"]: metric_of(run)}
    validation = {"group": "validation", "steps_completed": run.rounds, "metrics": metrics}
    return [{"kind": "metrics", **validation}]


def drive_custom_search(cluster: SteppedCluster) -> None:
    """Run a search method that creates two trials, lengthens a trial, and ends the search."""
    cluster.add_pool()
    cluster.add_agent("a", 2, train_at_once)
    plan = SearchPlan(CustomPlan("batches", LENGTH_ERA), Group({}), 7)
    cluster.command(EXPERIMENT, replace(submission(1, 1), plan=plan, searcher="custom"))
    posts = (
        (
            create_operation(1),
            validate_after_operation(1, 2),
            validate_after_operation(1, 4),
            create_operation(2),
            validate_after_operation(2, 2),
        ),
        (
            validate_after_operation(1, 6),
            close_operation(1),
            close_operation(2),
            {"type": "set_searcher_progress", "progress": 0.5},
        ),
        (shutdown_operation(cancel=True),),
    )
    for number, operations in enumerate(posts, 1):
        cluster.command(
            EXPERIMENT,
            OperationsPosted(PostedOperations(number, number, parse_operations(operations))),
        )
        for _ in range(ROUNDS):
            cluster.round()
    cluster.run_to_rest()


def refuse(run: Run) -> list[Line]:
    """Return the report of training code that refuses the hyperparameters."""
    return [
        {"kind": "early_exit", "reason": "INVALID_HP"},
        {"kind": "exited", "reason": "invalid_hp", "code": 0},
    ]


SCENARIOS_TO_RECORD: dict[str, Callable[[SteppedCluster], None]] = {
    **{scenario.name: scenario.play for scenario in SCENARIOS},
    "grid": search_scenario(GridPlan(4, 3, LENGTH_ERA), train_at_once),
    "halving": search_scenario(HALVING, train_at_once),
    "stopping": search_scenario(replace(HALVING, stops=True), train_in_rounds),
    "adaptive": search_scenario(plan_adaptive_simple(LADDER, 9, (3, 2)), train_in_rounds),
    "adaptive_asha": search_scenario(plan_adaptive_asha(HALVING, "conservative"), train_at_once),
    "timed": search_scenario(replace(HALVING, stops=True, by_time=True), train_on, "batches"),
    "population": search_scenario(POPULATION, train_in_rounds),
    "custom": drive_custom_search,
    "single": search_scenario(SinglePlan(4, LENGTH_ERA), fail_twice),
    "bayesian-failed": suggest_without_model,
    "kill": kill_trial_then_experiment,
    "dead-letter": fold_a_dead_letter,
    "collect": collect,
    "many": start_many,
    "disable": disable_and_enable,
    "move": move,
    "cost": spend,
    "invalid": search_scenario(GridPlan(4, 0, LENGTH_ERA), refuse),
}
