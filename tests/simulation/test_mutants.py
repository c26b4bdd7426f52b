"""Test of the simulation: without a condition, fence, intent or check, some seed breaks.

Some conditions have no mutant, because a second guard exists or their race is too rare for a few
seeds. `test_commit_conditions` covers these conditions one by one: consumed messages, new ids of
mail, repeated commands, expiring rows, mail to missing actors, and leases.

Two guards of the same fault form one mutant: the orphan cleanup finds a launch with a new token,
and the agent's own list stops reports of a former allocation before the trial compares the epoch.
"""

import os
import re
from pathlib import Path

import pytest

from simulator.checks.state_checker import InvariantBroken
from simulator.seeded.simulated_cluster import SimulatedCluster
from tests.simulation.mutants import CONTROLS, MUTANTS, Mutant
from tests.thinning import every

# The rarest race breaks a seed in ten.
SEEDS_MAX = 64
CONTROL_SEEDS = int(os.environ.get("CONTROL_SEEDS", "1"))


# Mutants with three to ten seconds per seed.
DEAR = {
    "no condition on fleets",
    "no correction of marks ahead",
    "no fence of leases",
    "no idle agents for gangs",
    "no pass over due rows",
    "no audit",
    "no sweep",
}


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant, marks=pytest.mark.nightly if mutant.name in DEAR else (), id=mutant.name
        )
        for mutant in MUTANTS
    ],
)
def test_mutant_breaks_an_invariant_in_some_seed(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant.takes_away(monkeypatch)
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
        broken = ran(mutant, seed, tmp_path)
        if broken is not None:
            assert re.search(mutant.seen, broken), f"seed {seed}: {broken}"
            return
    raise AssertionError(f"{SEEDS_MAX} seeds held with {mutant.name}")


@pytest.mark.parametrize("control", every(3, CONTROLS), ids=lambda control: control.name)
def test_control_clusters_break_no_invariant(
    control: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control.takes_away(monkeypatch)
    for seed in range(1, CONTROL_SEEDS + 1):
        assert ran(control, seed, tmp_path) is None, f"seed {seed}"


def ran(mutant: Mutant, seed: int, folder: Path) -> str | None:
    """Run a simulated cluster; return the broken invariant, or None."""
    home = folder / str(seed)
    home.mkdir()
    try:
        SimulatedCluster(seed, mutant.rates, mutant.size, home).run()
    except InvariantBroken as broken:
        return str(broken)
    return None
