"""The state table and the buckets of a deployed stack, read from AWS."""

from typing import Any, Final

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.instance_ends import error_code
from infra.aws.names import Names
from infra.findings import Unknown
from infra.stack_program import BUCKET, Store

STORES_NEED: Final = (
    "dynamodb:DescribeTable, lambda:GetFunctionConcurrency, lambda:ListEventSourceMappings and "
    "s3:ListBucket"
)
UNFINISHED: Final = "a restore of the state has stopped the functions and has not finished"
# The functions that the table's stream invokes.
STREAM_FUNCTIONS: Final = ("advance", "wake")
_MISSING: Final = frozenset({"ResourceNotFoundException"})
_NO_BUCKET: Final = frozenset({"404", "NoSuchBucket"})
_CONNECTED: Final = frozenset({"Creating", "Enabled", "Enabling", "Updating"})


def read_stores(names: Names, clients: Clients) -> list[Store] | Unknown:
    """Return the table and both buckets, and whether the table's stream invokes the functions.

    Return Unknown if AWS refuses a call or cannot be reached.
    """
    try:
        buckets = [
            Store(BUCKET, name, _has_bucket(clients, name))
            for name in (names.objects, names.checkpoints)
        ]
        return [_read_table(names, clients), *buckets]
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        return Unknown(STORES_NEED, str(error))


def describe_table(clients: Clients, name: str) -> dict[str, Any] | None:
    """Return the description of a table, or None for a missing table. Raise the SDK's errors."""
    try:
        table: dict[str, Any] = clients("dynamodb").describe_table(TableName=name)["Table"]
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return None
        raise
    return table


def stream_mappings(names: Names, clients: Clients, function: str) -> list[dict[str, Any]]:
    """Return the mappings of streams of the cluster's table to a function.

    The mappings of a former table with the same name are included. A function that does not exist
    has none. Raise the SDK's errors.
    """
    pages = clients("lambda").get_paginator("list_event_source_mappings")
    try:
        found = list(pages.paginate(FunctionName=names.live_function(function)))
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return []
        raise
    return [
        mapping
        for page in found
        for mapping in page["EventSourceMappings"]
        if mapping.get("EventSourceArn", "").startswith(f"{names.table_arn}/stream/")
    ]


def _read_table(names: Names, clients: Clients) -> Store:
    """Return the table. A table without a stream, or with another than the functions read, has a
    trouble. Raise the SDK's errors.
    """
    table = describe_table(clients, names.cluster)
    if _is_restoring(names, clients):
        return Store("table", names.cluster, table is not None, refusal=UNFINISHED)
    if table is None:
        return Store("table", names.cluster, exists=False)
    stream = table.get("LatestStreamArn", "")
    if not stream or not table.get("StreamSpecification", {}).get("StreamEnabled"):
        return Store("table", names.cluster, True, "the table has no stream; connecting it again")
    apart = [
        function
        for function in STREAM_FUNCTIONS
        if not any(
            mapping["EventSourceArn"] == stream and mapping.get("State") in _CONNECTED
            for mapping in stream_mappings(names, clients, function)
        )
    ]
    trouble = f"its stream does not invoke {' and '.join(map(names.part, apart))}" if apart else ""
    return Store("table", names.cluster, True, trouble and f"{trouble}; connecting it again")


def _is_restoring(names: Names, clients: Clients) -> bool:
    """Return whether the API is stopped, which only a restore does. Raise the SDK's errors."""
    try:
        found = clients("lambda").get_function_concurrency(FunctionName=names.part("api"))
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return False
        raise
    return bool(found.get("ReservedConcurrentExecutions") == 0)


def _has_bucket(clients: Clients, name: str) -> bool:
    """Return whether a bucket exists. Raise the SDK's errors, also for a bucket of others."""
    try:
        clients("s3").head_bucket(Bucket=name)
    except sdk.ClientError as error:
        if error_code(error) in _NO_BUCKET:
            return False
        raise
    return True
