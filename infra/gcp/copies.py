"""Copies of the state and of the buckets in another region, which the setting `copies` asks for.

A backup of Firestore stays in the database's region, so the state is exported. Only an export of a
named minute is consistent, and a job of Cloud Scheduler cannot name a minute: the job calls the
tick, which starts the export. Storage Transfer Service copies the buckets as often.
"""

from collections.abc import Mapping
from typing import Any, Final

import pulumi
from pulumi_gcp import cloudscheduler, storage

from infra.copy_settings import STATE_DAYS, VERSION_DAYS, Copies
from infra.gcp.accounts import Accounts
from infra.gcp.google_api import GoogleApi
from infra.gcp.policies import STATE_COPY
from infra.gcp.scope import Scope
from infra.gcp.storage import make_private_bucket, old_versions_rule
from lambdas.gcp.state_export import EXPORT_HEADER

TRANSFERS: Final = "https://storagetransfer.googleapis.com/v1"
# What the transfer agent needs on a source and on a copy, as Google's documentation says.
SOURCE_ROLES: Final = ("roles/storage.legacyBucketReader", "roles/storage.objectViewer")
COPY_ROLES: Final = ("roles/storage.legacyBucketWriter", "roles/storage.objectViewer")
# The start of a schedule must be named. A past start begins on the day after the deployment.
_START: Final = {"year": 2026, "month": 1, "day": 1}
_DEADLINE: Final = "60s"
_REPEATS_MAX: Final = 3


def create_transfer_agent(project: str, api: GoogleApi) -> None:
    """Create the agent of Storage Transfer Service in a project; an existing agent stays.

    Google creates the agent at the first read, and grants to a missing agent fail. Raise
    GoogleError.
    """
    api.call("GET", f"{TRANSFERS}/googleServiceAccounts/{project}")


def make_copy_buckets(scope: Scope) -> dict[str, Any]:
    """Create and return the buckets of the copies by name; {} without the setting `copies`.

    Exports are deleted after STATE_DAYS. All copies keep deleted objects for VERSION_DAYS.
    """
    copies, names = scope.settings.copies, scope.names
    if copies is None:
        return {}
    old_exports = {"action": {"type": "Delete"}, "condition": {"age": STATE_DAYS}}
    made = {STATE_COPY: _make_copy(scope, copies, STATE_COPY, names.state_copy, old_exports)}
    for name in copies.buckets:
        made[f"{name}-copy"] = _make_copy(scope, copies, f"{name}-copy", names.copy(name))
    return made


def start_copies(
    scope: Scope,
    accounts: Accounts,
    tick: Any,
    buckets: Mapping[str, Any],
    copied: Mapping[str, Any],
) -> None:
    """Create the job of exports and the transfers of buckets; nothing without `copies`.

    Args:
        tick: the service of the function `tick`.
        buckets: the stack's buckets by name.
        copied: the buckets of `make_copy_buckets`.
    """
    copies = scope.settings.copies
    if copies is None:
        return
    _schedule_exports(scope, copies, accounts, tick)
    for name in copies.buckets:
        _transfer(scope, copies, name, buckets[name], copied[f"{name}-copy"])


def _schedule_exports(scope: Scope, copies: Copies, accounts: Accounts, tick: Any) -> None:
    """Create the job that asks the tick for an export of the state every few hours."""
    cloudscheduler.Job(
        "exports",
        project=scope.settings.project,
        region=scope.settings.region,
        name=scope.names.part("exports"),
        description=f"{scope.names.cluster}: exports of the state",
        schedule=f"every {copies.hours} hours",
        time_zone="Etc/UTC",
        attempt_deadline=_DEADLINE,
        retry_config={"retry_count": _REPEATS_MAX, "min_backoff_duration": "60s"},
        http_target={
            "http_method": "POST",
            "uri": tick.uri,
            "headers": {EXPORT_HEADER: "state"},
            "oidc_token": {"service_account_email": accounts.email("events"), "audience": tick.uri},
        },
        opts=scope.options([*accounts.given["events"], *accounts.given_of_function("tick")]),
    )


def _transfer(scope: Scope, copies: Copies, name: str, bucket: Any, copy: Any) -> None:
    """Create the transfer that makes `copy` equal to `bucket` every few hours.

    Deleted objects are deleted in the copy, too, which keeps their versions.
    """
    given: list[pulumi.Resource] = []
    for place, roles in ((bucket, SOURCE_ROLES), (copy, COPY_ROLES)):
        kind = "copy" if place is copy else "source"
        for role in roles:
            member = storage.BucketIAMMember(
                f"transfer-{name}-{kind}-{role.rpartition('.')[2]}",
                bucket=place.name,
                role=role,
                member=scope.names.transfer_agent,
                opts=scope.options(),
            )
            given.append(member)
    storage.TransferJob(
        name,
        project=scope.settings.project,
        name=f"transferJobs/{scope.names.part(name)}",
        description=f"{scope.names.cluster}: the copy of {name} in {copies.region}",
        transfer_spec={
            "gcs_data_source": {"bucket_name": bucket.name},
            "gcs_data_sink": {"bucket_name": copy.name},
            "transfer_options": {"delete_objects_unique_in_sink": True},
        },
        schedule={"schedule_start_date": _START, "repeat_interval": f"{copies.hours * 3600}s"},
        status="ENABLED",
        opts=scope.options(given),
    )


def _make_copy(
    scope: Scope, copies: Copies, name: str, bucket_name: str, *rules: Mapping[str, Any]
) -> Any:
    """Create and return a private bucket in the copies' region, which keeps versions."""
    rules = (old_versions_rule(VERSION_DAYS), *rules)
    return make_private_bucket(scope, name, bucket_name, *rules, keeps=True, region=copies.region)
