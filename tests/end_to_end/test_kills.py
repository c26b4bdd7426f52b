"""A search with three kills ends with the results of an undisturbed search."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import require_installed
from tests.end_to_end.kills import OVERRIDES, run, table, verdict
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.slow_digits import copy_slow_digits
from tests.end_to_end.strikes import Kill, Revival, Target, draw_kills, strike
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

TARGETS = (Target.SERVER, Target.AGENT, Target.TRIAL)
SMALL = ("searcher.max_trials=3", "searcher.max_length.epochs=8")
# The rest of the small search must outlast two kills before a trial's: each of 184 batches is 15 ms
# longer. 0.7 * 3 * 184 / 2 of them are sequential, which takes 3 s in addition to restarts.
PROGRESS_MAX, BATCH_SECONDS = 0.3, 0.015


@pytest.mark.nightly
def test_three_kills_do_not_change_the_results(tmp_path: Path) -> None:
    require_installed("sklearn")
    seed = random.SystemRandom().randrange(10**6)
    print(f"python -m tests.end_to_end.kills --kills 3 --seed {seed}", end=" ")
    print(f"--targets {','.join(TARGETS)} --progress-max {PROGRESS_MAX}", end=" ")
    print(*(f"--config {override}" for override in SMALL))
    expected = run(tmp_path / "undisturbed", [*OVERRIDES, *SMALL])
    kills = draw_kills(3, seed, TARGETS, PROGRESS_MAX)
    slow = copy_slow_digits(tmp_path, BATCH_SECONDS)
    outcome = run(tmp_path / "killed", [*OVERRIDES, *SMALL], kills, slow)
    print(table(outcome.struck))
    assert verdict(expected, outcome, 3) == []
    # Only the kill of the trial itself may cost a restart, and none if its work was done.
    assert outcome.outcome.restarts <= 1


def test_acknowledged_pause_outlives_a_power_cut(laptop: Laptop, tmp_path: Path) -> None:
    laptop.run("create", *write_model(tmp_path, 0.3))
    wait_until(lambda: len(laptop.running()) == 2)
    laptop.run("pause", 1)
    power_cut = Kill(Target.MACHINE, 0.0, 0.0, 0.0, outage_seconds=0.1, revival=Revival.UP)
    strike(laptop, power_cut, began=0.0)
    assert laptop.json("describe", 1)["state"] == "PAUSED"
    # The trials were lost with the machine, and no new trial starts.
    with laptop.cluster() as cluster:
        wait_until(lambda: cluster.overview()["resource_pools"][0]["free_slots"] == 2)
    assert laptop.running() == []
    laptop.run("activate", 1)
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    assert [one["restarts"] for one in laptop.json("trial", "list", 1)] == [0, 0]
