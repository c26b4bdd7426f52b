"""Terminates a cluster's instances before the stack is removed.

The tick and `wake` are stopped first, so that nothing launches again.
"""

from detcloud.shared.plurals import count_text
from infra.drain_clock import Clock
from infra.gcp.functions import SIZES
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, is_deleted, read_or_none
from infra.gcp.instance_ends import COMPUTE, VISIBLE_SECONDS, end_until_quiet, list_parts
from infra.gcp.names import OTHER_ACCOUNTS, RELAY, TRIAL_ACCOUNTS, Names
from infra.gcp.policies import ROLES
from infra.stack_program import DrainFailed, DrainReport, Progress
from lambdas.gcp.function_names import ACCOUNT_FUNCTIONS, FUNCTIONS

# The functions that launch instances.
LAUNCHING = ("tick", "wake")


def drain(
    names: Names, api: GoogleApi, progress: Progress, clock: Clock | None = None
) -> DrainReport:
    """Stop the tick until the next deployment, and terminate the cluster's instances.

    Wait until no instance is left and no running tick can still launch an instance. The report
    counts the terminated instances, and no templates. A repeated call finds less to do.

    Raises:
        DrainFailed: the database is still protected from deletion (nothing was changed), instances
            did not end within END_SECONDS_MAX, or Google refused a call.
    """
    clock = clock or Clock()
    try:
        _refuse_protected(names, api)
        quiet_at = clock.seconds() + _stop_tick(names, api, progress)
        instances = end_until_quiet(names, api, progress, clock, quiet_at)
    except GoogleError as error:
        raise DrainFailed(f"Google refused a request, try again: {error}") from None
    progress(f"{count_text(instances, 'instance')} ended")
    return DrainReport(instances, 0)


def start_tick(names: Names, api: GoogleApi, progress: Progress) -> None:
    """Let the functions that `drain` stopped scale automatically again, and report each start.

    Pulumi does not notice the stop. Do nothing for a function that does not exist or was not
    stopped. Raise DrainFailed if Google refuses.
    """
    for function in LAUNCHING:
        _start_function(names, api, progress, function)


def _start_function(names: Names, api: GoogleApi, progress: Progress, function: str) -> None:
    """Let a stopped function scale automatically again, and report the start.

    Do nothing for a function that was not stopped or does not exist.

    Raise DrainFailed if Google refuses.
    """
    url = _service_url(names, function)
    try:
        scaling = (read_or_none(api, url) or {}).get("scaling", {})
        if scaling.get("scalingMode") != "MANUAL":
            return
        api.call("PATCH", f"{url}?updateMask=scaling", {"scaling": {"scalingMode": "AUTOMATIC"}})
    except GoogleError as error:
        raise DrainFailed(
            f"everything is deployed, but the function {names.part(function)} may be stopped; "
            f"deploy again: {error}"
        ) from None
    progress(f"the function {names.part(function)} starts again")


def find_leftovers(names: Names, api: GoogleApi) -> list[str]:
    """Return a line for each remaining resource of the cluster; [] if nothing remains.

    Search the database, buckets, services, service accounts, custom roles, the repository, the
    relay's secret and the network by name, and instances and disks by the cluster's label. Skip
    deleted roles that Google still lists. Raise GoogleError if a call fails.
    """
    project, region = names.project, names.region
    run = f"https://run.googleapis.com/v2/projects/{project}/locations/{region}/services"
    iam = f"https://iam.googleapis.com/v1/projects/{project}/serviceAccounts"
    repositories = f"projects/{project}/locations/{region}/repositories/{names.cluster}"
    secret = f"projects/{project}/secrets/{names.part(RELAY)}"
    places = {
        f"database {names.database}": _database_url(names),
        **{
            f"bucket {bucket}": f"https://storage.googleapis.com/storage/v1/b/{bucket}"
            for bucket in (names.objects, names.checkpoints)
        },
        **{
            f"service {names.part(function)}": f"{run}/{names.part(function)}"
            for function in (*FUNCTIONS, RELAY)
        },
        f"secret {names.part(RELAY)}": f"https://secretmanager.googleapis.com/v1/{secret}",
        **{
            f"service account {names.email(account)}": f"{iam}/{names.email(account)}"
            for account in (*ACCOUNT_FUNCTIONS, *OTHER_ACCOUNTS, *TRIAL_ACCOUNTS, RELAY)
        },
        **{
            f"role {names.role_id(role)}": f"https://iam.googleapis.com/v1/{names.role(role)}"
            for role in ROLES
        },
        f"repository {names.cluster}": f"https://artifactregistry.googleapis.com/v1/{repositories}",
        f"network {names.part('network')}": f"{COMPUTE}/{names.network_path}",
    }
    found = {name: read_or_none(api, url) for name, url in places.items()}
    return [
        *(name for name, part in found.items() if part is not None and not is_deleted(part)),
        *(
            f"{kind} {part}"
            for kind in ("instance", "disk")
            for part in list_parts(names, api, kind)
        ),
    ]


def _database_url(names: Names) -> str:
    """Return the URL of the state database in Firestore's API."""
    return (
        f"https://firestore.googleapis.com/v1/projects/{names.project}/databases/{names.database}"
    )


def _service_url(names: Names, function: str) -> str:
    """Return the URL of a function's service in Cloud Run's API."""
    services = f"projects/{names.project}/locations/{names.region}/services"
    return f"https://run.googleapis.com/v2/{services}/{names.part(function)}"


def _refuse_protected(names: Names, api: GoogleApi) -> None:
    """Raise DrainFailed if the database is protected from deletion.

    Do nothing for a missing database. Raise GoogleError if the database cannot be read.
    """
    database = read_or_none(api, _database_url(names))
    if database and database.get("deleteProtectionState") == "DELETE_PROTECTION_ENABLED":
        raise DrainFailed(
            f"the database {names.database} is protected: set detcloud:protect: false and deploy "
            "first"
        )


def _stop_tick(names: Names, api: GoogleApi, progress: Progress) -> float:
    """Scale the tick and `wake` to zero instances, so that neither starts any more.

    Report each stop to `progress`. Return the seconds after which Compute Engine lists every
    instance that a running function may still launch. Return 0.0, without a report, if neither
    service exists. Raise GoogleError for other refusals.
    """
    return max(_stop_function(names, api, progress, name) for name in LAUNCHING)


def _stop_function(names: Names, api: GoogleApi, progress: Progress, name: str) -> float:
    """Scale a function's service to zero instances, and report the stop.

    Return the seconds after which Compute Engine lists every instance that a running call may still
    launch. Return 0.0, without a report, if the service does not exist. Raise GoogleError for other
    refusals.
    """
    # Without instances, the service refuses all requests and costs nothing.
    scaling = {"scalingMode": "MANUAL", "manualInstanceCount": 0}
    url = _service_url(names, name)
    try:
        api.call("PATCH", f"{url}?updateMask=scaling", {"scaling": scaling})
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
        return 0.0
    progress(f"the function {names.part(name)} is stopped and launches no more instances")
    return SIZES[name].seconds_max + VISIBLE_SECONDS
