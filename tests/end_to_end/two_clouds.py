"""A cluster with a pool on AWS and a pool on Google Cloud, with functions in either cloud."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.emulators.machines import Machines
from tests.end_to_end.cluster_steps import DeployedCluster, wait_for
from tests.end_to_end.laptop import Laptop

ON_AWS, ON_GCP = "on-aws", "on-gcp"
EC2_TYPE, GCE_TYPE = "g5.xlarge", "g2-standard-4"


def both_pools(home: str) -> str:
    """Return a configuration of both pools; `home` is the default pool of jobs."""
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
    """Wait until the experiment is completed; return the only trial.

    A failure includes the logs of the remote cloud's machines.
    """
    with logs_told(elsewhere):
        return wait_for(cluster, owner, experiment)


@contextmanager
def logs_told(machines: Machines) -> Iterator[None]:
    """Add the machines' logs to an AssertionError of the block."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{machines.all_logs()[-6000:]}") from error
