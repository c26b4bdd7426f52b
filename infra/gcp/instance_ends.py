"""Termination of a cluster's instances on Google Cloud.

The cluster's tick must be stopped already, or launches would continue.
"""

from typing import Final

from infra.drain_clock import Clock
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_pages
from infra.gcp.names import Names
from infra.stack_program import DrainFailed, Progress
from provisioner.clouds.provider import CLUSTER_TAG

# Compute Engine may list an instance only some seconds after the launch returned.
VISIBLE_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 5.0
END_SECONDS_MAX: Final = 900.0
COMPUTE: Final = "https://compute.googleapis.com/compute/v1"
_ENDED: Final = frozenset({"TERMINATED", "STOPPED"})


def end_instances(
    names: Names, api: GoogleApi, progress: Progress, clock: Clock | None = None
) -> int:
    """Terminate the instances of a cluster in another cloud; return the number of instances.

    The cluster's tick in that cloud must be stopped. Wait until no instance is left, and at least
    VISIBLE_SECONDS. Report the instances that are deleted.

    Raises:
        DrainFailed: instances did not end within END_SECONDS_MAX.
        GoogleError: Google refused a call.
    """
    clock = clock or Clock()
    quiet_at = clock.seconds() + VISIBLE_SECONDS
    return end_until_quiet(names, api, progress, clock, quiet_at)


def end_until_quiet(
    names: Names, api: GoogleApi, progress: Progress, clock: Clock, quiet_at: float
) -> int:
    """Delete the cluster's instances until all are gone, and at least until `quiet_at`.

    `quiet_at` is a time of the clock, in seconds, after which no new instance can appear. Report
    the instances that are deleted. Return the number of instances that this call deleted. Raise
    DrainFailed if instances are left after END_SECONDS_MAX, and GoogleError.
    """
    ended: set[str] = set()
    give_up_at = clock.seconds() + END_SECONDS_MAX
    while True:
        living = list_parts(names, api, "instance")
        fresh = {place: status for place, status in living.items() if status != "STOPPING"}
        # Do not repeat a deletion that is in progress.
        fresh = {
            place: status
            for place, status in fresh.items()
            if place not in ended or status in _ENDED
        }
        if fresh:
            progress(f"ending {', '.join(sorted(name.rpartition('/')[2] for name in fresh))}")
            for place in sorted(fresh):
                _delete(api, place)
            ended |= set(fresh)
        now = clock.seconds()
        if not living and now >= quiet_at:
            return len(ended)
        if now >= give_up_at:
            left = ", ".join(sorted(name.rpartition("/")[2] for name in living))
            raise DrainFailed(
                f"{left} did not end in {END_SECONDS_MAX:g} s; look at them in the console, and "
                "try again"
            )
        clock.sleep(LOOK_SECONDS)


def list_parts(names: Names, api: GoogleApi, kind: str) -> dict[str, str]:
    """Return the status of each resource with the cluster's label in all zones, by path.

    `kind` is `instance` or `disk`. Stopped instances are included. Return {} without any. Raise
    GoogleError if a call fails.
    """
    url = f"{COMPUTE}/projects/{names.project}/aggregated/{kind}s"
    url += f"?filter=labels.{CLUSTER_TAG}%3D{names.label}"
    found = {}
    for page in read_pages(api, url):
        for scope, entry in page.get("items", {}).items():
            for item in entry.get(f"{kind}s", ()):
                place = f"projects/{names.project}/{scope}/{kind}s/{item['name']}"
                found[place] = str(item.get("status", ""))
    return found


def _delete(api: GoogleApi, place: str) -> None:
    """Request the deletion of the resource at a path. Ignore a missing one; raise GoogleError."""
    try:
        api.call("DELETE", f"{COMPUTE}/{place}")
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
