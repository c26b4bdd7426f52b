"""The end of a cluster's instances on Google Cloud, whose launcher is stopped."""

from typing import Final

from infra.drain_clock import Clock
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_pages
from infra.gcp.names import Names
from infra.stack_program import DrainFailed, Progress
from provisioner.clouds.provider import CLUSTER_TAG

# Compute Engine may show an instance later than it answers with its operation.
VISIBLE_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 5.0
END_SECONDS_MAX: Final = 900.0
COMPUTE: Final = "https://compute.googleapis.com/compute/v1"
_ENDED: Final = frozenset({"TERMINATED", "STOPPED"})


def end_instances(
    names: Names, api: GoogleApi, progress: Progress, clock: Clock | None = None
) -> int:
    """End the instances of a cluster whose tick, in another cloud, is stopped; return how many.

    Raises:
        DrainFailed: instances do not end.
        GoogleError: Google refused.
    """
    clock = clock or Clock()
    quiet_at = clock.seconds() + VISIBLE_SECONDS
    return end_until_quiet(names, api, progress, clock, quiet_at)


def end_until_quiet(
    names: Names, api: GoogleApi, progress: Progress, clock: Clock, quiet_at: float
) -> int:
    """Terminate all instances, including those of launches that end before `quiet_at`.

    Returns their number. Raises DrainFailed, GoogleError.
    """
    ended: set[str] = set()
    give_up_at = clock.seconds() + END_SECONDS_MAX
    while True:
        living = list_parts(names, api, "instance")
        fresh = {place: status for place, status in living.items() if status != "STOPPING"}
        # A deletion that is under way is not asked for again.
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
    """Return the status of the cluster's instances or disks by their paths: those with its label,
    in all zones. Raises GoogleError.
    """
    url = f"{COMPUTE}/projects/{names.project}/aggregated/{kind}s"
    url += f"?filter=labels.{CLUSTER_TAG}%3D{names.cluster}"
    found = {}
    for page in read_pages(api, url):
        for scope, entry in page.get("items", {}).items():
            for item in entry.get(f"{kind}s", ()):
                place = f"projects/{names.project}/{scope}/{kind}s/{item['name']}"
                found[place] = str(item.get("status", ""))
    return found


def _delete(api: GoogleApi, place: str) -> None:
    try:
        api.call("DELETE", f"{COMPUTE}/{place}")
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
