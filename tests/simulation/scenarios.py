"""Scenarios that end the same way whatever fails on the way."""

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
    """`play` runs it to its end. A big one is crashed at a sample of its commits;
    `interchangeable` as in `end_state`.
    """

    name: str
    play: Callable[[SteppedCluster], None]
    big: bool = False
    interchangeable: bool = False
    agents: bool = True


def train_in_rounds(run: Run) -> list[Line]:
    """Train in three rounds, with a checkpoint in the middle; give up when asked to."""
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
    """Fails until its trial was restarted twice."""
    if run.spec["restarts"] < 2:
        return [{"kind": "exited", "reason": "errored", "code": 1, "message": "out of luck"}]
    return train_at_once(run)


def fail_always(run: Run) -> list[Line]:
    return [{"kind": "exited", "reason": "errored", "code": 1, "message": "out of luck"}]


def start_late(run: Run) -> list[Line]:
    """Fail to start a trial twice; the machine can start it at the third attempt."""
    if int(run.allocation.partition(".")[2]) <= 2:
        return [{"kind": "exited", "reason": "start_failed", "message": "the disk is full"}]
    return train_at_once(run)


def await_others(run: Run) -> list[Line]:
    """Reports nothing until it is stopped."""
    if run.killed:
        return [{"kind": "exited", "reason": "killed"}]
    if run.directives["preempt"]:
        return [*checkpoint(run, 1), {"kind": "exited", "reason": "preempted"}]
    return []


def hold(run: Run) -> list[Line]:
    """Validates once and then trains on until it is stopped."""
    if run.rounds or run.killed or run.directives["preempt"]:
        return await_others(run)
    metrics = {run.spec["metric"]: 0.5}
    validation = {"group": "validation", "steps_completed": 1, "metrics": metrics}
    return [{"kind": "metrics", **validation}]


def ignore_all_but_a_kill(run: Run) -> list[Line]:
    """Validates once and then hears nothing."""
    return hold(run) if run.killed or not run.rounds else []


def hold_the_first(run: Run) -> list[Line]:
    """Trial 1 holds its slot, the others train at once."""
    return hold(run) if run.allocation.startswith("1.") else train_at_once(run)


def wait_for_a_machine(cluster: SteppedCluster) -> None:
    """2 trials, either of which cannot be started twice: they wait, and have not failed."""
    cluster.add_pool()
    cluster.add_agent("a", 1, start_late)
    cluster.submit(2, max_restarts=0)
    cluster.run_to_rest()


def cancel_the_deaf(cluster: SteppedCluster) -> None:
    """2 trials that ignore preemption are killed when the time for it is over."""
    cluster.add_pool()
    cluster.add_agent("a", 1, ignore_all_but_a_kill)
    message = submission(1, 2)
    settings = replace(message.settings, preempt_ms=4 * ROUND_MS)
    cluster.command(EXPERIMENT, replace(message, settings=settings))
    cluster.until(lambda: _validated_trials(cluster) == 1, "validated once")
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()


def pause_and_activate(cluster: SteppedCluster) -> None:
    """4 trials on 2 slots, paused when two have begun, activated when nothing runs."""
    cluster.add_pool()
    cluster.add_agent("a", 2, train_in_rounds)
    cluster.submit(4)
    cluster.until(lambda: _round_count(cluster) >= 2, "running")
    cluster.command(EXPERIMENT, PauseRequested())
    cluster.until(lambda: not any(agent.processes for agent in cluster.agents), "paused")
    cluster.command(EXPERIMENT, ActivateRequested())
    cluster.run_to_rest()


def restart_twice(cluster: SteppedCluster) -> None:
    """A trial that fails twice and then succeeds, beside one like it."""
    cluster.add_pool()
    cluster.add_agent("a", 1, fail_twice)
    cluster.submit(2, max_restarts=2)
    cluster.run_to_rest()


def error_out(cluster: SteppedCluster) -> None:
    """A trial that fails more often than it may."""
    cluster.add_pool()
    cluster.add_agent("a", 1, fail_always)
    cluster.submit(1, max_restarts=1)
    cluster.run_to_rest()


def cancel_while_running(cluster: SteppedCluster) -> None:
    """4 trials on 2 slots, canceled while two run and two wait."""
    cluster.add_pool()
    cluster.add_agent("a", 2, hold)
    cluster.submit(4)
    cluster.until(lambda: _validated_trials(cluster) == 2, "validated twice")
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()


def kill_one_trial(cluster: SteppedCluster) -> None:
    """3 trials on 2 slots, of which the first would run for ever, were it not killed."""
    cluster.add_pool()
    cluster.add_agent("a", 2, hold_the_first)
    cluster.submit(3)
    cluster.until(lambda: _validated_trials(cluster) == 3, "validated by all")
    cluster.command("trial#1", TrialKillRequested())
    cluster.run_to_rest()


