"""The test of the simulation: without any one condition, fence, intent or look some seed breaks.

What is not among these is guarded twice, or is raced too seldom for a few seeds; the races of
test_commit_conditions show it one by one: messages consumed, new ids of mail, commands that
come twice, rows that expire, mail to those who are not there, and leases. Of two guards in a row
only both together are a mutant: a launch with another token is found by the orphan cleanup, and
reports of a former allocation are stopped by the agent's own list before the trial looks at their
epoch.
"""

import os
import re
from pathlib import Path

import pytest

from simulator.checks.state_checker import InvariantBroken
from simulator.seeded.simulated_cluster import SimulatedCluster
from tests.simulation.mutants import CONTROLS, MUTANTS, Mutant

# The rarest race is noticed by one seed in ten.
SEEDS_MAX = 64
CONTROL_SEEDS = int(os.environ.get("CONTROL_SEEDS", "1"))


# Their seeds take three to ten seconds each.
DEAR = {
    "no condition on fleets",
    "no end of marks ahead",
    "no fence of leases",
    "no agents of a gang",
    "no look at what is due",
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
def test_some_seed_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutant.takes_away(monkeypatch)
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
        broken = ran(mutant, seed, tmp_path)
        if broken is not None:
            assert re.search(mutant.seen, broken), f"seed {seed}: {broken}"
            return
    raise AssertionError(f"{SEEDS_MAX} seeds held with {mutant.name}")


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_with_everything_in_place_the_same_clusters_hold(
    control: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control.takes_away(monkeypatch)
    for seed in range(1, CONTROL_SEEDS + 1):
        assert ran(control, seed, tmp_path) is None, f"seed {seed}"


def ran(mutant: Mutant, seed: int, folder: Path) -> str | None:
    """Run a simulated cluster; returns the broken invariant, None for none."""
    home = folder / str(seed)
    home.mkdir()
    try:
        SimulatedCluster(seed, mutant.rates, mutant.size, home).run()
    except InvariantBroken as broken:
        return str(broken)
    return None
