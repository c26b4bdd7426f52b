"""Tests of a trial over several agents, which start, report and end together."""

from dataclasses import replace

from control_plane.actors.records import Status
from simulator.machines.report_stream import Line
from simulator.stepped.scripted_agent import Run
from simulator.stepped.small_search import submission
from simulator.stepped.stepped_cluster import ROUND_MS, SteppedCluster
from tests.simulation.scenarios import hold
from tests.simulation.scripts import train_at_once

EXPERIMENT = "experiment#1"


def submit(cluster: SteppedCluster, slots: int) -> None:
    message = submission(1, 1)
    settings = replace(message.settings, slots=slots)
    cluster.command(EXPERIMENT, replace(message, settings=settings))


def test_nodes_get_ranks_and_all_hosts(cluster: SteppedCluster) -> None:
    agents = [cluster.add_agent(name, 2, hold) for name in "abc"]
    submit(cluster, 6)
    cluster.round()
    specs = {agent.name: agent.processes["1.1"].spec for agent in agents}
    trial = cluster.checker.actor_state("trial#1")
    for rank, place in enumerate(trial.allocation.places):
        spec = specs[place.agent]
        assert (spec["node_rank"], spec["nodes"], spec["slots"]) == (rank, 3, [0, 1])
        assert len(spec["hosts"]) == 3
    assert len({spec["rendezvous_port"] for spec in specs.values()}) == 1


def test_gang_starts_only_when_all_agents_are_free(cluster: SteppedCluster) -> None:
    cluster.add_agent("a", 2, hold)
    submit(cluster, 4)
    cluster.round()
    assert cluster.checker.actor_state("trial#1").allocation.agents == ()
    cluster.add_agent("b", 2, hold)
    cluster.round()
    assert sorted(cluster.checker.actor_state("trial#1").allocation.agents) == ["a", "b"]


def test_reports_of_all_nodes_count_once(cluster: SteppedCluster) -> None:
    for name in "ab":
        cluster.add_agent(name, 2, train_at_once)
    submit(cluster, 4)
    cluster.run_to_rest()
    [ended] = cluster.checker.actor_states("experiment")
    assert ended.status is Status.COMPLETED
    folded = [name for name, _ in cluster.checker.folded_messages(EXPERIMENT)]
    assert (folded.count("TrialValidated"), folded.count("TrialLengthReached")) == (1, 1)
    assert folded.count("TrialEnded") == 1


def test_lost_node_costs_no_restart_and_records_the_cause(cluster: SteppedCluster) -> None:
    """The remaining node fails at once, and the loss of the agent is detected 30 s later."""
    vanished: list[str] = []

    def fail_without_peer(run: Run) -> list[Line]:
        if vanished and run.allocation == "1.1":
            return [{"kind": "exited", "reason": "errored", "message": "connection reset"}]
        return hold(run) if run.allocation == "1.1" else train_at_once(run)

    agents = {name: cluster.add_agent(name, 2, fail_without_peer) for name in "abc"}
    submit(cluster, 4)
    cluster.until(lambda: sum(len(agent.processes) for agent in agents.values()) == 2, "running")
    chief, lost = cluster.checker.actor_state("trial#1").allocation.agents
    vanished.append(lost)
    cluster.silent.add(lost)
    cluster.round_ms = 6 * ROUND_MS
    cluster.until(
        lambda: not agents[chief].processes or agents[chief].processes["1.1"].has_ended, "failed"
    )
    assert cluster.checker.actor_state("trial#1").epoch == 1
    cluster.until(lambda: cluster.checker.actor_state("trial#1").epoch == 2, "given up")
    again = cluster.checker.actor_state("trial#1").allocation.agents
    assert chief in again
    assert lost not in again
    cluster.silent.clear()
    cluster.run_to_rest()
    trial = cluster.checker.actor_state("trial#1")
    assert (trial.status, trial.restarts, trial.losses) == (Status.COMPLETED, 0, 1)
    [loss] = trial.recent_losses
    assert loss.cause.startswith(f"agent {lost} was lost: it has not been heard of for")
