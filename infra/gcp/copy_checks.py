"""The check of the copies in another region: cost, newest export, and outcome of the transfers."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from infra.copy_age import SUBJECT, check_export_age
from infra.copy_settings import Copies
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact
from infra.gcp.copies import TRANSFERS
from infra.gcp.google_api import GoogleApi, GoogleError, read_or_none
from infra.gcp.names import Names
from infra.gcp.object_copies import GcsBuckets
from infra.gcp.prices import HOURS_PER_MONTH, READ
from infra.gcp.settings import Settings
from infra.gcp.state_exports import find_export
from infra.restoration import RestoreFailed

# List prices, in dollars: the traffic between regions of a continent a GB, and a GB and month.
TRAFFIC_PRICE: Final = 0.02
STORAGE_PRICE: Final = 0.020
_ROWS: Final = 100_000
_OLD_EXPORT: Final = (
    "the log of the function tick, and `gcloud firestore operations list`, show why"
)
_FAILED: Final = ("FAILED", "ABORTED")


def check_copies(settings: Settings, api: GoogleApi) -> list[Finding]:
    """Return findings about the setting `copies`; [] without the setting.

    The newest export and the outcome of each transfer are read from Google. A refused read is a
    warning.
    """
    copies = settings.copies
    if copies is None:
        return []
    names = settings.names
    found = [
        _cost(copies),
        *read_fact(
            _read_newest(names, api), SUBJECT, partial(check_export_age, copies, _OLD_EXPORT)
        ),
    ]
    for name in copies.buckets:
        outcome = _read_transfer(names, api, name)
        found += read_fact(outcome, SUBJECT, partial(_transfer, names, name))
    return found


def monthly_cost(copies: Copies, rows: int) -> float:
    """Return the dollars of a month of exports of a number of rows: a read for each row."""
    return HOURS_PER_MONTH / copies.hours * rows * READ


def _cost(copies: Copies) -> Finding:
    """Return a fine finding with the cost of the copies."""
    buckets = "code, logs and checkpoints" if copies.checkpoints else "code and logs"
    text = (
        f"exports of the state to {copies.region} every {copies.hours} h cost "
        f"{monthly_cost(copies, _ROWS):.2f} $ a month for {_ROWS:,} rows; the copies of {buckets} "
        f"cost {TRAFFIC_PRICE} $ a GB once and {STORAGE_PRICE} $ a GB and month"
    )
    return fine_finding(SUBJECT, text)


def _read_newest(names: Names, api: GoogleApi) -> datetime | Unknown | None:
    """Return the time of the newest export, if any, or Unknown if Google refuses."""
    try:
        return find_export(GcsBuckets(api), f"gs://{names.state_copy}").time
    except RestoreFailed:
        return None
    except GoogleError as error:
        return Unknown("storage.objects.list on the copy of the state", str(error))


def _read_transfer(names: Names, api: GoogleApi, name: str) -> Mapping[str, Any] | Unknown | None:
    """Return the latest run of the transfer of a bucket, if any, or Unknown if Google refuses."""
    job = f"{TRANSFERS}/transferJobs/{names.part(name)}?projectId={names.project}"
    try:
        latest = (read_or_none(api, job) or {}).get("latestOperationName")
        run = read_or_none(api, f"{TRANSFERS}/{latest}") if latest else None
    except GoogleError as error:
        return Unknown("storagetransfer.jobs.get and storagetransfer.operations.get", str(error))
    return None if run is None else run.get("metadata", {})


def _transfer(names: Names, name: str, run: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield a warning if the latest transfer of a bucket failed, or if no transfer has run."""
    if run is None:
        text = f"the bucket of {name} has not been copied yet"
        remedy = "the first transfer begins on the day after the deployment"
        yield Finding(Level.WARNING, SUBJECT, text, remedy)
    elif run.get("status") in _FAILED:
        text = f"the latest transfer of the bucket of {name} failed"
        remedy = f"`gcloud transfer operations list --job-names={names.part(name)}` shows why"
        yield Finding(Level.WARNING, SUBJECT, text, remedy)
    else:
        yield fine_finding(SUBJECT, f"the bucket of {name} is copied")
