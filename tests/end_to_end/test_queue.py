"""Pools and the job queue on a running cluster: real agents, real trials, typed commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

POOLS = """
resource_pools:
  - pool_name: default
    scheduler: {type: fair_share}
  - pool_name: first-come
    scheduler: {type: priority, preemption: true}
    provider: {type: local, max_instances: 1}
"""
# Longer than the test, which ends these trials.
LONG = {"name": "single", "metric": "loss", "max_length": {"batches": 100_000}}


def submit(laptop: Laptop, folder: Path, name: str, pool: str) -> int:
    folder.mkdir()
    resources = {"resource_pool": pool}
    fields: dict[str, Any] = {
        "name": name,
        "searcher": LONG,
        "hyperparameters": {"x": 0.5},
        "resources": resources,
    }
    config, model = write_model(folder, 0.02, **fields)
    experiment: int = laptop.json("create", config, model)["id"]
    return experiment


def queue(laptop: Laptop, pool: str) -> list[Any]:
    with laptop.cluster() as cluster:
        return [job.data for job in cluster.jobs(pool)]


def slots(laptop: Laptop, pool: str) -> dict[str, str]:
    """Return acquired and needed slots by job name, in the order of the queue."""
    jobs = queue(laptop, pool)
    return {job["name"]: f"{job['allocated_slots']}/{job['requested_slots']}" for job in jobs}


def trains(laptop: Laptop, experiment: int) -> bool:
    with laptop.cluster() as cluster:
        (trial,) = cluster.experiment(experiment).trials()
        return bool(trial.steps_completed)


def test_job_moved_ahead_preempts_and_pools_decide_independently(
    laptop: Laptop, tmp_path: Path
) -> None:
    laptop.run("up", "--slots", 1)
    file = tmp_path / "cluster.yaml"
    file.write_text(POOLS)
    applied = laptop.run("cluster", "apply", file).stdout
    assert applied.splitlines() == ["pool default unchanged", "pool first-come created"]
    shared = submit(laptop, tmp_path / "c", "shared_job", "default")
    first = submit(laptop, tmp_path / "a", "first_job", "first-come")
    second = submit(laptop, tmp_path / "b", "second_job", "first-come")
    wait_until(lambda: trains(laptop, first))
    assert list(slots(laptop, "first-come").items()) == [
        ("first_job", "1/1"),
        ("second_job", "0/1"),
    ]
    (running, waiting) = laptop.json("job", "list", "-p", "first-come")
    assert [running["name"], waiting["name"]] == ["first_job", "second_job"]
    assert waiting["waits"].startswith("needs 1 slot, 0 free")
    # The pools are independent.
    wait_until(lambda: slots(laptop, "default") == {"shared_job": "1/1"})

    ids = [job["job_id"][:8] for job in queue(laptop, "first-come")]
    laptop.run("job", "update", ids[1], "--ahead-of", ids[0])
    wanted = [("second_job", "1/1"), ("first_job", "0/1")]
    wait_until(lambda: list(slots(laptop, "first-come").items()) == wanted)
    laptop.run("job", "update-batch", f"{ids[1]}.priority=1", f"{ids[0]}.priority=1")
    assert list(slots(laptop, "first-come").items()) == wanted
    assert [job["priority"] for job in queue(laptop, "first-come")] == [1, 1]

    refused = laptop.run("job", "update", shared, "--ahead-of", ids[0], code=3)
    assert "unable to perform operation on resource pool with fair_share" in refused.stderr
    laptop.run("kill", second)
    wait_until(lambda: slots(laptop, "first-come") == {"first_job": "1/1"})
    # The trial resumes from its stop.
    log = wait_until(lambda: _log_after_resume(laptop, first))
    assert "starts at 0\n" in log


def _log_after_resume(laptop: Laptop, experiment: int) -> str:
    """Return the log of the experiment's trial after the second start, and "" before."""
    [trial] = laptop.trials(experiment)
    log = laptop.log(trial["id"])
    starts = [line.rsplit(" ", 1)[1] for line in log.splitlines() if "starts at" in line]
    return log if len(starts) == 2 and int(starts[1]) > 0 else ""


def test_cluster_starts_with_the_pools_of_a_file(laptop: Laptop, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "resource_manager: {default_compute_resource_pool: mine, default_aux_resource_pool: mine}\n"
        "resource_pools: [{pool_name: mine, scheduler: {type: round_robin}}]\n"
    )
    laptop.run("up", "--slots", 1, "--config", file)
    (pool,) = laptop.json("resource-pool", "list")
    assert (pool["name"], pool["scheduler"]["type"]) == ("mine", "round_robin")
    # The machine's own agent has joined.
    with laptop.cluster() as cluster:
        wait_until(lambda: cluster.resource_pools()[0].data["slots"] == 1)
    laptop.run("down")
    laptop.run("up", "--slots", 1)
    assert [pool["name"] for pool in laptop.json("resource-pool", "list")] == ["mine"]
    file.write_text("resource_pools: [{pool_name: mine, sched: 1}]")
    refused = laptop.run("up", "--config", file, code=1)
    assert f"{file}:1: resource_pools[0].sched: is not a known field" in refused.stderr
