"""Stops and starts all functions of a cluster for a restore of the state.

A reserved concurrency of 0 refuses each call. The mappings of the table's stream are disabled
first, so that no record runs out of attempts meanwhile.
"""

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.functions import SIZES, concurrency_of
from infra.aws.instance_ends import error_code
from infra.aws.names import FUNCTIONS, Names
from infra.aws.settings import Settings
from infra.aws.stores import STREAM_FUNCTIONS, describe_table, stream_mappings
from infra.stack_program import Progress

_MISSING = frozenset({"ResourceNotFoundException"})


def stop_functions(names: Names, clients: Clients, progress: Progress) -> float:
    """Stop all functions, and return the longest time limit of a function that may still run.

    Functions that do not exist are left out; without any, return 0.0. Raise the SDK's errors.
    """
    _switch_mappings(names, clients, enabled=False)
    stopped = [name for name in FUNCTIONS if _reserve(names, clients, name, 0)]
    if not stopped:
        return 0.0
    progress(f"{len(stopped)} functions of {names.cluster} are stopped")
    return float(max(SIZES[name].seconds_max for name in stopped))


def start_functions(settings: Settings, clients: Clients, progress: Progress) -> None:
    """Let the functions run again, with the concurrency of the settings. Raise the SDK's errors.

    Functions that do not exist are left out.
    """
    names = settings.names
    started = [
        name for name in FUNCTIONS if _reserve(names, clients, name, concurrency_of(settings, name))
    ]
    _switch_mappings(names, clients, enabled=True)
    progress(f"{len(started)} functions of {names.cluster} run again")


def _reserve(names: Names, clients: Clients, function: str, runs: int | None) -> bool:
    """Reserve concurrent runs for a function; `runs` of None or -1 removes the reservation.

    Return whether the function exists. Raise the SDK's errors.
    """
    name, api = names.part(function), clients("lambda")
    try:
        if runs is None or runs < 0:
            api.delete_function_concurrency(FunctionName=name)
        else:
            api.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=runs)
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return False
        raise
    return True


def _switch_mappings(names: Names, clients: Clients, *, enabled: bool) -> None:
    """Enable or disable the mappings of the table's current stream.

    Mappings of the streams of former tables are left alone: AWS refuses to change them, and the
    next deployment replaces them. Raise the SDK's errors.
    """
    table = describe_table(clients, names.cluster) or {}
    for function in STREAM_FUNCTIONS:
        for mapping in stream_mappings(names, clients, function):
            if mapping["EventSourceArn"] == table.get("LatestStreamArn"):
                clients("lambda").update_event_source_mapping(UUID=mapping["UUID"], Enabled=enabled)
