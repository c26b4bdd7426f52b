"""The digits demo, interrupted and in test mode."""

from __future__ import annotations

import pytest

from tests.conftest import require_installed
from tests.end_to_end.laptop import DIGITS, Laptop
from tests.end_to_end.outcome import Outcome, TrialOutcome, outcome_of
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

CONST = (DIGITS / "const.yaml", DIGITS)


@pytest.fixture(autouse=True)
def digits() -> None:
    require_installed("sklearn")


def test_interrupted_trial_ends_with_the_weights_of_an_uninterrupted_trial(laptop: Laptop) -> None:
    # Validations are reported at once, training metrics only every two seconds. With the policy
    # `none` the pause stores the only checkpoint before the end.
    overrides = (
        "searcher.max_length.epochs=16",
        "min_validation_period={epochs: 1}",
        "checkpoint_policy=none",
    )
    given = [word for override in overrides for word in ("--config", override)]
    laptop.run("create", *CONST, *given)
    laptop.run("create", *CONST, *given)
    second = laptop.json("trial", "list", 2)[0]["id"]

    with laptop.cluster() as cluster:
        trial = cluster.trial(second)
        wait_until(lambda: list(trial.metrics("validation")))
        laptop.run("pause", 2)
        [checkpoint] = wait_until(lambda: list(trial.checkpoints()))
    wait_until(lambda: not any(one.allocation.startswith(f"{second}.") for one in laptop.running()))
    target = laptop.json("trial", "describe", second)["target_steps"]
    assert 0 < checkpoint.data["steps_completed"] < target
    laptop.run("activate", 2)
    assert {laptop.run("wait", number).stdout.split()[-1] for number in (1, 2)} == {"finished"}
    with laptop.cluster() as cluster:
        unbroken, interrupted = (_only_trial(outcome_of(cluster, number)) for number in (1, 2))
    assert interrupted == unbroken


def test_test_mode_trains_a_single_batch_on_the_cluster(laptop: Laptop) -> None:
    done = laptop.run("create", *CONST, "--test-mode")
    assert done.stdout.splitlines()[-1] == "experiment 1 finished"
    [trial] = laptop.json("trial", "list", 1)
    assert trial["steps_completed"] == 1
    assert len(laptop.json("checkpoint", "list", 1)) == 1


def _only_trial(outcome: Outcome) -> TrialOutcome:
    [trial] = outcome.trials
    return trial
