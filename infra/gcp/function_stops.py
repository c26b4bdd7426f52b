"""Stops and starts all functions of a cluster for a restore of the state.

A service without instances refuses every request. Eventarc repeats refused events for 24 hours, and
the minutes are not repeated.
"""

from collections.abc import Mapping
from typing import Any, Final

from infra.gcp.functions import size_of
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_or_none
from infra.gcp.names import Names
from infra.gcp.rollback import service_url
from infra.gcp.settings import Settings
from infra.stack_program import Progress
from lambdas.gcp.function_names import FUNCTIONS

_STOPPED: Final[Mapping[str, Any]] = {"scalingMode": "MANUAL", "manualInstanceCount": 0}


def stop_functions(settings: Settings, api: GoogleApi, progress: Progress) -> float:
    """Stop all functions, and return the longest time limit of a function that may still run.

    Functions that do not exist are left out; without any, return 0.0. Raise GoogleError.
    """
    names = settings.names
    stopped = [name for name in FUNCTIONS if _scale(api, service_url(names, name), dict(_STOPPED))]
    if not stopped:
        return 0.0
    progress(f"{len(stopped)} functions of {names.cluster} are stopped")
    return float(max(size_of(settings, name).seconds_max for name in stopped))


def start_functions(settings: Settings, api: GoogleApi, progress: Progress) -> None:
    """Let the stopped functions scale automatically again. Raise GoogleError.

    Functions that do not exist are left out.
    """
    names = settings.names
    for name in FUNCTIONS:
        if is_stopped(names, api, name):
            _scale(api, service_url(names, name), {"scalingMode": "AUTOMATIC"})
    progress(f"the functions of {names.cluster} run again")


def is_stopped(names: Names, api: GoogleApi, function: str) -> bool:
    """Return whether a function exists and has been stopped. Raise GoogleError."""
    found = read_or_none(api, service_url(names, function)) or {}
    return bool(found.get("scaling", {}).get("scalingMode") == "MANUAL")


def _scale(api: GoogleApi, url: str, scaling: Mapping[str, Any]) -> bool:
    """Set how a service scales, and return whether the service exists. Raise GoogleError."""
    try:
        api.call("PATCH", f"{url}?updateMask=scaling", {"scaling": scaling})
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True
