"""Whole clusters under faults: every invariant holds for every seed. See docs/simulate.md.

SIMULATION_SEEDS and SIMULATION_FIRST_SEED say how many seeds, and from which on.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from simulator.__main__ import main
from simulator.faults.fault_rates import (
    FAULT_NAMES,
    NO_FAULTS,
    UnknownFault,
    parse_fault_names,
    sample_fault_rates,
)
from simulator.seeded import searches
from simulator.seeded.runs import (
    Plan,
    outcome_writer,
    read_outcomes,
    run_seed,
    run_seeds,
    sum_outcomes,
)
from simulator.seeded.simulated_cluster import ClusterSize, SimulatedCluster

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "8"))
FIRST = int(os.environ.get("SIMULATION_FIRST_SEED", "1"))
CORES = len(os.sched_getaffinity(0))
SMALL = Plan(size=ClusterSize(experiments=1, pools=1, machines_max=2, hours=0.5))
CALM = Plan((), SMALL.size)


def test_everything_holds_for_every_seed(coverage_line: Callable[[str], None]) -> None:
    began, plan = time.perf_counter(), Plan()
    outcomes = list(run_seeds(range(FIRST, FIRST + SEEDS), plan, CORES))
    seconds = time.perf_counter() - began
    found = sum_outcomes(outcomes)
    coverage_line(
        f"{SEEDS} clusters of {found['virtual_seconds']:,.0f} virtual s in {seconds:.0f} s on"
        f" {CORES} cores, {found['virtual_over_real']:,.0f} times real time on each:"
        f" {found['trials']} trials, {found['losses']} losses, {found['preemptions']} preemptions,"
        f" {found['restarts']} restarts, {found['machines']} instances, {found['leaked']} leaked"
    )
    failed = [
        f"{plan.command(outcome.seed)}: {outcome.violation}"
        for outcome in outcomes
        if outcome.violation
    ]
    assert not failed, "\n".join(failed[:10])


def test_a_seed_replays_to_the_last_commit() -> None:
    one, other = (run_seed(4711, SMALL) for _ in range(2))
    assert one.digest
    assert (one.digest, one.commits, one.faults) == (other.digest, other.commits, other.faults)


def test_other_seeds_are_other_clusters() -> None:
    assert run_seed(1, CALM).digest != run_seed(2, CALM).digest


def test_a_calm_cluster_has_no_faults_and_loses_nothing() -> None:
    outcome = run_seed(3, CALM)
    assert (outcome.violation, outcome.faults, outcome.losses) == ("", {}, 0)
    assert set(outcome.experiments) <= {"COMPLETED", "CANCELED"}


def test_marks_of_damage_are_taken_back_while_trials_run(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, damaged_checkpoints=0.5, losses_hourly=1.0)
    cluster = SimulatedCluster(1, rates, ClusterSize(experiments=2, pools=1), tmp_path)
    cluster.run()
    assert cluster.users.verifications > 0


def test_faults_that_are_not_allowed_leave_the_chances_of_others_as_they_are() -> None:
    every = sample_fault_rates(Random("1/chances"), FAULT_NAMES)
    one = sample_fault_rates(Random("1/chances"), ("races",))
    assert one.races == every.races
    assert one.throttling == 0.0
    assert sample_fault_rates(Random("1/chances"), ()) == NO_FAULTS


def test_faults_are_named_as_people_write_them() -> None:
    assert parse_fault_names(["lost-triggers", "zombies"]) == ("lost_triggers", "zombies_hourly")
    with pytest.raises(UnknownFault, match="there is no fault 'floods'"):
        parse_fault_names(["floods"])


def test_a_command_runs_a_seed_again() -> None:
    assert Plan().command(4711) == "detcloud simulate cluster --seed 4711"
    small = Plan(("races",), ClusterSize(experiments=1, machines_max=2))
    assert small.command(5) == (
        "detcloud simulate cluster --seed 5 --faults races --experiments 1 --agents 2"
    )


def test_outcomes_are_kept_and_gone_on_from(
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


def test_a_fault_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed=1", "--faults=floods"]) == 2
    assert "there is no fault 'floods'" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [1, 4])
def test_a_search_in_epochs_comes_to_what_the_same_one_in_batches_does(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(searches, "IN_EPOCHS", share)
        home = tmp_path / str(share)
        home.mkdir()
        cluster = SimulatedCluster(seed, NO_FAULTS, SMALL.size, home)
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
        found.append(sorted(ends))
    assert found[0] == found[1]


def test_everything_holds_in_epochs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "IN_EPOCHS", 1.0)
    for seed in range(FIRST, FIRST + 6):
        assert run_seed(seed, SMALL).violation == "", f"seed {seed}"
