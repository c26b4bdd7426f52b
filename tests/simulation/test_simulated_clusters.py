"""Tests of whole clusters under faults: every invariant holds for every seed.

SIMULATION_SEEDS is the number of seeds, SIMULATION_FIRST_SEED the first seed. See
docs/simulate.md.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from control_plane.actors.records import Status
from simulator.__main__ import main
from simulator.faults.fault_rates import (
    FAULT_NAMES,
    NO_FAULTS,
    UnknownFault,
    parse_fault_names,
    sample_fault_rates,
)
from simulator.seeded.runs import (
    Plan,
    outcome_writer,
    read_outcomes,
    run_seed,
    run_seeds,
    sum_outcomes,
)
from simulator.seeded.simulated_cluster import ClusterSize, SimulatedCluster

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "3"))
FIRST = int(os.environ.get("SIMULATION_FIRST_SEED", "1"))
CORES = len(os.sched_getaffinity(0))
SMALL = Plan(size=ClusterSize(experiments=1, pools=1, machines_max=2, hours=0.5))
CALM = Plan((), SMALL.size)


def test_invariants_hold_for_every_seed(coverage_line: Callable[[str], None]) -> None:
    began, plan = time.perf_counter(), Plan()
    outcomes = list(run_seeds(range(FIRST, FIRST + SEEDS), plan, CORES))
    seconds = time.perf_counter() - began
    total = sum_outcomes(outcomes)
    coverage_line(
        f"{SEEDS} clusters of {total['virtual_seconds']:,.0f} virtual s in {seconds:.0f} s on"
        f" {CORES} cores, {total['virtual_over_real']:,.0f} times real time on each:"
        f" {total['trials']} trials, {total['losses']} losses, {total['preemptions']} preemptions,"
        f" {total['restarts']} restarts, {total['machines']} instances, {total['leaked']} leaked"
    )
    failed = [
        f"{plan.command(outcome.seed)}: {outcome.violation}"
        for outcome in outcomes
        if outcome.violation
    ]
    assert not failed, "\n".join(failed[:10])


def test_seed_replays_to_the_last_commit() -> None:
    first, second = (run_seed(4711, SMALL) for _ in range(2))
    assert first.digest
    assert (first.digest, first.commits) == (second.digest, second.commits)
    assert first.faults == second.faults


def test_different_seeds_make_different_clusters() -> None:
    assert run_seed(1, CALM).digest != run_seed(2, CALM).digest


def test_calm_cluster_has_no_faults_and_no_losses() -> None:
    outcome = run_seed(3, CALM)
    assert (outcome.violation, outcome.faults, outcome.losses) == ("", {}, 0)
    assert set(outcome.experiments) <= {"COMPLETED", "CANCELED"}


def test_users_verify_damaged_checkpoints_while_trials_run(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, damaged_checkpoints=0.5, losses_hourly=1.0)
    cluster = SimulatedCluster(1, rates, ClusterSize(experiments=2, pools=1), tmp_path)
    cluster.run()
    assert cluster.users.verifications > 0


def test_log_policies_exclude_agents_and_cancel_retries(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, matching_logs=0.5)
    cluster = SimulatedCluster(3, rates, ClusterSize(experiments=3, pools=2), tmp_path)
    cluster.run()
    trials = cluster.checker.actor_states("trial")
    assert any(trial.excluded_agents for trial in trials)
    assert any(trial.retries_canceled for trial in trials)


def test_events_arrive_in_order_in_spite_of_failed_deliveries(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, failed_deliveries=0.4, crashes=0.02, duplicates=0.1)
    cluster = SimulatedCluster(4, rates, ClusterSize(experiments=2, pools=1), tmp_path)
    cluster.run()
    # `run` compares the arrived events with the events that the experiments have raised.
    assert cluster.faults.counts["failed_deliveries"] > 0
    assert sum(map(len, cluster.receiver.received.values())) > 5


@pytest.mark.nightly
def test_gang_on_a_bad_network_moves_without_a_restart(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, bad_networks_hourly=8.0)
    cluster = SimulatedCluster(6, rates, ClusterSize(), tmp_path)
    excluded: list[str] = []
    cluster.checker.on_mail = _observe_exclusions(cluster, excluded)
    cluster.run()
    # The seed has a gang on a bad network. `run` checks that the exclusions have ended.
    assert excluded
    experiments = cluster.checker.actor_states("experiment")
    assert all(state.status is Status.COMPLETED for state in experiments)


def _observe_exclusions(cluster: SimulatedCluster, excluded: list[str]) -> Callable[[str], None]:
    """Return the handler of mail, which adds the agents that get mail while a trial moves."""
    handle = cluster.checker.on_mail

    def observe(address: str) -> None:
        trials = cluster.checker.actor_states("trial")
        if address.startswith("agent#") and any(trial.check_moves for trial in trials):
            excluded.append(address)
        handle(address)

    return observe


@pytest.mark.nightly
def test_hanging_runs_are_found_and_end(tmp_path: Path) -> None:
    cluster = SimulatedCluster(3, replace(NO_FAULTS, hangs=1.0), ClusterSize(), tmp_path)
    cluster.run()
    trials = cluster.checker.actor_states("trial")
    restarting = [trial for trial in trials if trial.settings.restarts_hangs]
    others = [trial for trial in trials if not trial.settings.restarts_hangs]
    assert restarting
    assert others
    # The only hang of a trial uses up a restart if the settings restart hanging runs.
    assert all(trial.restarts >= 1 for trial in restarting)
    # A user cancels an experiment in this seed.
    assert {trial.status for trial in trials} == {Status.COMPLETED, Status.CANCELED}


def test_low_use_ends_runs_of_some_searches(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, low_uses=0.5)
    cluster = SimulatedCluster(4, rates, ClusterSize(experiments=4, pools=2), tmp_path)
    cluster.run()
    trials = cluster.checker.actor_states("trial")
    assert any("(low_use)" in trial.message for trial in trials)
    assert any(trial.use is not None and trial.use.low_ms > 0 for trial in trials)
    assert sum(trial.use.measured_ms for trial in trials if trial.use) > 0


def test_broken_devices_move_trials_without_restarts(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, flapping_devices_hourly=8.0)
    for name in ("broken", "calm"):
        (tmp_path / name).mkdir()
    size = ClusterSize(experiments=3, pools=1)
    cluster = SimulatedCluster(2, rates, size, tmp_path / "broken")
    cluster.run()
    assert cluster.faults.counts["flapping_devices"] > 3
    calm = SimulatedCluster(2, NO_FAULTS, size, tmp_path / "calm")
    calm.run()

    def count(run: SimulatedCluster, name: str) -> int:
        return sum(getattr(trial, name) for trial in run.checker.actor_states("trial"))

    # More runs than without faults, and no more failures.
    assert count(cluster, "epoch") > count(calm, "epoch")
    assert count(cluster, "restarts") == count(calm, "restarts")
    agents = cluster.checker.actor_states("agent")
    assert not any(agent.faults for agent in agents if not agent.lost)


def test_disallowed_faults_leave_the_rates_of_allowed_faults_unchanged() -> None:
    every = sample_fault_rates(Random("1/chances"), FAULT_NAMES)
    races_only = sample_fault_rates(Random("1/chances"), ("races",))
    assert races_only.races == every.races
    assert races_only.throttling == 0.0
    assert sample_fault_rates(Random("1/chances"), ()) == NO_FAULTS


def test_parses_hyphenated_fault_names() -> None:
    assert parse_fault_names(["lost-triggers", "zombies"]) == ("lost_triggers", "zombies_hourly")
    with pytest.raises(UnknownFault, match="there is no fault 'floods'"):
        parse_fault_names(["floods"])


def test_plan_command_names_the_seed_and_the_options() -> None:
    assert Plan().command(4711) == "detcloud simulate cluster --seed 4711"
    small = Plan(("races",), ClusterSize(experiments=1, machines_max=2))
    assert small.command(5) == (
        "detcloud simulate cluster --seed 5 --faults races --experiments 1 --agents 2"
    )


def test_interrupted_outcomes_file_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "outcomes.jsonl"
    words = ["--faults=none", "--experiments=1", "--pools=1", "--hours=0.2", f"--output={file}"]
    assert main([*words, "--seeds=2", "--processes=1"]) == 0
    with file.open("a") as cut_off:
        cut_off.write('{"seed": 9, "viol')
    assert set(read_outcomes(file)) == {1, 2}
    lines = len(file.read_text().splitlines())
    assert main([*words, "--seeds=2"]) == 0
    assert len(file.read_text().splitlines()) == lines
    outcome_writer(None)(read_outcomes(file)[1])
    capsys.readouterr()


def test_command_rejects_unknown_fault_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed=1", "--faults=floods"]) == 2
    assert "there is no fault 'floods'" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [1, 4])
def test_search_in_epochs_ends_like_the_search_in_batches(seed: int, tmp_path: Path) -> None:
    ends_by_unit = []
    for share in (0.0, 1.0):
        size = replace(SMALL.size, epochs_share=share)
        home = tmp_path / str(share)
        home.mkdir()
        cluster = SimulatedCluster(seed, NO_FAULTS, size, home)
        cluster.run()
        assert all(
            actor_state.counts_epochs == share
            for actor_state in cluster.checker.actor_states("trial")
        )
        ends = [
            (actor_state.number, actor_state.status, actor_state.steps, actor_state.best_metric)
            for actor_state in cluster.checker.actor_states("trial")
        ]
        assert ends
        ends_by_unit.append(sorted(ends))
    assert ends_by_unit[0] == ends_by_unit[1]


def test_invariants_hold_in_epochs() -> None:
    plan = replace(SMALL, size=replace(SMALL.size, epochs_share=1.0))
    for seed in range(FIRST, FIRST + 2):
        assert run_seed(seed, plan).violation == "", f"seed {seed}"
