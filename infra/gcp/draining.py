"""The end of a cluster's instances before its stack is removed: whoever launches is stopped first,
so that nothing begins anew.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from infra.gcp.functions import SIZES
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_or_none, read_pages
from infra.gcp.names import OTHER_ACCOUNTS, Names
from infra.stack_program import DrainFailed, DrainReport, Progress
from lambdas.gcp.function_names import FUNCTIONS
from provisioner.clouds.provider import CLUSTER_TAG

# Compute Engine may show an instance later than it answers with its operation.
VISIBLE_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 5.0
END_SECONDS_MAX: Final = 900.0
COMPUTE: Final = "https://compute.googleapis.com/compute/v1"
_ENDED: Final = frozenset({"TERMINATED", "STOPPED"})


@dataclass(frozen=True)
class Clock:
    """Seconds that pass, and a wait for them."""

    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def drain(
    names: Names, api: GoogleApi, progress: Progress, clock: Clock | None = None
) -> DrainReport:
    """End the cluster's instances; its tick is stopped, and stays so. Whoever repeats it goes on
    where it stopped.

    Raises:
        DrainFailed: the database is protected still, instances do not end, or Google refused.
    """
    clock = clock or Clock()
    try:
        _refuse_protected(names, api)
        quiet_at = clock.seconds() + _stop_tick(names, api, progress)
        instances = _end_instances(names, api, progress, clock, quiet_at)
    except GoogleError as error:
        raise DrainFailed(f"Google did not take it, try again: {error}") from None
    progress(f"{instances} instances ended")
    return DrainReport(instances, 0)


def start_tick(names: Names, api: GoogleApi, progress: Progress) -> None:
    """Let the tick begin again where `drain` has stopped it, of which Pulumi knows nothing. Raises
    DrainFailed.
    """
    url = _tick_url(names)
    try:
        scaling = (read_or_none(api, url) or {}).get("scaling", {})
        if scaling.get("scalingMode") != "MANUAL":
            return
        api.call("PATCH", f"{url}?updateMask=scaling", {"scaling": {"scalingMode": "AUTOMATIC"}})
    except GoogleError as error:
        raise DrainFailed(
            f"everything is deployed, but the function {names.part('tick')} may be stopped, deploy "
            f"again: {error}"
        ) from None
    progress(f"the function {names.part('tick')} starts again")


def find_leftovers(names: Names, api: GoogleApi) -> list[str]:
    """Return what Google still has of the cluster, by its names and its label. Raises
    GoogleError.
    """
    project, region = names.project, names.region
    run = f"https://run.googleapis.com/v2/projects/{project}/locations/{region}/services"
    iam = f"https://iam.googleapis.com/v1/projects/{project}/serviceAccounts"
    repositories = f"projects/{project}/locations/{region}/repositories/{names.cluster}"
    places = {
        f"database {names.database}": _database_url(names),
        **{
            f"bucket {it}": f"https://storage.googleapis.com/storage/v1/b/{it}"
            for it in (names.objects, names.checkpoints)
        },
        **{f"service {names.part(it)}": f"{run}/{names.part(it)}" for it in FUNCTIONS},
        **{
            f"service account {names.email(it)}": f"{iam}/{names.email(it)}"
            for it in (*FUNCTIONS, *OTHER_ACCOUNTS)
        },
        f"repository {names.cluster}": f"https://artifactregistry.googleapis.com/v1/{repositories}",
    }
    found = [name for name, url in places.items() if read_or_none(api, url) is not None]
    return [
        *found,
        *(f"{kind} {it}" for kind in ("instance", "disk") for it in _list(names, api, kind)),
    ]


def _database_url(names: Names) -> str:
    return (
        f"https://firestore.googleapis.com/v1/projects/{names.project}/databases/{names.database}"
    )


def _tick_url(names: Names) -> str:
    services = f"projects/{names.project}/locations/{names.region}/services"
    return f"https://run.googleapis.com/v2/{services}/{names.part('tick')}"


def _refuse_protected(names: Names, api: GoogleApi) -> None:
    database = read_or_none(api, _database_url(names))
    if database and database.get("deleteProtectionState") == "DELETE_PROTECTION_ENABLED":
        raise DrainFailed(
            f"the database {names.database} is protected: set detcloud:protect: false and deploy "
            "first"
        )


def _stop_tick(names: Names, api: GoogleApi, progress: Progress) -> float:
    """Let no tick begin any more; return the seconds for which one that runs may yet launch."""
    tick = names.part("tick")
    # No instance of a service answers its requests with an error, and costs nothing.
    scaling = {"scalingMode": "MANUAL", "manualInstanceCount": 0}
    try:
        api.call("PATCH", f"{_tick_url(names)}?updateMask=scaling", {"scaling": scaling})
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
        return 0.0
    progress(f"the function {tick} is stopped: nothing is launched from now on")
    return SIZES["tick"].seconds_max + VISIBLE_SECONDS


def _end_instances(
    names: Names, api: GoogleApi, progress: Progress, clock: Clock, quiet_at: float
) -> int:
    """End all instances, and those of a launch that was under way; return how many there were."""
    ended: set[str] = set()
    give_up_at = clock.seconds() + END_SECONDS_MAX
    while True:
        living = _list(names, api, "instance")
        fresh = {place: status for place, status in living.items() if status != "STOPPING"}
        # A deletion that is under way is not asked for again.
        fresh = {place: it for place, it in fresh.items() if place not in ended or it in _ENDED}
        if fresh:
            progress(f"ending {', '.join(sorted(it.rpartition('/')[2] for it in fresh))}")
            for place in sorted(fresh):
                _delete(api, place)
            ended |= set(fresh)
        now = clock.seconds()
        if not living and now >= quiet_at:
            return len(ended)
        if now >= give_up_at:
            left = ", ".join(sorted(it.rpartition("/")[2] for it in living))
            raise DrainFailed(
                f"{left} did not end in {END_SECONDS_MAX:g} s; look at them in the console, and "
                "try again"
            )
        clock.sleep(LOOK_SECONDS)


def _list(names: Names, api: GoogleApi, kind: str) -> dict[str, str]:
    """Return the status of the cluster's instances or disks by their paths: those with its label,
    in all zones.
    """
    url = f"{COMPUTE}/projects/{names.project}/aggregated/{kind}s"
    url += f"?filter=labels.{CLUSTER_TAG}%3D{names.cluster}"
    found = {}
    for page in read_pages(api, url):
        for scope, it in page.get("items", {}).items():
            for item in it.get(f"{kind}s", ()):
                place = f"projects/{names.project}/{scope}/{kind}s/{item['name']}"
                found[place] = str(item.get("status", ""))
    return found


def _delete(api: GoogleApi, place: str) -> None:
    try:
        api.call("DELETE", f"{COMPUTE}/{place}")
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
