"""Steps of tests with a pool of own machines and a pool in a cloud, to which jobs overflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import PATIENCE, wait_until

OWN_POOL, CLOUD_POOL = "lab", "spot"


def pools_with_cloud(kind: str, offering: str, storage: Mapping[str, object]) -> str:
    """Return a configuration of a pool of own machines and a pool on the cloud `kind`."""
    return f"""
resource_manager:
  default_compute_resource_pool: {OWN_POOL}
  default_aux_resource_pool: {OWN_POOL}
checkpoint_storage: {json.dumps(storage)}
resource_pools:
  - pool_name: {OWN_POOL}
  - pool_name: {CLOUD_POOL}
    provider:
      type: {kind}
      cpu_slots_allowed: true
      max_idle_agent_period: 20s
      offerings: [{offering}]
"""


def check_overflow(owner: Laptop, folder: Path, count_machines: Callable[[], int]) -> None:
    """Check that a job runs in the cloud while another job holds the only own slot.

    The second job waits for its patience first. At the end, no job runs.
    """
    try:
        _check_overflow(owner, folder, count_machines)
    except AssertionError as error:
        log = (owner.home / "server.log").read_text()
        passes = [line for line in log.splitlines() if "pool spot" in line or "WARN" in line]
        raise AssertionError("\n".join([str(error), *passes[-20:]])) from error


def _check_overflow(owner: Laptop, folder: Path, count_machines: Callable[[], int]) -> None:
    long = _create(owner, folder / "long", OWN_POOL, pause_seconds=1.0, batches=10_000)
    wait_until(lambda: bool(owner.running()), 30, "the run of the first job")
    assert count_machines() == 0
    short = _create(owner, folder / "short", [OWN_POOL, CLOUD_POOL], batches=3)
    # The patience is longer than a boot, because a job may leave a pool whose machine boots.
    wait_until(lambda: count_machines() > 0, 60, "a machine in the cloud")
    [trial] = owner.trials(short)
    owner.run("wait", short, seconds=180 * PATIENCE)
    described = owner.json("experiment", "describe", short)
    assert described["state"] == "COMPLETED", owner.log(trial["id"])
    assert described["resource_pool"] == CLOUD_POOL
    assert "starts at 0" in owner.log(trial["id"])
    assert owner.json("experiment", "describe", long)["state"] == "ACTIVE"
    owner.run("experiment", "kill", long)


def remove_clouds(owner: Laptop, folder: Path, port: int) -> None:
    """Remove the pool in the cloud, and start the cluster without remote accounts."""
    config = folder / "own.yaml"
    config.write_text(f"""
resource_manager:
  default_compute_resource_pool: {OWN_POOL}
  default_aux_resource_pool: {OWN_POOL}
resource_pools: [{{pool_name: {OWN_POOL}}}]
""")

    def is_empty() -> bool:
        pools = {pool["name"]: pool for pool in owner.json("resource-pool", "list")}
        return (pools[CLOUD_POOL]["instances"], pools[CLOUD_POOL]["agents"]) == (0, 0)

    wait_until(is_empty, 60, "an empty pool")
    owner.run("cluster", "apply", config)
    refused = owner.run("up", "--clouds", "none", code=1).stderr
    assert "remote accounts that only a start changes" in refused
    owner.run("down")
    owner.run("up", "--slots", 1, "--port", port, "--clouds", "none")
    assert not (owner.home / "clouds.json").exists()
    assert [pool["name"] for pool in owner.json("resource-pool", "list")] == [OWN_POOL]


def _create(
    owner: Laptop, folder: Path, pool: str | list[str], batches: int, pause_seconds: float = 0.0
) -> int:
    """Create a job with a single trial; return the experiment."""
    folder.mkdir()
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": batches}}
    config, model = write_model(
        folder,
        pause_seconds,
        searcher=searcher,
        hyperparameters={"x": 0.5},
        resources={"resource_pool": pool, "slots_per_trial": 1, "pool_patience": "15s"},
    )
    created: dict[str, Any] = owner.json("create", config, model)
    return int(created["id"])
