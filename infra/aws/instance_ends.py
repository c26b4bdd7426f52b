"""The end of a cluster's instances on AWS, whose launcher is stopped."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infra.aws.account_facts import Clients
from infra.aws.names import Names
from infra.stack_program import DrainFailed, Progress
from provisioner.clouds.provider import CLUSTER_TAG

# EC2 may show an instance later than it answers with its id.
VISIBLE_SECONDS = 15
LOOK_SECONDS = 5
END_SECONDS_MAX = 900
_ENDING = "shutting-down"
_LIVE = ("pending", "running", "stopping", "stopped", _ENDING)


@dataclass(frozen=True)
class Clock:
    """Seconds that pass, and a wait for them."""

    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def end_instances(
    names: Names, clients: Clients, progress: Progress, clock: Clock | None = None
) -> int:
    """End the instances of a cluster whose tick, in another cloud, is stopped; return how many.
    Raises DrainFailed.
    """
    clock = clock or Clock()
    return end_until_quiet(names, clients, progress, clock, clock.seconds() + VISIBLE_SECONDS)


def end_until_quiet(
    names: Names, clients: Clients, progress: Progress, clock: Clock, quiet_at: float
) -> int:
    """End all instances, and those of a launch that was under way until `quiet_at`; return how many
    there were. Raises DrainFailed.
    """
    ended: set[str] = set()
    give_up_at = clock.seconds() + END_SECONDS_MAX
    while True:
        living = list_instances(names, clients)
        fresh = [it["InstanceId"] for it in living if it["State"]["Name"] != _ENDING]
        if fresh:
            progress(f"ending {', '.join(sorted(fresh))}")
            clients("ec2").terminate_instances(InstanceIds=sorted(fresh))
            ended |= set(fresh)
        now = clock.seconds()
        if not living and now >= quiet_at:
            return len(ended)
        if now >= give_up_at:
            names_left = ", ".join(sorted(it["InstanceId"] for it in living))
            raise DrainFailed(
                f"{names_left} did not end in {END_SECONDS_MAX} s; look at them in EC2's console, "
                "and try again"
            )
        clock.sleep(LOOK_SECONDS)


def list_instances(names: Names, clients: Clients) -> list[dict[str, Any]]:
    """Return the cluster's instances that have not ended, as EC2 describes them."""
    filters = [
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [names.cluster]},
        {"Name": "instance-state-name", "Values": list(_LIVE)},
    ]
    pages = clients("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [it for page in pages for group in page["Reservations"] for it in group["Instances"]]
