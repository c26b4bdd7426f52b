"""A process that dies within an upload leaves the old or the new checkpoint, never a half.

Each trial dies at a random moment, drawn again in each run of the test; the log names the line.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from detcloud.client import Trial
from tests.conftest import require_installed
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.upload_kills import LENGTH, PERIOD, write_killed_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# The third thread executes nearly as many lines as the second.
MOMENT_MAX = 0.97
NIGHTLY = tuple(
    pytest.param(name, 6, marks=pytest.mark.nightly)
    for name in ("core", "transformers", "lightning", "keras", "deepspeed")
)


@pytest.mark.nightly
@pytest.mark.parametrize(("framework", "count"), [("core", 3), *NIGHTLY])
def test_kill_within_an_upload_leaves_the_old_or_the_new_checkpoint(
    laptop: Laptop, tmp_path: Path, framework: str, count: int
) -> None:
    if framework != "core":
        require_installed("torch")
        require_installed(framework)
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    moments = [-1.0, *(draw.uniform(0, MOMENT_MAX) for _ in range(count))]
    store = tmp_path / "store"
    laptop.run("up", "--slots", 2)
    laptop.run("create", *write_killed_model(tmp_path, framework, moments, store))
    laptop.run("wait", 1, seconds=1200.0)
    with laptop.cluster() as cluster:
        trials = list(cluster.experiment(1).trials())
        ends = {check_end(trial) for trial in trials}
        assert (len(trials), len(ends)) == (len(moments), 1)
        wait_until(lambda: leftovers(store, trials) == [], 60.0, "the collection of the rest")
        assert [path for path in laptop.home.rglob(".detcloud-upload-*")] == []


def check_end(trial: Trial) -> str:
    """Check a trial after the kill, if any; return the digest of the weights."""
    log = "".join(trial.logs())
    is_killed = trial.data["hparams"]["moment"] >= 0
    assert (trial.data["state"], trial.data["restarts"]) == ("COMPLETED", is_killed), log
    assert ("killed at" in log) is is_killed, log
    # The third checkpoint was being uploaded.
    begins = [int(steps) for steps in re.findall(r"begins at (\d+)\n", log)]
    assert begins in ([[0, 2 * PERIOD], [0, 3 * PERIOD]] if is_killed else [[0]]), log
    kept = list(trial.checkpoints())
    assert {one.data["state"] for one in kept} == {"COMPLETED"}, log
    for checkpoint in kept:
        assert {one["state"] for one in checkpoint.verify()} == {"OK"}, log
    # A checkpoint that was stored but not reported when its process died is stored again.
    steps = {int(one.data["steps_completed"]) for one in kept}
    assert steps == set(range(PERIOD, LENGTH + 1, PERIOD)), log
    [end] = trial.metrics("end")
    return str(end["metrics"]["weights"])


def leftovers(store: Path, trials: list[Trial]) -> list[str]:
    """Return the files in the store that belong to no kept checkpoint."""
    kept = {
        one.data["uuid"]
        for trial in trials
        for one in trial.checkpoints()
        if one.data["state"] == "COMPLETED"
    }
    files = [path.relative_to(store) for path in store.rglob("*") if path.is_file()]
    others = [
        file for file in files if file.parts[0] != "tensorboard" and kept.isdisjoint(file.parts)
    ]
    return sorted(map(str, others))