def kill_a_step_era_search(cluster: SteppedCluster) -> None:
    """4 trials on 2 slots that do not end when asked to: their containers are force-stopped."""
    cluster.add_pool()
    cluster.add_agent("a", 2, ignore_all_but_a_kill)
    cluster.submit(4, rules=STEP_LIFE)
    cluster.until(lambda: _validated_trials(cluster) == 2, "validated twice")
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.round()
    with suppress(CommandRefused):
        # It is over already where the crash took the agent's runs with it.
        cluster.command_once(EXPERIMENT, KillRequested())
    cluster.run_to_rest()


def pause_and_change(cluster: SteppedCluster) -> None:
    """Settings are changed while 3 trials are paused, among them how many slots they may have."""
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
    """2 trials fail for good; what was wrong is mended, and they go on to the end."""
    cluster.add_pool()
    agent = cluster.add_agent("a", 1, fail_always)
    cluster.submit(2, max_restarts=1)
    cluster.run_to_rest()
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.ERROR
    agent.script = fail_twice
    cluster.command_once(EXPERIMENT, ContinueRequested(max_restarts=2))
    cluster.run_to_rest()


def go_on_after_a_cancel(cluster: SteppedCluster) -> None:
    """4 trials, 2 at a time, canceled while 2 run; all 4 are done when it went on."""
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
    """A search ends, is collected, archived and deleted; each word of the collector comes twice,
    and the word about an earlier collection late.
    """
    cluster.add_pool()
    cluster.add_agent("a", 1, train_at_once)
    cluster.submit(2)
    cluster.run_to_rest()
    # Once: each asks for a collection, and they are counted below.
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
    """More trials than a part of summaries holds, more queued than a leaf of the queue."""
    cluster.add_pool()
    cluster.submit(68)
    cluster.add_agent("a", 16, train_at_once)
    cluster.run_to_rest()


def spill_the_outbox(cluster: SteppedCluster) -> None:
    """120 queued trials, all of which get a pause and the end: more than a commit holds."""
    cluster.add_pool()
    cluster.submit(120)
    cluster.command(EXPERIMENT, PauseRequested())
    cluster.command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()


def suggest_points(cluster: SteppedCluster) -> None:
    """4 trials, 2 at a time, of which those after the first result are suggested; the search is
    paused as soon as one was.
    """
    cluster.add_pool()
    cluster.add_agent("a", 2, train_in_rounds)
    # Whatever is suggested, the metric is 0.
    space = Group({"x": Int(0, 9), "y": Categorical(("a", "b"))})
    plan = SearchPlan(BayesianPlan(4, 4, 2, 1, LENGTH_ERA), space, 7)
    cluster.command(EXPERIMENT, replace(submission(1, 4), plan=plan, searcher="bayesian"))
    cluster.until(lambda: cluster.checker.actor_state(EXPERIMENT).trials > 2, "suggested")
    cluster.command(EXPERIMENT, PauseRequested())
    cluster.round()
    cluster.command(EXPERIMENT, ActivateRequested())
    cluster.run_to_rest()


def lose_an_agent(cluster: SteppedCluster) -> None:
    """One of two agents falls silent with a trial, is given up, and comes back."""
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
    """Node 1 fails once, while the other waits for it."""
    if run.spec["restarts"] < 1:
        return fail_always(run) if run.spec["rank"] else await_others(run)
    return train_in_rounds(run)


def fail_on_one_node(cluster: SteppedCluster) -> None:
    """A trial over two agents, of which one fails: both begin again."""
    _submit_gangs(cluster, "ab", 1, fail_as_node_1)
    cluster.run_to_rest()


def pause_a_gang(cluster: SteppedCluster) -> None:
    """A trial over two agents is paused, however late it hears of it, and goes on from what it has
    saved.
    """
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
    """One of the agents of a trial over two of three falls silent: all of it begins again, on the
    machine that it has left and another one.
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
    """Trials of four slots each, on agents of two."""
    cluster.add_pool()
    for name in agents:
        cluster.add_agent(name, 2, script)
    message = submission(1, trials)
    settings = replace(message.settings, slots=4)
    cluster.command(EXPERIMENT, replace(message, settings=settings))


def _places(cluster: SteppedCluster) -> tuple[str, ...]:
    """The agents that trial 1 has slots of."""
    allocation = cluster.checker.actor_state("trial#1").allocation
    return allocation.agents if allocation else ()


def _round_count(cluster: SteppedCluster) -> int:
    return sum(run.rounds for agent in cluster.agents for run in agent.processes.values())


def _validated_trials(cluster: SteppedCluster) -> int:
    return sum(trial.best_metric is not None for trial in cluster.checker.actor_states("trial"))
