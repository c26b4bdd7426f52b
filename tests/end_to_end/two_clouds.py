"""A cluster with a pool on AWS and one on Google Cloud, whichever of them its functions run in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.emulators.machines import Machines
from tests.end_to_end.cluster_steps import DeployedCluster, wait_for
from tests.end_to_end.laptop import Laptop

ON_AWS, ON_GCP = "on-aws", "on-gcp"
EC2_TYPE, GCE_TYPE = "g5.xlarge", "g2-standard-4"


def both_pools(home: str) -> str:
    """Return a configuration of both pools, in which `home` is where jobs go that name none."""
    pools = [(ON_AWS, "aws", EC2_TYPE), (ON_GCP, "gcp", GCE_TYPE)]
    return f"""
resource_manager:
  default_compute_resource_pool: {home}
  default_aux_resource_pool: {home}
resource_pools:""" + "".join(
        f"""
  - pool_name: {name}
    provider:
      type: {provider}
      cpu_slots_allowed: true
      max_idle_agent_period: 5s
      offerings: [{{instance_type: {instance_type}, market: spot, slots: 1}}]"""
        for name, provider, instance_type in pools
    )


def wait_for_job(
    cluster: DeployedCluster[Any], elsewhere: Machines, owner: Laptop, experiment: int
) -> dict[str, Any]:
    """Return the experiment's one trial, once it is completed. What fails tells the logs of the
    other cloud's machines as well.
    """
    with logs_told(elsewhere):
        return wait_for(cluster, owner, experiment)


@contextmanager
def logs_told(machines: Machines) -> Iterator[None]:
    """Add what the machines wrote to what fails in the block."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{machines.all_logs()[-6000:]}") from error
