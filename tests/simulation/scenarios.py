"""Scenarios that reach an equal end under every fault."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from control_plane.actors.era_rules import STEP_ERA as STEP_LIFE
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    ArchiveRequested,
    CancelRequested,
    CollectionEnded,
    ContinueRequested,
    DeleteRequested,
    KillRequested,
    PauseRequested,
    SettingsChanged,
)
from control_plane.actors.messages.trial import TrialContinued, TrialDeleted, TrialKillRequested
from control_plane.actors.records import Retention, Status
from control_plane.actors.step import CommandRefused
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.methods.bayesian import BayesianPlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Categorical, Group, Int
from simulator.machines.report_stream import Line
from simulator.stepped.scripted_agent import Run, Script
from simulator.stepped.small_search import submission
from simulator.stepped.stepped_cluster import ROUND_MS, SteppedCluster
from tests.simulation.scripts import checkpoint, train_at_once

EXPERIMENT = "experiment#1"


@dataclass(frozen=True)
class Scenario:
    """A named course of events in a cluster."""

    name: str
    play: Callable[[SteppedCluster], None]
    """Runs the scenario to its end on an empty cluster."""
    big: bool = False
    """Whether the scenario has many commits, so that crash tests sample few commits."""
    interchangeable: bool = False
    """Whether trials may swap places, as in `end_state`."""
    agents: bool = True
    """Whether the scenario has agents."""


def train_in_rounds(run: Run) -> list[Line]:
    """Train in three rounds, with a checkpoint in the middle; end at a kill or preemption."""
    if run.killed:
        return [{"kind": "exited", "reason": "killed"}]
    if run.directives["preempt"]:
        return [*checkpoint(run, run.rounds), {"kind": "exited", "reason": "preempted"}]
    match run.rounds:
        case 0:
            environment = {"kind": "environment", "python": "3.11"}
            return [{"kind": "container", "state": "RUNNING"}, environment]
        case 1:
            intent = {"kind": "checkpoint_intent", "uuid": "u", "path": "p"}
            return [intent, *checkpoint(run, 2)]
        case _:
            return train_at_once(run)


def fail_twice(run: Run) -> list[Line]:
    """Fail until the trial was restarted twice, then train."""
    if run.spec["restarts"] < 2:
        return [{"kind": "exited", "reason": "errored", "code": 1, "message": "out of luck"}]
    return train_at_once(run)


def fail_always(run: Run) -> list[Line]:
    return [{"kind": "exited", "reason": "errored", "code": 1, "message": "out of luck"}]


def start_late(run: Run) -> list[Line]:
    """Fail the first two starts of a trial; train at the third start."""
    if int(run.allocation.partition(".")[2]) <= 2:
        return [{"kind": "exited", "reason": "start_failed", "message": "the disk is full"}]
    return train_at_once(run)


def await_others(run: Run) -> list[Line]:
    """Report no line until a kill or preemption."""
    if run.killed:
        return [{"kind": "exited", "reason": "killed"}]
    if run.directives["preempt"]:
        return [*checkpoint(run, 1), {"kind": "exited", "reason": "preempted"}]
    return []


def hold(run: Run) -> list[Line]:
    """Validate in the first round, then train until a kill or preemption."""
    if run.rounds or run.killed or run.directives["preempt"]:
        return await_others(run)
    metrics = {run.spec["metric"]: 0.5}
    validation = {"group": "validation", "steps_completed": 1, "metrics": metrics}
    return [{"kind": "metrics", **validation}]


def ignore_all_but_a_kill(run: Run) -> list[Line]:
    """Validate in the first round, then ignore every directive but a kill."""
    return hold(run) if run.killed or not run.rounds else []


def hold_the_first(run: Run) -> list[Line]:
    """Hold the slot of trial 1; train all other trials at once."""
    return hold(run) if run.allocation.startswith("1.") else train_at_once(run)


def wait_for_a_machine(cluster: SteppedCluster) -> None:
    """Run 2 trials that fail the first two starts: both trials wait without an error."""
    cluster.add_pool()
    cluster.add_agent("a", 1, start_late)
    cluster.submit(2, max_restarts=0)
    cluster.run_to_rest()


def cancel_the_deaf(cluster: SteppedCluster) -> None:
    """Cancel 2 trials that ignore preemption and are killed at the end of the preemption time."""
    cluster.add_pool()
    cluster.add_agent("a", 1, ignore_all_but_a_kill)
    message = submission(1, 2)
    settings = replace(message.settings, preempt_ms=4 * ROUND_MS)
    cluster.command(EXPERIMENT, replace(message, settings=settings))
    cluster.until(lambda: _validated_trials(cluster) == 1, "validated once")
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()


def pause_and_activate(cluster: SteppedCluster) -> None:
    """Run 4 trials on 2 slots; pause after two starts, and activate when no process runs."""
    cluster.add_pool()
    cluster.add_agent("a", 2, train_in_rounds)
    cluster.submit(4)
    cluster.until(lambda: _round_count(cluster) >= 2, "running")
    cluster.command(EXPERIMENT, PauseRequested())
    cluster.until(lambda: not any(agent.processes for agent in cluster.agents), "paused")
    cluster.command(EXPERIMENT, ActivateRequested())
    cluster.run_to_rest()


def restart_twice(cluster: SteppedCluster) -> None:
    """Run 2 trials that fail twice and then succeed."""
    cluster.add_pool()
    cluster.add_agent("a", 1, fail_twice)
    cluster.submit(2, max_restarts=2)
    cluster.run_to_rest()


def error_out(cluster: SteppedCluster) -> None:
    """Run a trial with more failures than permitted restarts."""
    cluster.add_pool()
    cluster.add_agent("a", 1, fail_always)
    cluster.submit(1, max_restarts=1)
    cluster.run_to_rest()


def cancel_while_running(cluster: SteppedCluster) -> None:
    """Cancel 4 trials on 2 slots while two run and two wait."""
    cluster.add_pool()
    cluster.add_agent("a", 2, hold)
    cluster.submit(4)
    cluster.until(lambda: _validated_trials(cluster) == 2, "validated twice")
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()


def kill_one_trial(cluster: SteppedCluster) -> None:
    """Run 3 trials on 2 slots and kill the first, which would run forever."""
    cluster.add_pool()
    cluster.add_agent("a", 2, hold_the_first)
    cluster.submit(3)
    cluster.until(lambda: _validated_trials(cluster) == 3, "validated by all")
    cluster.command("trial#1", TrialKillRequested())
    cluster.run_to_rest()


def kill_a_step_era_search(cluster: SteppedCluster) -> None:
    """Cancel and kill 4 trials on 2 slots that ignore preemption."""
    cluster.add_pool()
    cluster.add_agent("a", 2, ignore_all_but_a_kill)
    cluster.submit(4, rules=STEP_LIFE)
    cluster.until(lambda: _validated_trials(cluster) == 2, "validated twice")
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.round()
    with suppress(CommandRefused):
        # The search has already ended if the crash removed the agent's runs.
        cluster.command_once(EXPERIMENT, KillRequested())
    cluster.run_to_rest()


def pause_and_change(cluster: SteppedCluster) -> None:
    """Pause 3 trials and change settings, including the maximum number of slots."""
    cluster.add_pool()
    cluster.add_agent("a", 2, train_in_rounds)
    cluster.submit(3)
    cluster.until(lambda: _round_count(cluster) >= 2, "running")
    cluster.command(EXPERIMENT, PauseRequested())
    limited = SettingsChanged(name="slow", max_slots=1, max_slots_given=True)
    cluster.command(EXPERIMENT, limited)
    cluster.command(EXPERIMENT, ActivateRequested())
    kept = SettingsChanged(labels=("a",), retention=Retention(1, 0, 0))
    cluster.command(EXPERIMENT, kept)
    cluster.run_to_rest()


def go_on_after_an_error(cluster: SteppedCluster) -> None:
    """Let 2 trials fail finally, repair the script, and continue the search to the end."""
    cluster.add_pool()
    agent = cluster.add_agent("a", 1, fail_always)
    cluster.submit(2, max_restarts=1)
    cluster.run_to_rest()
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.ERROR
    agent.script = fail_twice
    cluster.command_once(EXPERIMENT, ContinueRequested(max_restarts=2))
    cluster.run_to_rest()


def go_on_after_a_cancel(cluster: SteppedCluster) -> None:
    """Cancel 4 trials while 2 run, then continue the search until all 4 trials complete."""
    cluster.add_pool()
    agent = cluster.add_agent("a", 2, hold)
    cluster.submit(4, concurrent=2)
    cluster.until(lambda: _validated_trials(cluster) == 2, "validated twice")
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()
    agent.script = train_in_rounds
    cluster.command_once(EXPERIMENT, ContinueRequested())
    cluster.run_to_rest()


def archive_and_delete(cluster: SteppedCluster) -> None:
    """Run a search, then collect, archive and delete the experiment.

    Messages of the collector arrive twice, and the message of an earlier collection arrives late.
    """
    cluster.add_pool()
    cluster.add_agent("a", 1, train_at_once)
    cluster.submit(2)
    cluster.run_to_rest()
    # Once: every change requests a collection, and the generations below count the collections.
    cluster.command_once(EXPERIMENT, SettingsChanged(retention=Retention(0, 0, 1)))
    for generation in (1, 2, 2):
        cluster.post(EXPERIMENT, CollectionEnded(generation))
    cluster.command(EXPERIMENT, ArchiveRequested())
    cluster.command(EXPERIMENT, DeleteRequested())
    for trial in ("trial#1", "trial#1", "trial#2"):
        cluster.post(trial, TrialDeleted())
    for generation in (2, 3, 3):
        cluster.post(EXPERIMENT, CollectionEnded(generation))
    cluster.post("trial#2", TrialContinued(1, submission(1, 2).settings))
    cluster.run_to_rest()
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.DELETED


def split_parts(cluster: SteppedCluster) -> None:
    """Run more trials than fit into a part of summaries, with more queued than fit a queue leaf."""
    cluster.add_pool()
    cluster.submit(68)
    cluster.add_agent("a", 16, train_at_once)
    cluster.run_to_rest()


def spill_the_outbox(cluster: SteppedCluster) -> None:
    """Pause and cancel 120 queued trials, with more messages than fit into a commit."""
    cluster.add_pool()
    cluster.submit(120)
    cluster.command(EXPERIMENT, PauseRequested())
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()


def suggest_points(cluster: SteppedCluster) -> None:
    """Run a Bayesian search of 4 trials, 2 at a time; pause and activate after a suggestion."""
    cluster.add_pool()
    cluster.add_agent("a", 2, train_in_rounds)
    # The metric is 0 for every suggestion.
    space = Group({"x": Int(0, 9), "y": Categorical(("a", "b"))})
    plan = SearchPlan(BayesianPlan(4, 4, 2, 1, LENGTH_ERA), space, 7)
    cluster.command(EXPERIMENT, replace(submission(1, 4), plan=plan, searcher="bayesian"))
    cluster.until(lambda: cluster.checker.actor_state(EXPERIMENT).trials > 2, "suggested")
    cluster.command(EXPERIMENT, PauseRequested())
    cluster.round()
    cluster.command(EXPERIMENT, ActivateRequested())
    cluster.run_to_rest()


def lose_an_agent(cluster: SteppedCluster) -> None:
    """Silence one of two agents with a trial until the agent is lost; then let the agent return."""
    cluster.add_pool()
    lost = cluster.add_agent("a", 1, train_in_rounds)
    cluster.add_agent("b", 1, train_in_rounds)
    cluster.submit(3)
    cluster.until(lambda: any(run.rounds for run in lost.processes.values()), "running on a")
    cluster.silent.add("a")
    cluster.round_ms = 6 * ROUND_MS
    cluster.until(lambda: cluster.checker.actor_state("agent#a").lost, "lost")
    cluster.silent.clear()
    cluster.run_to_rest()


def fail_as_node_1(run: Run) -> list[Line]:
    """Fail node 1 in the first run while node 0 waits; train in rounds after a restart."""
    if run.spec["restarts"] < 1:
        return fail_always(run) if run.spec["rank"] else await_others(run)
    return train_in_rounds(run)


def fail_on_one_node(cluster: SteppedCluster) -> None:
    """Run a trial over two agents and fail one node: both nodes restart."""
    _submit_gangs(cluster, "ab", 1, fail_as_node_1)
    cluster.run_to_rest()


def pause_a_gang(cluster: SteppedCluster) -> None:
    """Pause a trial over two agents, then activate the trial, which resumes from a checkpoint."""
    paused: list[bool] = []

    def train_slowly(run: Run) -> list[Line]:
        stops = run.killed or run.directives["preempt"]
        return train_in_rounds(run) if paused or stops or run.rounds < 2 else []

    _submit_gangs(cluster, "ab", 1, train_slowly)
    cluster.until(lambda: _round_count(cluster) >= 2, "running")
    cluster.command(EXPERIMENT, PauseRequested())
    cluster.until(lambda: not any(agent.processes for agent in cluster.agents), "paused")
    paused.append(True)
    cluster.command(EXPERIMENT, ActivateRequested())
    cluster.run_to_rest()


def lose_a_node(cluster: SteppedCluster) -> None:
    """Silence one of the two agents of a trial until the agent is lost.

    The trial restarts on its other agent and the third agent.
    """
    lost: list[str] = []
    _submit_gangs(cluster, "abc", 1, lambda run: train_in_rounds(run) if lost else hold(run))
    cluster.until(lambda: _round_count(cluster) >= 2, "running")
    silent = _places(cluster)[-1]
    cluster.silent.add(silent)
    cluster.round_ms = 6 * ROUND_MS
    cluster.until(lambda: cluster.checker.actor_state(f"agent#{silent}").lost, "lost")
    lost.append(silent)
    cluster.until(lambda: silent not in _places(cluster), "placed elsewhere")
    cluster.silent.clear()
    cluster.run_to_rest()


SCENARIOS = (
    Scenario("pause", pause_and_activate),
    Scenario("restart", restart_twice),
    Scenario("error", error_out),
    Scenario("start-late", wait_for_a_machine),
    Scenario("deaf", cancel_the_deaf, interchangeable=True),
    Scenario("cancel", cancel_while_running, interchangeable=True),
    Scenario("kill-trial", kill_one_trial),
    Scenario("kill-steps", kill_a_step_era_search, interchangeable=True),
    Scenario("settings", pause_and_change),
    Scenario("go-on-error", go_on_after_an_error),
    Scenario("go-on-cancel", go_on_after_a_cancel, interchangeable=True),
    Scenario("delete", archive_and_delete),
    Scenario("split", split_parts, big=True),
    Scenario("spill", spill_the_outbox, big=True, agents=False),
    Scenario("lost-agent", lose_an_agent),
    Scenario("bayesian", suggest_points, interchangeable=True),
    Scenario("gang-fails", fail_on_one_node),
    Scenario("gang-pauses", pause_a_gang),
    Scenario("gang-loses", lose_a_node),
)


def _submit_gangs(cluster: SteppedCluster, agents: str, trials: int, script: Script) -> None:
    """Add agents of two slots and submit trials of four slots."""
    cluster.add_pool()
    for name in agents:
        cluster.add_agent(name, 2, script)
    message = submission(1, trials)
    settings = replace(message.settings, slots=4)
    cluster.command(EXPERIMENT, replace(message, settings=settings))


def _places(cluster: SteppedCluster) -> tuple[str, ...]:
    """Return the agents in the allocation of trial 1, empty without an allocation."""
    allocation = cluster.checker.actor_state("trial#1").allocation
    return allocation.agents if allocation else ()


def _round_count(cluster: SteppedCluster) -> int:
    return sum(run.rounds for agent in cluster.agents for run in agent.processes.values())


def _validated_trials(cluster: SteppedCluster) -> int:
    return sum(trial.best_metric is not None for trial in cluster.checker.actor_states("trial"))
