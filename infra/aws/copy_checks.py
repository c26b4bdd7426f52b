"""The check of the copies in another region: the cost, and the age of the newest export."""

import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Final

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.exports import find_export
from infra.aws.names import Names
from infra.aws.settings import Settings
from infra.aws.stores import describe_table
from infra.copy_age import SUBJECT, check_export_age
from infra.copy_settings import STATE_DAYS, Copies
from infra.findings import Finding, Unknown, fine_finding, read_fact
from infra.restoration import RestoreFailed

# List prices in us-east-1, in dollars: an export a GB, the traffic to another region a GB, and the
# storage of a GB in a month.
EXPORT_PRICE: Final = 0.10
TRAFFIC_PRICE: Final = 0.02
STORAGE_PRICE: Final = 0.023
_HOURS_A_MONTH: Final = 730
_OLD_EXPORT: Final = "`aws dynamodb list-exports` shows why exports failed"


def check_copies(settings: Settings, clients: Clients) -> list[Finding]:
    """Return findings about the setting `copies`; [] without the setting.

    The table's size and the newest export are read from AWS. A refused read is a warning.
    """
    copies = settings.copies
    if copies is None:
        return []
    names = settings.names
    return [
        *read_fact(_read_size(names, clients), SUBJECT, lambda size: _cost(copies, size)),
        *read_fact(
            _read_newest(names, clients), SUBJECT, partial(check_export_age, copies, _OLD_EXPORT)
        ),
    ]


def monthly_cost(copies: Copies, table_bytes: int) -> float:
    """Return the dollars of a month of exports: the exports, the traffic and 14 days of storage."""
    size = table_bytes / 10**9
    count = _HOURS_A_MONTH / copies.hours
    kept = STATE_DAYS * 24 / copies.hours
    return size * (count * (EXPORT_PRICE + TRAFFIC_PRICE) + kept * STORAGE_PRICE)


def _read_size(names: Names, clients: Clients) -> int | Unknown:
    """Return the size of the table in bytes, which AWS renews every six hours; 0 without a table.

    Return Unknown if AWS refuses.
    """
    try:
        table = describe_table(clients, names.cluster) or {}
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        return Unknown("dynamodb:DescribeTable", str(error))
    return int(table.get("TableSizeBytes", 0))


def _read_newest(names: Names, clients: Clients) -> datetime | Unknown | None:
    """Return the moment of the newest export, or None without an export. Unknown if AWS refuses."""
    try:
        export = find_export(clients, f"s3://{names.state_copy}")
    except RestoreFailed:
        return None
    except (sdk.ClientError, sdk.BotoCoreError, json.JSONDecodeError) as error:
        return Unknown("s3:GetObject and s3:ListBucket on the copy of the state", str(error))
    return datetime.fromisoformat(export.time)


def _cost(copies: Copies, size: int) -> Iterator[Finding]:
    """Yield a fine finding with the cost of the copies."""
    buckets = "code, logs and checkpoints" if copies.checkpoints else "code and logs"
    text = (
        f"an export of the state ({size / 10**6:.0f} MB) to {copies.region} every {copies.hours} h "
        f"costs about {monthly_cost(copies, size):.2f} $ a month; the copies of {buckets} cost "
        f"{TRAFFIC_PRICE} $ a GB once and {STORAGE_PRICE} $ a GB and month"
    )
    yield fine_finding(SUBJECT, text)
